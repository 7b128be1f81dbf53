"""The pages, as a browser without JavaScript works them."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metalabelnet.errors import InputError
from served import Served, cards, field
from user_data import FRUIT, TABLE_COLUMNS, table_rows, text_rows, write_csv, write_photos


def test_suspects_come_first_and_the_filters_work(page: Served) -> None:
    suspects = page.rows("split = 'train' AND suspect = 1")
    html = page.get("/").text
    on_page = [page.row(n) for n in cards(html)]
    assert len(on_page) == min(24, len(suspects)) > 0
    assert [row["suspicion"] for row in on_page] == sorted((row["suspicion"] for row in on_page), reverse=True)
    given = FRUIT[on_page[0]["given"]]
    filtered = page.get("/", params={"show": "labeled", "given": given, "label": given[:3].lower()}).text
    rows = [page.row(n) for n in cards(filtered)]
    assert rows
    assert {(page.source.classes[row["given"]], page.source.classes[row["label"]]) for row in rows} == {(given, given)}
    assert "Probabilities" in html
    assert f"given <b>{given}</b>" in html


def test_one_at_a_time_goes_on_to_the_next_after_a_verdict(page: Served) -> None:
    expected = cards(page.get("/", params={"show": "labeled"}).text)[:3]
    address, seen = "/?view=one&show=labeled", []
    for _ in range(3):
        html = page.get(address).text
        (n,) = cards(html)
        seen.append(n)
        answer = page.post("/verdict", n=n, seen=field(html, "seen"), action="keep", view="one", show="labeled")
        assert answer.status_code == 303
        address = answer.headers["location"]
    assert seen == expected
    assert page.current_verdicts() == {n: ("label", page.row(n)["given"]) for n in expected}


def test_every_kind_of_verdict(page: Served) -> None:
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
    assert cards(page.get("/?verdict=unusable&show=all").text) == [b]
    assert set(cards(page.get("/?verdict=decided&show=all").text)) == {a, b, c, d}


def test_undo_shows_the_sample_again_and_history_stays(page: Served) -> None:
    n = page.rows("split = 'train' AND given >= 0")[0]["n"]
    page.post("/verdict", n=n, seen=0, action="keep", tab="t")
    answer = page.post("/undo", page="check", view="one", tab="t")
    assert answer.headers["location"] == f"/?view=one&n={n}"
    html = page.get(answer.headers["location"]).text
    assert cards(html) == [n]
    assert "(undone)" in html
    assert page.current_verdicts() == {}
    nothing = page.get(page.post("/undo", page="check", tab="t").headers["location"]).text
    assert "Nothing to undo" in nothing
    assert "Nothing to undo" not in page.get("/?message=something+else").text


def test_a_second_look_is_one_more_line_of_the_history(page: Served) -> None:
    row = page.rows("split = 'train' AND given >= 0 AND label != given")[0]
    for say in ("keep", "corrected", "unusable"):
        seen = field(page.get(f"/?view=one&n={row['n']}").text, "seen")
        assert page.post("/verdict", n=row["n"], seen=seen, action=say).status_code == 303
    html = page.get(f"/?view=one&n={row['n']}").text.partition("Looks at this sample")[2]
    names = page.source.classes
    assert re.findall(r"<li>(.*?) <time", html) == ["unusable", names[row["label"]], names[row["given"]]]
    assert page.current_verdicts() == {row["n"]: ("unusable", None)}


def test_the_second_tab_hears_of_the_first(page: Served) -> None:
    n = page.rows("split = 'train' AND given >= 0 AND label != given")[0]["n"]
    page.post("/verdict", n=n, seen=0, action="keep", tab="one")
    answer = page.post("/verdict", n=n, seen=0, action="corrected", tab="two", answer="card")
    assert answer.status_code == 409
    assert "Another tab has decided" in answer.text
    assert page.current_verdicts()[n] == ("label", page.row(n)["given"])
    plain = page.post("/verdict", n=n, seen=0, action="corrected", tab="two")  # without JavaScript
    again = page.get(plain.headers["location"]).text
    assert "Another tab has decided" in again
    answer = page.post("/verdict", n=n, seen=field(again, "seen"), action="corrected", tab="two")
    assert page.current_verdicts()[n] == ("label", page.row(n)["label"])


def test_a_verdict_that_cannot_be_written_is_said_to_be_lost(page: Served) -> None:
    n = page.rows("split = 'train' AND given >= 0")[0]["n"]
    with page.store.transaction() as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON verdicts BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    answer = page.post("/verdict", n=n, seen=0, action="skip")
    assert answer.status_code == 500
    assert "Nothing was written" in answer.text
    assert page.current_verdicts() == {}


def test_a_clean_set_is_built_by_typing_classes(page: Served) -> None:
    page.get("/clean?wanted=1&sampling=random&blind=1")
    for _ in range(200):
        html = page.get("/clean").text
        if "Every class has" in html:
            break
        (n,) = cards(html)
        name = Path(page.row(n)["id"])
        label = "rare" if name.parent.name == "rare" else FRUIT[int(name.stem.split()[-1]) % 3]
        hidden = {name: field(html, name) for name in ("n", "seen", "sampling", "blind")}
        assert page.post("/verdict", page="clean", action="choose", **hidden, **{"class": label}).status_code == 303
    assert "Every class has 1 confirmed samples" in html
    assert re.search(r"Wrong given labels: <b>[\d.]+ %</b> \([\d.]+ to [\d.]+ % with 95 % confidence", html)


def test_blind_pages_do_not_depend_on_the_given_label(page: Served) -> None:
    """The page of a sample is the same to the byte, whatever label it was given, whatever the run says of it."""
    html = page.get("/clean").text
    (n,) = cards(html)
    row = page.row(n)
    with page.store.transaction() as db:
        other = (max(0, row["given"]) + 1) % 3
        bars = json.dumps([[other, 0.9]])
        db.execute(
            "UPDATE samples SET given = ?, label = ?, id = 'secret/x.png', probabilities = ?, suspicion = 0.5 WHERE n = ?",
            (other, other, bars, n),
        )
    again = page.get("/clean").text
    assert cards(again) == [n]
    assert again == html
    assert row["id"] not in html
    assert "secret" not in again
    picture = page.get(f"/sample/{n}/large")
    assert "secret" not in str(picture.headers)
    page.get("/clean?wanted=10&sampling=random")  # no longer blind
    assert "given <b>" in page.get("/clean").text


def test_seeing_the_label_first_is_not_blind(page: Served) -> None:
    n = page.rows("split = 'train' AND given >= 0")[0]["n"]
    page.post("/verdict", n=n, seen=0, action="keep", tab="t")
    page.post("/undo", page="check", tab="t")
    page.post("/verdict", n=n, seen=0, page="clean", blind="1", sampling="random", action="choose", **{"class": "birne"})
    blind = (
        page.store.connection().execute("SELECT blind FROM verdicts WHERE n = ? ORDER BY v DESC", (n,)).fetchone()[0]
    )
    assert blind == 0
    assert page.get(f"/clean?n={page.rows('split = ?', 'train')[5]['n']}").text == page.get("/clean").text


def test_undo_on_the_clean_page_shows_the_drawn_sample_again(page: Served) -> None:
    html = page.get("/clean").text
    (n,) = cards(html)
    page.post("/verdict", n=n, seen=0, page="clean", sampling="random", blind="1", action="skip", tab="t")
    assert cards(page.get("/clean").text) != [n]
    answer = page.post("/undo", page="clean", tab="t")
    assert cards(page.get(answer.headers["location"]).text) == [n]


def test_pictures_are_the_samples(page: Served, trained: Path) -> None:
    for row in page.rows()[:5]:
        answer = page.get(f"/sample/{row['n']}/small")
        assert answer.headers["content-type"] == "image/png"
        shown = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"))
        stored = np.asarray(Image.open(trained / "photos" / row["id"]).convert("RGB"))
        assert (shown == stored).all()


def test_a_large_photo_is_made_smaller_and_turned(make_page, trained: Path, tmp_path: Path) -> None:
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


def test_data_without_a_run_has_clean_sets_only(make_page, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=30)
    page = make_page(tmp_path / "photos")
    assert page.store.path == tmp_path / "photos.review.sqlite"
    assert page.get("/").headers["location"] == "/clean"
    html = page.get("/clean").text
    assert "Check suspects" not in html
    assert "informative" not in html
    assert len(cards(html)) == 1


def test_texts_and_tables_are_shown(make_page, tmp_path: Path) -> None:
    texts = write_csv(tmp_path / "texts.csv", ("text", "label", "checked"), text_rows(40))
    page = make_page(texts)
    (n,) = cards(page.get("/clean").text)
    assert page.source.contents.text(page.row(n)["position"]) in page.get("/clean").text
    assert page.get(f"/sample/{n}/small").status_code == 404
    table = write_csv(tmp_path / "table.csv", TABLE_COLUMNS, table_rows(40))
    page = make_page(table, features="width,color")
    html = page.get("/clean").text
    (n,) = cards(html)
    (width, _) = (value for _, value in page.source.contents.cells(page.row(n)["position"]))
    assert '<th scope="row">width</th>' in html
    assert f"<td>{width}</td>" in html


def test_arrays_are_shown(make_page, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 255, (12, 6, 6, 3), np.uint8), np.arange(12) % 3
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y)
    page = make_page(tmp_path / "mine.npz")
    for row in page.rows():
        shown = Image.open(io.BytesIO(page.get(f"/sample/{row['n']}/small").content))
        assert (np.asarray(shown) == x[row["position"]]).all()
    np.savez(tmp_path / "rows.npz", x_train=random.normal(size=(12, 2)), y_train=y)
    assert "column 1" in make_page(tmp_path / "rows.npz").get("/clean").text


def test_a_run_knows_its_clean_samples(page: Served) -> None:
    clean = page.rows("split = 'clean'")
    assert len(clean) == 26
    assert all(row["clean_label"] >= 0 and row["label"] < 0 for row in clean)
    assert {row["split"] for row in page.rows()} == {"train", "clean"}
    assert len(cards(page.get("/?split=clean&show=all").text)) == 24


def test_what_cannot_be_reviewed_is_refused_with_a_sentence(make_page, tmp_path: Path, trained: Path) -> None:
    with pytest.raises(InputError, match="nowhere does not exist"):
        make_page(tmp_path / "nowhere")
    page = make_page()
    about = (tmp_path / "run" / "run.json").read_text()
    (tmp_path / "run" / "run.json").write_text(about.replace(f"{trained}/photos", f"{tmp_path}/moved"))
    with pytest.raises(InputError, match="is not where it was"):
        make_page(tmp_path / "run")
    assert page.get("/").status_code == 200


def test_a_page_whose_data_another_program_read_in_anew_shows_and_writes_nothing(make_page, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=12, unlabeled=0)
    page = make_page(tmp_path / "photos")
    (n,) = cards(page.get("/clean").text)
    Image.new("RGB", (9, 9), "red").save(tmp_path / "photos" / FRUIT[0] / "0.png")  # all others move by one
    other = make_page(tmp_path / "photos")
    said = {"n": n, "seen": 0, "page": "clean", "action": "skip"}
    answers = [page.get(address) for address in ("/clean", "/export", "/export/clean.csv", f"/sample/{n}/small")]
    for answer in (*answers, page.post("/verdict", **said), page.post("/undo")):
        assert answer.status_code == 400
        assert "was read in anew by another program; start this one again" in answer.text
    assert other.current_verdicts() == {}
    assert other.get("/clean").status_code == 200
    assert other.post("/verdict", **said).status_code == 303


def test_a_look_with_the_label_in_sight_is_remembered_after_its_undoing(page: Served) -> None:
    page.get("/clean?wanted=10&sampling=random")
    (n,) = cards(page.get("/clean").text)
    how = {"n": n, "seen": 0, "page": "clean", "sampling": "random", "action": "choose", "class": "birne", "tab": "t"}
    page.post("/verdict", **how, blind="0")
    page.post("/undo", page="clean", tab="t")
    page.get("/clean?wanted=10&sampling=random&blind=1")
    page.post("/verdict", **how, blind="1")
    asked = "SELECT blind FROM verdicts WHERE n = ? ORDER BY v DESC"
    assert page.store.connection().execute(asked, (n,)).fetchone()[0] == 0
    assert "is shown here once samples were judged blind" in page.get("/clean").text


def test_verdicts_on_samples_that_have_gone_do_not_count(make_page, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=30, unlabeled=0)
    page = make_page(tmp_path / "photos")
    rows = page.rows("given = 0")[:4]
    for row in rows:
        page.post(
            "/verdict", n=row["n"], seen=0, page="clean", sampling="random", blind="1", action="choose", **{"class": "birne"}
        )
    file = tmp_path / "photos" / rows[0]["id"]
    file.rename(file.with_name("another name.png"))
    page = make_page(tmp_path / "photos")
    assert page.get("/export/clean.csv").text.count("person") == 3
    assert "whose class you have confirmed (3)" in page.get("/export").text
    assert '<span class="number">3 of 10</span>' in page.get("/clean").text
    assert '<span class="number">4 of 10</span>' not in page.get("/clean").text
    for _ in range(2):  # nor does it matter how often the data is read in
        said = page.get("/export/verdicts.csv").text.splitlines()[1:]
        assert [line.split(",")[2] for line in said] == [row["id"] for row in rows]
        (tmp_path / "photos" / rows[1]["id"]).unlink(missing_ok=True)
        page = make_page(tmp_path / "photos")
