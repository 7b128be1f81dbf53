"""The grid with htmx: the vendored file, failures, and hostile data."""

import hashlib
import json
import re
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_runner import run_cli
from review_browser import ReviewServer, open_page, press_and_wait, wait_until
from review_client import ReviewClient, sample_numbers
from user_data import QUICK, write_csv

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "metalabelnet" / "review" / "static"
VENDORED = {  # of htmx.org 2.0.11
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
}
ACTIVE_SELECTOR = (
    '[hx-get], [hx-post], [hx-trigger], [hx-on], [data-hx-get], [hx-swap-oob], hx-partial, [hx-vals^="js"]'
)


def test_htmx_is_unchanged() -> None:
    for name, digest in VENDORED.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
    assert 'version:"2.0.11"' in (STATIC / "htmx.min.js").read_text()
    assert (STATIC / "htmx.txt").read_text().startswith("htmx 2.0.11, unchanged")


def test_htmx_and_its_license_are_packaged(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    listed = subprocess.run(["tar", "-tf", sdist], check=True, capture_output=True, text=True).stdout
    for name in (*VENDORED, "htmx.txt", "app.js"):
        assert f"metalabelnet/review/static/{name}" in names
        assert f"/src/metalabelnet/review/static/{name}\n" in listed
    assert any(name.endswith("/licenses/src/metalabelnet/review/static/htmx.LICENSE") for name in names)


def test_htmx_evaluates_no_code(page: ReviewClient) -> None:
    for address in ("/?show=all", "/clean", "/export", "/?min_confidence=x"):
        found = re.search(r"<meta name=\"htmx-config\" content='([^']*)'>", page.get(address).text)
        assert found
        config = json.loads(found[1])
        for name in ("allowEval", "allowScriptTags", "includeIndicatorStyles", "historyEnabled"):
            assert config[name] is False
        assert config["selfRequestsOnly"] is True
        assert config["historyCacheSize"] == 0


def test_forms_work_without_htmx(page: ReviewClient) -> None:
    """Forms have the same address for htmx and for the browser."""
    forms = re.findall(r"<form [^>]*>", page.get("/?show=all").text)
    swapped = [form for form in forms if "hx-post" in form]
    assert len(swapped) == 2 * len(sample_numbers(page.get("/?show=all").text)) > 0
    assert all('method="post" action="/verdict" hx-post="/verdict"' in form for form in swapped)
    assert "hx-" not in page.get("/?show=all&view=one").text.partition("<main")[2]


def open_page_holding_requests(page: Any, address: str) -> list[Any]:
    """Open a page and hold back its verdict requests.

    The route is set before the page is opened: Chromium may not intercept requests of a page that is already loaded.
    """
    held_requests: list[Any] = []
    page.route("**/verdict", lambda route: held_requests.append(route))
    page.goto(address)
    return held_requests


@pytest.mark.browser
def test_stopped_server_is_reported(chromium: Any, start: Callable[..., ReviewServer]) -> None:
    server = start()
    page = open_page(chromium, server)
    page.goto(f"{server.base}/?show=labeled")
    first = page.locator(".card").first.get_attribute("id")
    server.stop()
    with page.expect_event("requestfailed"):
        page.keyboard.press("k")
    wait_until(
        lambda: "The server does not respond. The verdict was not saved" in page.locator("#message").inner_text()
    )
    assert page.evaluate("document.activeElement.id") == first
    assert page.locator(".decided").count() == 0
    with page.expect_event("requestfailed") as again:  # a second try is possible
        page.keyboard.press("k")
    assert "ERR_CONNECTION_REFUSED" in again.value.failure


@pytest.mark.browser
def test_focus_moves_on_and_returns_on_failure(
    chromium: Any, start: Callable[..., ReviewServer], tmp_path: Path
) -> None:
    server = start()
    page = open_page(chromium, server)
    held_requests = open_page_holding_requests(page, f"{server.base}/?show=labeled")
    ids = page.locator(".card").evaluate_all("cards => cards.map(card => card.id)")
    for key in ("x", "n", "x"):  # before any response
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.id") == ids[3]
    wait_until(lambda: page.evaluate("1") == 1 and len(held_requests) == 3)
    assert page.locator(".decided").count() == 0
    for route in reversed(held_requests):  # responses out of order
        route.continue_()
    wait_until(lambda: page.locator(".decided").count() == 3)
    result = [page.locator(f"#{name} .verdict b").inner_text() for name in ids[:3]]
    assert result == ["unusable", "skipped", "unusable"]
    assert page.evaluate("document.activeElement.id") == ids[3]
    page.unroute("**/verdict")
    title = page.title()
    with sqlite3.connect(tmp_path / "run" / "review.sqlite") as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON verdicts BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    press_and_wait(page, "k")
    wait_until(lambda: "disk is full" in page.locator("#message").inner_text())
    assert page.evaluate("document.activeElement.id") == ids[3]
    assert page.locator(".decided").count() == 3
    assert page.title() == title
    with sqlite3.connect(tmp_path / "run" / "review.sqlite") as db:
        db.execute("DROP TRIGGER full")
    press_and_wait(page, "k")
    wait_until(lambda: page.locator(".decided").count() == 4)
    assert page.locator("#message").inner_text() == ""
    with page.expect_navigation():
        page.keyboard.press("u")  # undoes a verdict made through htmx
    page.goto(f"{server.base}/?show=all&verdict=decided")
    assert page.locator(".card").count() == 3


@pytest.mark.browser
def test_double_click_sends_one_verdict(chromium: Any, start: Callable[..., ReviewServer]) -> None:
    server = start()
    page = open_page(chromium, server)
    held_requests = open_page_holding_requests(page, f"{server.base}/?show=labeled")
    first = page.locator(".card").first.get_attribute("id")
    page.evaluate(
        """name => { const card = document.getElementById(name);
        card.querySelector("[value=unusable]").click(); card.querySelector("[value=skip]").click();
        card.querySelector("[name=class]").value = "birne"; card.querySelector(".choose button").click(); }""",
        first,
    )
    wait_until(lambda: page.evaluate("1") == 1 and len(held_requests) > 0)
    for route in held_requests:
        route.continue_()
    page.wait_for_selector(f"#{first}.decided")
    assert page.locator(f"#{first} .verdict b").inner_text() == "unusable"
    assert len(held_requests) == 1
    assert page.locator(f"#{first} .alert").count() == 0


@pytest.mark.browser
def test_missing_cookie_is_reported(chromium: Any, start: Callable[..., ReviewServer]) -> None:
    server = start()
    page = open_page(chromium, server)
    page.goto(f"{server.base}/?show=labeled")
    page.context.clear_cookies()
    press_and_wait(page, "k")
    wait_until(lambda: "forbidden: open the address that the program printed" in page.locator("#message").inner_text())
    assert page.locator(".decided").count() == 0


@pytest.mark.browser
def test_htmx_attributes_in_data_are_inert(
    chromium: Any, start: Callable[..., ReviewServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = [
        '<b hx-post="/undo" hx-trigger="load" hx-vals="js:{a: alert(1)}">',
        '" hx-get="/attack" hx-trigger="load" hx-on:load="alert(2)" data-hx-get="/attack" x="',
        (
            '\' hx-vals=\'js:{a: alert(3)}\' </p><p id="message" hx-swap-oob="true">attack</p>'
            "<hx-partial hx-target='body'>"
        ),
    ]
    parts = ("one", "two", "four", "eight", "more", "most")
    words = [" ".join(word for j, word in enumerate(parts) if k >> j & 1) for k in range(40)]
    rows = [(f"{hostile[k % 3]} {k}", f"{words[k]} {hostile[k % 3]}", hostile[k % 3], k < 12) for k in range(40)]
    file = write_csv(tmp_path / "texts.csv", ("id", "text", "label", "ok"), rows)
    arguments = f"{QUICK} --clean-column ok --method cross-entropy --out {tmp_path}/run"
    assert run_cli(["train", str(file), *arguments.split()], capsys).code == 0
    server = start(tmp_path / "run")
    page = open_page(chromium, server)
    page.on("dialog", lambda dialog: page.errors.append(dialog.message))
    requests: list[tuple[str, str]] = []
    page.on("request", lambda request: requests.append((request.method, request.url.removeprefix(server.base))))
    for path in ("/?show=all&view=one", "/clean", "/export", "/?show=all"):
        page.goto(server.base + path)
        active = page.locator(ACTIVE_SELECTOR).evaluate_all("parts => parts.map(part => part.outerHTML.slice(0, 60))")
        assert all(part.startswith('<form method="post" action="/verdict" hx-post="/verdict"') for part in active)
    first = page.locator(".card").first.get_attribute("id")
    for typed in (hostile[2], hostile[1]):  # in a card and a message that htmx swaps in
        page.locator(f"#{first} input[name=class]").focus()
        page.keyboard.insert_text(typed)
        press_and_wait(page, "Enter")
        wait_until(lambda typed=typed: page.locator(f"#{first} .verdict b").inner_text() == typed)
        assert page.locator("#announcement").inner_text().endswith(f"verdict {typed}")
    assert page.locator(f"#{first} :is(hx-partial, [hx-get], [hx-trigger], [hx-swap-oob])").count() == 0
    assert page.locator("#message").inner_text() == ""
    assert page.evaluate("typeof htmx") == "object"  # htmx is loaded
    assert {path for method, path in requests if method == "POST"} == {"/verdict"}
    assert not any("attack" in path and not path.startswith("/?") for _, path in requests)
    assert page.errors == []
