"""Each of these tries the attack, and must fail."""

import socket
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from metalabelnet.errors import InputError
from metalabelnet.review.app import ReviewApp
from metalabelnet.review.server import bind
from served import HOST, TOKEN, Served
from user_data import write_csv, write_photos

ADDRESSES = ("/", "/clean", "/export", "/export/clean.csv", "/export/verdicts.csv", "/static/htmx.min.js", "/sample/1/small")


@pytest.mark.parametrize("address", ADDRESSES)
def test_without_the_token_there_is_nothing(page: Served, address: str) -> None:
    assert page.stranger.get(address).status_code == 403
    assert page.stranger.get(f"{address}?token=wrong").status_code == 403
    for cookie in ("metalabelnet_review_5000=wrong", f"metalabelnet_review_5001={TOKEN}", "metalabelnet_review_5000="):
        assert page.stranger.get(address, headers={"Cookie": cookie}).status_code == 403
    n = page.rows()[0]["n"]
    answer = page.stranger.post("/verdict", data={"n": n, "seen": 0, "action": "skip"}, headers={"Origin": HOST})
    assert answer.status_code == 403
    answer = page.stranger.post(f"/verdict?token={TOKEN}", data={"n": n, "action": "skip"}, headers={"Origin": HOST})
    assert answer.status_code == 403
    assert page.current_verdicts() == {}


def test_the_cookie_is_for_this_page_alone(page: Served) -> None:
    answer = page.stranger.get(f"/?token={TOKEN}")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:5000", "127.0.0.1", "127.0.0.1:80", "localhost:5000.evil"]
)
def test_a_foreign_host_is_refused(page: Served, host: str) -> None:
    """DNS rebinding: a foreign name that was made to point to this computer."""
    assert page.get("/", headers={"Host": host}).status_code == 403
    assert page.stranger.get(f"/?token={TOKEN}", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:8080", "https://127.0.0.1:5000", ""]
)
def test_a_foreign_origin_is_refused(page: Served, origin: str) -> None:
    n = page.rows()[0]["n"]
    fields = {"n": n, "seen": 0, "action": "skip"}
    assert page.client.post("/verdict", data=fields, headers={"Origin": origin}).status_code == 403
    assert page.client.post("/verdict", data=fields).status_code == 403  # one that does not say
    assert page.client.post("/undo", data={"tab": ""}, headers={"Origin": origin}).status_code == 403
    assert page.get("/", headers={"Origin": origin}).status_code == 403
    assert page.current_verdicts() == {}


def test_another_sites_picture_or_frame_is_refused(page: Served) -> None:
    n = page.rows()[0]["n"]
    for site in ("cross-site", "same-site"):
        assert page.get(f"/sample/{n}/small", headers={"Sec-Fetch-Site": site}).status_code == 403
    assert page.get(f"/sample/{n}/small", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_nothing_changes_by_a_get(page: Served) -> None:
    n = page.rows()[0]["n"]
    assert page.get(f"/verdict?n={n}&seen=0&action=skip").status_code == 405
    assert page.get("/undo").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/sample/../../etc/passwd/small",
        "/sample/..%2F..%2Fetc%2Fpasswd/small",
        "/sample/%2Fetc%2Fpasswd/small",
        "/sample/0/small",
        "/sample/-1/small",
        "/sample/²/small",
        "/sample/99999999999999999999999/small",
        "/static/../app.py",
        "/static/..%2Fapp.py",
        "/static/%2e%2e%2fapp.py",
        "/export/../../labels.csv",
        "/export/..%2Frun.csv",
    ],
)
def test_no_path_leads_out(page: Served, path: str) -> None:
    answer = page.get(path)
    assert answer.status_code in (404, 405)
    assert "root:" not in answer.text
    assert "import" not in answer.text


def test_an_id_that_is_a_path_opens_nothing(make_page, tmp_path: Path, trained: Path) -> None:
    """A label table, made by somebody else, that names a file outside the data."""
    outside = tmp_path / "outside.png"
    Image.new("RGB", (5, 5), "red").save(outside)
    make_page()
    table = tmp_path / "run" / "labels.csv"
    lines = table.read_text().splitlines()
    cells = lines[1].split(",")
    for name in (str(outside), "../../outside.png"):
        table.write_text("\n".join([lines[0], ",".join([cells[0], name, *cells[2:]]), *lines[2:]]))
        page = make_page(tmp_path / "run")
        assert "1 samples of the run are not in" in page.source.notes[0]
        assert page.rows("id = ?", name) == []
    with page.store.transaction() as db:  # and where the file of the verdicts was changed
        n = db.execute("SELECT n FROM samples").fetchone()[0]
        db.execute("UPDATE samples SET id = ? WHERE n = ?", (str(outside), n))
    assert Image.open(__import__("io").BytesIO(page.get(f"/sample/{n}/small").content)).size != (5, 5)


def test_of_a_file_that_is_no_picture_nothing_is_seen(make_page, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=12, unlabeled=0)
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    (tmp_path / "photos" / "birne" / "link.png").symlink_to(secret)
    page = make_page(tmp_path / "photos")
    (row,) = page.rows("id = 'birne/link.png'")
    answer = page.get(f"/sample/{row['n']}/large")
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_a_table_that_names_other_files_shows_nothing_of_them(make_page, tmp_path: Path) -> None:
    """Its paths are the data, and may lie anywhere; but what is no picture is not seen."""
    write_photos(tmp_path / "home" / "photos", count=12, unlabeled=0)
    (tmp_path / "secret.txt").write_text("the secret")
    (tmp_path / "home" / "link").symlink_to(tmp_path)
    names = [
        "/etc/passwd",
        "../secret.txt",
        "link/secret.txt",
        "photos",
        "/dev/null",
        "photos/birne/../../../secret.txt",
    ]
    rows = [(name, "ab"[k % 2]) for k, name in enumerate([*names, *(f"photos/birne/{k}.png" for k in range(6))])]
    page = make_page(write_csv(tmp_path / "home" / "list.csv", ("path", "label"), rows), image="path")
    assert page.source.contents.kind == "image"
    for name in names:
        (row,) = page.rows("id = ?", name)
        for size in ("small", "large"):
            answer = page.get(f"/sample/{row['n']}/{size}")
            assert answer.status_code == 404
            assert "root:" not in answer.text
            assert "the secret" not in answer.text


NASTY = '<script>alert(1)</script>" onerror="alert(2)\' {{ 777 * 777 }}'


def test_every_label_id_and_text_is_escaped(make_page, tmp_path: Path) -> None:
    rows = [(f"{NASTY} {k}", f"word {NASTY} {k} and more", (NASTY, "plain")[k % 2]) for k in range(40)]
    file = write_csv(tmp_path / "texts.csv", ("id", "text", "label"), rows)
    page = make_page(file)
    page.get("/clean?wanted=3")
    html = page.get("/clean").text
    (n,) = (int(part.split('"')[0]) for part in html.split('id="s')[1:2])
    page.post("/verdict", n=n, seen=0, page="clean", action="choose", **{"class": NASTY})
    pages = [html, page.get("/export").text, page.get(f"/clean?n={n}").text]
    pages.append(page.post("/verdict", n=n, seen=0, page="clean", action=NASTY).text)
    pages.append(page.post("/verdict", n=n, seen=1, page="clean", action="choose", **{"class": NASTY[:9]}).text)
    pages.append(page.get("/clean", params={"wanted": NASTY}).text)
    assert "&lt;script&gt;" in html
    for text in pages:
        assert "<script>alert" not in text
        assert '" onerror=' not in text
        assert "603729" not in text


def test_a_class_cannot_break_out_of_the_check_page(page: Served) -> None:
    object.__setattr__(page.source, "classes", (NASTY, *page.source.classes[1:]))
    with page.store.transaction() as db:
        db.execute("UPDATE samples SET id = ?", (NASTY,))
    for address in ("/?show=all", "/?show=all&view=one"):
        text = page.get(address).text
        assert "&lt;script&gt;" in text
        assert "<script>alert" not in text
        assert '" onerror=' not in text
    assert "<script>alert" not in page.get("/", params={"given": NASTY, "show": "all"}).text
    assert "<script>alert" not in page.get("/", params={"least": NASTY}).text
    assert "<script>alert" not in page.get("/", params={"after": NASTY}).text


def test_every_answer_has_the_headers(page: Served) -> None:
    refused = page.stranger.get("/")
    for answer in (page.get("/"), page.get("/export/clean.csv"), page.get("/nowhere"), refused):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    html = page.get("/").text
    assert " style=" not in html
    assert "onclick" not in html


def test_odd_requests_are_refused_and_the_server_lives(page: Served) -> None:
    headers = {"Origin": HOST, "Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"\xff\xfe", b"a=" + b"x" * 100_000, b"&".join(b"a=%d" % k for k in range(100)), b"n=%FF&action=skip"):
        assert page.client.post("/verdict", content=body, headers=headers).status_code == 400
    for query in (
        "n=x",
        "n=-1",
        "show=x",
        "least=-1",
        "most=nan",
        "after=1",
        "after=x,1",
        f"after=1,{10**30}",
        "split=x",
        "given=zzz",
    ):
        assert page.get(f"/?{query}").status_code == 400, query
    assert page.get("/").status_code == 200


def test_only_this_computer_is_listened_to() -> None:
    with bind(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        port = listening.getsockname()[1]
        with pytest.raises(InputError, match="cannot be used"):
            bind(port)
        own = next((a[4][0] for a in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)), "127.0.0.1")
        if not own.startswith("127."):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((own, port), timeout=2)
    with pytest.raises(InputError, match="cannot be used"):
        bind(70_000)


def test_on_the_usual_port_a_browser_leaves_it_out(page: Served) -> None:
    """Host and Origin of http://127.0.0.1:80 have no port."""
    app = ReviewApp(page.source, page.store).guarded(80, TOKEN)
    fields = {"n": page.rows()[0]["n"], "seen": 0, "action": "skip"}
    for host in ("127.0.0.1", "localhost", "127.0.0.1:80"):
        client = TestClient(app, base_url="http://127.0.0.1", headers={"Host": host})
        assert client.get(f"/?token={TOKEN}").status_code == 200
        client.headers["Cookie"] = f"metalabelnet_review_80={TOKEN}"
        for origin, code in ((host, 303), ("evil.example", 403), ("127.0.0.1:8080", 403), ("127.0.0.1.evil", 403)):
            answer = client.post(
                "/verdict", data=fields, headers={"Origin": f"http://{origin}"}, follow_redirects=False
            )
            assert answer.status_code == code, (host, origin)
        assert client.get("/", headers={"Origin": f"https://{host}"}).status_code == 403
    for host in ("evil.example", "127.0.0.1:8080", "127.0.0.1.evil"):
        assert client.get("/", headers={"Host": host}).status_code == 403
