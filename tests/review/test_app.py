"""The pages without JavaScript."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metalabelnet.errors import InputError
from review_client import ReviewClient, form_field, sample_numbers
from user_data import FRUIT, TABLE_COLUMNS, table_rows, text_rows, write_csv, write_photos


def test_suspects_first_and_filters(page: ReviewClient) -> None:
    suspects = page.rows("split = 'train' AND suspect = 1")
    html = page.get("/").text
    on_page = [page.row(n) for n in sample_numbers(html)]
    assert len(on_page) == min(24, len(suspects)) > 0
    assert [row["suspicion"] for row in on_page] == sorted((row["suspicion"] for row in on_page), reverse=True)
    given = FRUIT[on_page[0]["given"]]
    filtered = page.get("/", params={"show": "labeled", "given": given, "label": given[:3].lower()}).text
    rows = [page.row(n) for n in sample_numbers(filtered)]
    assert rows
    assert {(page.source.classes[row["given"]], page.source.classes[row["label"]]) for row in rows} == {(given, given)}
    assert "Probabilities" in html
    assert f"given <b>{given}</b>" in html


def test_single_view_shows_next_sample_after_verdict(page: ReviewClient) -> None:
    expected = sample_numbers(page.get("/", params={"show": "labeled"}).text)[:3]
    address, seen = "/?view=one&show=labeled", []
    for _ in range(3):
        html = page.get(address).text
        (n,) = sample_numbers(html)
        seen.append(n)
        answer = page.post("/verdict", n=n, seen=form_field(html, "seen"), action="keep", view="one", show="labeled")
        assert answer.status_code == 303
        address = answer.headers["location"]
    assert seen == expected
    assert page.current_verdicts() == {n: ("label", page.row(n)["given"]) for n in expected}


def test_verdict_kinds(page: ReviewClient) -> None:
    a, b, c, d, e = (row["n"] for row in page.rows("split = 'train' AND given >= 0 AND label != given")[:5])
    for n, more in ((a, {"action": "corrected"}), (b, {"action": "unusable"}), (c, {"action": "skip"})):
        assert page.post("/verdict", n=n, seen=0, **more).status_code == 303
    assert page.post("/verdict", n=d, seen=0, action="choose", **{"class": "BIR"}).status_code == 303
    assert page.post("/verdict", n=e, seen=0, action="choose", **{"class": "no such class"}).status_code == 400
    assert page.post("/verdict", n=e, seen=0, action="choose", **{"class": ""}).status_code == 400
    assert page.post("/verdict", n=e, seen=0, action="nonsense").status_code == 400
    assert page.post("/verdict", n=5, seen=0, action="skip").status_code == 404
    assert page.current_verdicts() == {
        a: ("label", page.row(a)["label"]),
        b: ("unusable", None),
        c: ("skip", None),
        d: ("label", page.source.classes.index("birne")),
    }
    assert sample_numbers(page.get("/?verdict=unusable&show=all").text) == [b]
    assert set(sample_numbers(page.get("/?verdict=decided&show=all").text)) == {a, b, c, d}


def test_undo_shows_sample_and_keeps_history(page: ReviewClient) -> None:
    n = page.rows("split = 'train' AND given >= 0")[0]["n"]
    page.post("/verdict", n=n, seen=0, action="keep", tab="t")
    answer = page.post("/undo", page="check", view="one", tab="t")
    assert answer.headers["location"] == f"/?view=one&n={n}"
    html = page.get(answer.headers["location"]).text
    assert sample_numbers(html) == [n]
    assert "(undone)" in html
    assert page.current_verdicts() == {}
    nothing = page.get(page.post("/undo", page="check", tab="t").headers["location"]).text
    assert "Nothing to undo" in nothing
    assert "Nothing to undo" not in page.get("/?message=something+else").text


def test_second_verdict_extends_history(page: ReviewClient) -> None:
    row = page.rows("split = 'train' AND given >= 0 AND label != given")[0]
    for say in ("keep", "corrected", "unusable"):
        seen = form_field(page.get(f"/?view=one&n={row['n']}").text, "seen")
        assert page.post("/verdict", n=row["n"], seen=seen, action=say).status_code == 303
    html = page.get(f"/?view=one&n={row['n']}").text.partition("Earlier verdicts")[2]
    names = page.source.classes
    assert re.findall(r"<li>(.*?) <time", html) == ["unusable", names[row["label"]], names[row["given"]]]
    assert page.current_verdicts() == {row["n"]: ("unusable", None)}


def test_conflict_between_tabs(page: ReviewClient) -> None:
    n = page.rows("split = 'train' AND given >= 0 AND label != given")[0]["n"]
    page.post("/verdict", n=n, seen=0, action="keep", tab="one")
    answer = page.post("/verdict", n=n, seen=0, action="corrected", tab="two", response="card")
    assert answer.status_code == 409
    assert "The verdict was changed in another tab" in answer.text
    assert page.current_verdicts()[n] == ("label", page.row(n)["given"])
    plain = page.post("/verdict", n=n, seen=0, action="corrected", tab="two")  # without JavaScript
    again = page.get(plain.headers["location"]).text
    assert "The verdict was changed in another tab" in again
    answer = page.post("/verdict", n=n, seen=form_field(again, "seen"), action="corrected", tab="two")
    assert page.current_verdicts()[n] == ("label", page.row(n)["label"])


def test_failed_write_is_reported(page: ReviewClient) -> None:
    n = page.rows("split = 'train' AND given >= 0")[0]["n"]
    with page.store.transaction() as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON verdicts BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    answer = page.post("/verdict", n=n, seen=0, action="skip")
    assert answer.status_code == 500
    assert "not saved" in answer.text
    assert page.current_verdicts() == {}


def test_build_clean_set(page: ReviewClient) -> None:
    page.get("/clean?target=1&sampling=random&blind=1")
    for _ in range(200):
        html = page.get("/clean").text
        if "Every class has" in html:
            break
        (n,) = sample_numbers(html)
        name = Path(page.row(n)["id"])
        label = "rare" if name.parent.name == "rare" else FRUIT[int(name.stem.split()[-1]) % 3]
        hidden = {name: form_field(html, name) for name in ("n", "seen", "sampling", "blind")}
        assert page.post("/verdict", page="clean", action="choose", **hidden, **{"class": label}).status_code == 303
    assert "Every class has 1 confirmed samples" in html
    assert re.search(r"Wrong given labels: <b>[\d.]+ %</b> \(95 % CI [\d.]+–[\d.]+ %, from", html)


def test_blind_page_is_independent_of_labels(page: ReviewClient) -> None:
    """The page of a sample has the same bytes for any given label and prediction."""
    html = page.get("/clean").text
    (n,) = sample_numbers(html)
    row = page.row(n)
    with page.store.transaction() as db:
        other = (max(0, row["given"]) + 1) % 3
        bars = json.dumps([[other, 0.9]])
        db.execute(
            "UPDATE samples SET given = ?, label = ?, id = 'secret/x.png', probabilities = ?, suspicion = 0.5 "
            "WHERE n = ?",
            (other, other, bars, n),
        )
    again = page.get("/clean").text
    assert sample_numbers(again) == [n]
    assert again == html
    assert row["id"] not in html
    assert "secret" not in again
    picture = page.get(f"/sample/{n}/large")
    assert "secret" not in str(picture.headers)
    page.get("/clean?target=10&sampling=random")  # no longer blind
    assert "given <b>" in page.get("/clean").text


def test_verdict_after_visible_label_is_not_blind(page: ReviewClient) -> None:
    n = page.rows("split = 'train' AND given >= 0")[0]["n"]
    page.post("/verdict", n=n, seen=0, action="keep", tab="t")
    page.post("/undo", page="check", tab="t")
    page.post(
        "/verdict", n=n, seen=0, page="clean", blind="1", sampling="random", action="choose", **{"class": "birne"}
    )
    blind = (
        page.store.connection().execute("SELECT blind FROM verdicts WHERE n = ? ORDER BY v DESC", (n,)).fetchone()[0]
    )
    assert blind == 0
    assert page.get(f"/clean?n={page.rows('split = ?', 'train')[5]['n']}").text == page.get("/clean").text


def test_undo_on_clean_page_shows_sample(page: ReviewClient) -> None:
    html = page.get("/clean").text
    (n,) = sample_numbers(html)
    page.post("/verdict", n=n, seen=0, page="clean", sampling="random", blind="1", action="skip", tab="t")
    assert sample_numbers(page.get("/clean").text) != [n]
    answer = page.post("/undo", page="clean", tab="t")
    assert sample_numbers(page.get(answer.headers["location"]).text) == [n]


def test_images_match_samples(page: ReviewClient, trained: Path) -> None:
    for row in page.rows()[:5]:
        answer = page.get(f"/sample/{row['n']}/small")
        assert answer.headers["content-type"] == "image/png"
        shown = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"))
        stored = np.asarray(Image.open(trained / "photos" / row["id"]).convert("RGB"))
        assert (shown == stored).all()


def test_large_image_is_scaled_and_rotated(make_page, trained: Path, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=12, unlabeled=0)
    exif = Image.Exif()
    exif[0x0112] = 6
    file = tmp_path / "photos" / "birne" / "large.jpg"
    Image.new("RGB", (1500, 900), "red").save(file, exif=exif)
    page = make_page(tmp_path / "photos")
    (row,) = page.rows("id = 'birne/large.jpg'")
    sizes = {}
    for size in ("small", "large"):
        picture = Image.open(io.BytesIO(page.get(f"/sample/{row['n']}/{size}").content))
        sizes[size] = picture.size
        assert not picture.getexif()
    assert sizes == {"small": (154, 256), "large": (614, 1024)}


def test_data_without_run_has_no_suspects_page(make_page, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=30)
    page = make_page(tmp_path / "photos")
    assert page.store.path == tmp_path / "photos.review.sqlite"
    assert page.get("/").headers["location"] == "/clean"
    html = page.get("/clean").text
    assert "Check suspects" not in html
    assert "informative" not in html
    assert len(sample_numbers(html)) == 1


def test_text_and_table_samples(make_page, tmp_path: Path) -> None:
    texts = write_csv(tmp_path / "texts.csv", ("text", "label", "checked"), text_rows(40))
    page = make_page(texts)
    (n,) = sample_numbers(page.get("/clean").text)
    assert page.source.display.text(page.row(n)["position"]) in page.get("/clean").text
    assert page.get(f"/sample/{n}/small").status_code == 404
    table = write_csv(tmp_path / "table.csv", TABLE_COLUMNS, table_rows(40))
    page = make_page(table, features="width,color")
    html = page.get("/clean").text
    (n,) = sample_numbers(html)
    (width, _) = (value for _, value in page.source.display.cells(page.row(n)["position"]))
    assert '<th scope="row">width</th>' in html
    assert f"<td>{width}</td>" in html


def test_array_samples(make_page, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 255, (12, 6, 6, 3), np.uint8), np.arange(12) % 3
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y)
    page = make_page(tmp_path / "mine.npz")
    for row in page.rows():
        shown = Image.open(io.BytesIO(page.get(f"/sample/{row['n']}/small").content))
        assert (np.asarray(shown) == x[row["position"]]).all()
    np.savez(tmp_path / "rows.npz", x_train=random.normal(size=(12, 2)), y_train=y)
    assert "column 1" in make_page(tmp_path / "rows.npz").get("/clean").text


def test_clean_set_of_the_run(page: ReviewClient) -> None:
    clean = page.rows("split = 'clean'")
    assert len(clean) == 26
    assert all(row["clean_label"] >= 0 and row["label"] < 0 for row in clean)
    assert {row["split"] for row in page.rows()} == {"train", "clean"}
    assert len(sample_numbers(page.get("/?split=clean&show=all").text)) == 24


def test_missing_source_is_an_error(make_page, tmp_path: Path, trained: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such file, folder or run; give a run folder"):
        make_page(tmp_path / "nowhere")
    page = make_page()
    about = (tmp_path / "run" / "run.json").read_text()
    (tmp_path / "run" / "run.json").write_text(about.replace(f"{trained}/photos", f"{tmp_path}/moved"))
    with pytest.raises(InputError, match="pass its new path with --data PATH"):
        make_page(tmp_path / "run")
    assert page.get("/").status_code == 200


def test_page_stops_after_another_process_imports(make_page, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=12, unlabeled=0)
    page = make_page(tmp_path / "photos")
    (n,) = sample_numbers(page.get("/clean").text)
    Image.new("RGB", (9, 9), "red").save(tmp_path / "photos" / FRUIT[0] / "0.png")  # shifts the positions of all others
    other = make_page(tmp_path / "photos")
    result = {"n": n, "seen": 0, "page": "clean", "action": "skip"}
    answers = [page.get(address) for address in ("/clean", "/export", "/export/clean.csv", f"/sample/{n}/small")]
    for answer in (*answers, page.post("/verdict", **result), page.post("/undo")):
        assert answer.status_code == 400
        assert "another process has imported the data again; restart this one" in answer.text
    assert other.current_verdicts() == {}
    assert other.get("/clean").status_code == 200
    assert other.post("/verdict", **result).status_code == 303


def test_undone_unblinded_verdict_still_counts_as_seen(page: ReviewClient) -> None:
    page.get("/clean?target=10&sampling=random")
    (n,) = sample_numbers(page.get("/clean").text)
    how = {"n": n, "seen": 0, "page": "clean", "sampling": "random", "action": "choose", "class": "birne", "tab": "t"}
    page.post("/verdict", **how, blind="0")
    page.post("/undo", page="clean", tab="t")
    page.get("/clean?target=10&sampling=random&blind=1")
    page.post("/verdict", **how, blind="1")
    query = "SELECT blind FROM verdicts WHERE n = ? ORDER BY v DESC"
    assert page.store.connection().execute(query, (n,)).fetchone()[0] == 0
    assert "once random samples are judged blind" in page.get("/clean").text


def test_verdicts_on_removed_samples_do_not_count(make_page, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=30, unlabeled=0)
    page = make_page(tmp_path / "photos")
    rows = page.rows("given = 0")[:4]
    for row in rows:
        page.post(
            "/verdict",
            n=row["n"],
            seen=0,
            page="clean",
            sampling="random",
            blind="1",
            action="choose",
            **{"class": "birne"},
        )
    file = tmp_path / "photos" / rows[0]["id"]
    file.rename(file.with_name("another name.png"))
    page = make_page(tmp_path / "photos")
    assert page.get("/export/clean.csv").text.count("person") == 3
    assert "whose class you have confirmed (3)" in page.get("/export").text
    assert '<span class="number">3 of 10</span>' in page.get("/clean").text
    assert '<span class="number">4 of 10</span>' not in page.get("/clean").text
    for _ in range(2):  # also after further imports
        result = page.get("/export/verdicts.csv").text.splitlines()[1:]
        assert [line.split(",")[2] for line in result] == [row["id"] for row in rows]
        (tmp_path / "photos" / rows[1]["id"]).unlink(missing_ok=True)
        page = make_page(tmp_path / "photos")
