"""Attacks on the review page, each of which must fail."""

import socket
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from metalabelnet.errors import InputError
from metalabelnet.review.app import ReviewApp
from metalabelnet.review.server import bind
from review_client import HOST, TOKEN, ReviewClient
from user_data import write_csv, write_photos

ADDRESSES = (
    "/",
    "/clean",
    "/export",
    "/export/clean.csv",
    "/export/verdicts.csv",
    "/static/htmx.min.js",
    "/sample/1/small",
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_access_without_token(page: ReviewClient, address: str) -> None:
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


def test_cookie_attributes(page: ReviewClient) -> None:
    answer = TestClient(ReviewApp(page.source, page.store).guarded(5000, TOKEN), base_url=HOST).get(f"/?token={TOKEN}")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:5000", "127.0.0.1", "127.0.0.1:80", "localhost:5000.evil"]
)
def test_foreign_host_is_rejected(page: ReviewClient, host: str) -> None:
    """DNS rebinding: a foreign name that resolves to this computer."""
    assert page.get("/", headers={"Host": host}).status_code == 403
    assert page.stranger.get(f"/?token={TOKEN}", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:8080", "https://127.0.0.1:5000", ""]
)
def test_foreign_origin_is_rejected(page: ReviewClient, origin: str) -> None:
    n = page.rows()[0]["n"]
    fields = {"n": n, "seen": 0, "action": "skip"}
    assert page.client.post("/verdict", data=fields, headers={"Origin": origin}).status_code == 403
    assert page.client.post("/verdict", data=fields).status_code == 403  # without Origin
    assert page.client.post("/undo", data={"tab": ""}, headers={"Origin": origin}).status_code == 403
    assert page.get("/", headers={"Origin": origin}).status_code == 403
    assert page.current_verdicts() == {}


def test_cross_site_request_is_rejected(page: ReviewClient) -> None:
    n = page.rows()[0]["n"]
    for site in ("cross-site", "same-site"):
        assert page.get(f"/sample/{n}/small", headers={"Sec-Fetch-Site": site}).status_code == 403
    assert page.get(f"/sample/{n}/small", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_get_changes_nothing(page: ReviewClient) -> None:
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
def test_path_traversal(page: ReviewClient, path: str) -> None:
    answer = page.get(path)
    assert answer.status_code in (404, 405)
    assert "root:" not in answer.text
    assert "import" not in answer.text


def test_id_that_is_a_path_is_not_opened(make_page, tmp_path: Path, trained: Path) -> None:
    """A label table from elsewhere with the path of a file outside the data."""
    outside = tmp_path / "outside.png"
    Image.new("RGB", (5, 5), "red").save(outside)
    make_page()
    table = tmp_path / "run" / "labels.csv"
    lines = table.read_text().splitlines()
    cells = lines[1].split(",")
    for name in (str(outside), "../../outside.png"):
        table.write_text("\n".join([lines[0], ",".join([cells[0], name, *cells[2:]]), *lines[2:]]))
        page = make_page(tmp_path / "run")
        assert "1 samples of the run are no longer in" in page.source.notes[0]
        assert page.rows("id = ?", name) == []
    with page.store.transaction() as db:  # and if the database was modified
        n = db.execute("SELECT n FROM samples").fetchone()[0]
        db.execute("UPDATE samples SET id = ? WHERE n = ?", (str(outside), n))
    assert Image.open(__import__("io").BytesIO(page.get(f"/sample/{n}/small").content)).size != (5, 5)


def test_file_that_is_not_an_image_is_not_served(make_page, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=12, unlabeled=0)
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    (tmp_path / "photos" / "birne" / "link.png").symlink_to(secret)
    page = make_page(tmp_path / "photos")
    (row,) = page.rows("id = 'birne/link.png'")
    answer = page.get(f"/sample/{row['n']}/large")
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_table_with_other_files_does_not_serve_them(make_page, tmp_path: Path) -> None:
    """The paths in a table may point anywhere, but only images are served."""
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
    assert page.source.display.kind == "image"
    for name in names:
        (row,) = page.rows("id = ?", name)
        for size in ("small", "large"):
            answer = page.get(f"/sample/{row['n']}/{size}")
            assert answer.status_code == 404
            assert "root:" not in answer.text
            assert "the secret" not in answer.text


HOSTILE_TEXT = '<script>alert(1)</script>" onerror="alert(2)\' {{ 777 * 777 }}'


def test_labels_ids_and_texts_are_escaped(make_page, tmp_path: Path) -> None:
    rows = [
        (f"{HOSTILE_TEXT} {k}", f"word {HOSTILE_TEXT} {k} and more", (HOSTILE_TEXT, "plain")[k % 2]) for k in range(40)
    ]
    file = write_csv(tmp_path / "texts.csv", ("id", "text", "label"), rows)
    page = make_page(file)
    page.get("/clean?target=3")
    html = page.get("/clean").text
    (n,) = (int(part.split('"')[0]) for part in html.split('id="s')[1:2])
    page.post("/verdict", n=n, seen=0, page="clean", action="choose", **{"class": HOSTILE_TEXT})
    pages = [html, page.get("/export").text, page.get(f"/clean?n={n}").text]
    pages.append(page.post("/verdict", n=n, seen=0, page="clean", action=HOSTILE_TEXT).text)
    pages.append(page.post("/verdict", n=n, seen=1, page="clean", action="choose", **{"class": HOSTILE_TEXT[:9]}).text)
    pages.append(page.get("/clean", params={"target": HOSTILE_TEXT}).text)
    assert "&lt;script&gt;" in html
    for text in pages:
        assert "<script>alert" not in text
        assert '" onerror=' not in text
        assert "603729" not in text


def test_class_names_are_escaped_on_the_check_page(page: ReviewClient) -> None:
    object.__setattr__(page.source, "classes", (HOSTILE_TEXT, *page.source.classes[1:]))
    with page.store.transaction() as db:
        db.execute("UPDATE samples SET id = ?", (HOSTILE_TEXT,))
    for address in ("/?show=all", "/?show=all&view=one"):
        text = page.get(address).text
        assert "&lt;script&gt;" in text
        assert "<script>alert" not in text
        assert '" onerror=' not in text
    assert "<script>alert" not in page.get("/", params={"given": HOSTILE_TEXT, "show": "all"}).text
    assert "<script>alert" not in page.get("/", params={"min_confidence": HOSTILE_TEXT}).text
    assert "<script>alert" not in page.get("/", params={"after": HOSTILE_TEXT}).text


def test_every_response_has_security_headers(page: ReviewClient) -> None:
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


def test_malformed_requests_are_rejected(page: ReviewClient) -> None:
    headers = {"Origin": HOST, "Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"\xff\xfe", b"a=" + b"x" * 100_000, b"&".join(b"a=%d" % k for k in range(100)), b"n=%FF&action=skip"):
        assert page.client.post("/verdict", content=body, headers=headers).status_code == 400
    for query in (
        "n=x",
        "n=-1",
        "show=x",
        "min_confidence=-1",
        "max_confidence=nan",
        "after=1",
        "after=x,1",
        f"after=1,{10**30}",
        "split=x",
        "given=zzz",
    ):
        assert page.get(f"/?{query}").status_code == 400, query
    assert page.get("/").status_code == 200


def test_server_listens_on_loopback_only() -> None:
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


def test_default_port_is_omitted_in_host_and_origin(page: ReviewClient) -> None:
    """Host and Origin of http://127.0.0.1:80 have no port."""
    tokens = [TOKEN]
    app = ReviewApp(page.source, page.store).guarded(80, TOKEN, tokens.append)
    fields = {"n": page.rows()[0]["n"], "seen": 0, "action": "skip"}
    for host in ("127.0.0.1", "localhost", "127.0.0.1:80"):
        client = TestClient(app, base_url="http://127.0.0.1", headers={"Host": host})
        answer = client.get(f"/?token={tokens[-1]}")
        assert answer.status_code == 200
        client.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
        for origin, code in ((host, 303), ("evil.example", 403), ("127.0.0.1:8080", 403), ("127.0.0.1.evil", 403)):
            answer = client.post(
                "/verdict", data=fields, headers={"Origin": f"http://{origin}"}, follow_redirects=False
            )
            assert answer.status_code == code, (host, origin)
        assert client.get("/", headers={"Origin": f"https://{host}"}).status_code == 403
    for host in ("evil.example", "127.0.0.1:8080", "127.0.0.1.evil"):
        assert client.get("/", headers={"Host": host}).status_code == 403
