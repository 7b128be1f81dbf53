"""What the grid leaves to htmx: the file is the one it says it is, and nothing is lost by it."""

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

from browsing import Program, opened, press_and_wait, until
from cli_runner import run_cli
from served import Served, cards
from user_data import QUICK, write_csv

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "metalabelnet" / "review" / "static"
VENDORED = {  # of htmx.org 2.0.11
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
}
ACTIVE = '[hx-get], [hx-post], [hx-trigger], [hx-on], [data-hx-get], [hx-swap-oob], hx-partial, [hx-vals^="js"]'


def test_htmx_is_unchanged_and_says_what_it_is() -> None:
    for name, digest in VENDORED.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
    assert 'version:"2.0.11"' in (STATIC / "htmx.min.js").read_text()
    assert (STATIC / "htmx.txt").read_text().startswith("htmx 2.0.11, unchanged")


def test_htmx_and_its_licence_are_in_what_is_installed(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    listed = subprocess.run(["tar", "-tf", sdist], check=True, capture_output=True, text=True).stdout
    for name in (*VENDORED, "htmx.txt", "app.js"):
        assert f"metalabelnet/review/static/{name}" in names
        assert f"/src/metalabelnet/review/static/{name}\n" in listed
    assert any(name.endswith("/licenses/src/metalabelnet/review/static/htmx.LICENSE") for name in names)


def test_htmx_may_make_no_code_of_text(page: Served) -> None:
    for address in ("/?show=all", "/clean", "/export", "/?least=x"):
        found = re.search(r"<meta name=\"htmx-config\" content='([^']*)'>", page.get(address).text)
        assert found
        config = json.loads(found[1])
        for name in ("allowEval", "allowScriptTags", "includeIndicatorStyles", "historyEnabled"):
            assert config[name] is False
        assert config["selfRequestsOnly"] is True
        assert config["historyCacheSize"] == 0


def test_every_form_works_without_htmx(page: Served) -> None:
    """What has an address for htmx has the same one for a browser."""
    forms = re.findall(r"<form [^>]*>", page.get("/?show=all").text)
    swapped = [form for form in forms if "hx-post" in form]
    assert len(swapped) == 2 * len(cards(page.get("/?show=all").text)) > 0
    assert all('method="post" action="/verdict" hx-post="/verdict"' in form for form in swapped)
    assert "hx-" not in page.get("/?show=all&view=one").text.partition("<main")[2]


def opened_holding(page: Any, address: str) -> list[Any]:
    """Go to a page and keep its requests with verdicts from the program; they come in while it is asked for something.

    The route comes before the page: Chromium says that it intercepts before a page that is there already has heard of
    it, and what such a page sends meanwhile goes past the route and is answered.
    """
    held: list[Any] = []
    page.route("**/verdict", lambda route: held.append(route))
    page.goto(address)
    return held


@pytest.mark.browser
def test_a_program_that_is_gone_is_missed(chromium: Any, start: Callable[..., Program]) -> None:
    program = start()
    page = opened(chromium, program)
    page.goto(f"{program.base}/?show=labeled")
    first = page.locator(".card").first.get_attribute("id")
    program.end()
    with page.expect_event("requestfailed"):
        page.keyboard.press("k")
    until(lambda: "The program does not answer. Nothing was written" in page.locator("#said").inner_text())
    assert page.evaluate("document.activeElement.id") == first
    assert page.locator(".decided").count() == 0
    with page.expect_event("requestfailed") as again:  # the card is not stuck: it can be tried again
        page.keyboard.press("k")
    assert "ERR_CONNECTION_REFUSED" in again.value.failure


@pytest.mark.browser
def test_a_fast_typist_goes_on_at_once_and_back_to_what_was_not_written(
    chromium: Any, start: Callable[..., Program], tmp_path: Path
) -> None:
    program = start()
    page = opened(chromium, program)
    held = opened_holding(page, f"{program.base}/?show=labeled")
    ids = page.locator(".card").evaluate_all("cards => cards.map(card => card.id)")
    for key in ("x", "n", "x"):  # no answer has come yet
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.id") == ids[3]
    until(lambda: page.evaluate("1") == 1 and len(held) == 3)
    assert page.locator(".decided").count() == 0
    for route in reversed(held):  # answers in another order
        route.continue_()
    until(lambda: page.locator(".decided").count() == 3)
    said = [page.locator(f"#{name} .verdict b").inner_text() for name in ids[:3]]
    assert said == ["unusable", "skipped", "unusable"]
    assert page.evaluate("document.activeElement.id") == ids[3]
    page.unroute("**/verdict")
    title = page.title()
    with sqlite3.connect(tmp_path / "run" / "review.sqlite") as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON verdicts BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    press_and_wait(page, "k")
    until(lambda: "disk is full" in page.locator("#said").inner_text())
    assert page.evaluate("document.activeElement.id") == ids[3]
    assert page.locator(".decided").count() == 3
    assert page.title() == title
    with sqlite3.connect(tmp_path / "run" / "review.sqlite") as db:
        db.execute("DROP TRIGGER full")
    press_and_wait(page, "k")
    until(lambda: page.locator(".decided").count() == 4)
    assert page.locator("#said").inner_text() == ""
    with page.expect_navigation():
        page.keyboard.press("u")  # this tab's last, of a card that came by htmx
    page.goto(f"{program.base}/?show=all&verdict=decided")
    assert page.locator(".card").count() == 3


@pytest.mark.browser
def test_a_verdict_given_twice_is_sent_once(chromium: Any, start: Callable[..., Program]) -> None:
    program = start()
    page = opened(chromium, program)
    held = opened_holding(page, f"{program.base}/?show=labeled")
    first = page.locator(".card").first.get_attribute("id")
    page.evaluate(
        """name => { const card = document.getElementById(name);
        card.querySelector("[value=unusable]").click(); card.querySelector("[value=skip]").click();
        card.querySelector("[name=class]").value = "birne"; card.querySelector(".choose button").click(); }""",
        first,
    )
    until(lambda: page.evaluate("1") == 1 and len(held) > 0)
    for route in held:
        route.continue_()
    page.wait_for_selector(f"#{first}.decided")
    assert page.locator(f"#{first} .verdict b").inner_text() == "unusable"
    assert len(held) == 1
    assert page.locator(f"#{first} .alert").count() == 0


@pytest.mark.browser
def test_another_session_is_told_why_it_is_refused(chromium: Any, start: Callable[..., Program]) -> None:
    program = start()
    page = opened(chromium, program)
    page.goto(f"{program.base}/?show=labeled")
    page.context.clear_cookies()
    press_and_wait(page, "k")
    until(lambda: "refused: open the address that the program printed" in page.locator("#said").inner_text())
    assert page.locator(".decided").count() == 0


@pytest.mark.browser
def test_attributes_of_htmx_in_labels_ids_and_texts_are_inert(
    chromium: Any, start: Callable[..., Program], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nasty = [
        '<b hx-post="/undo" hx-trigger="load" hx-vals="js:{a: alert(1)}">',
        '" hx-get="/attack" hx-trigger="load" hx-on:load="alert(2)" data-hx-get="/attack" x="',
        "' hx-vals='js:{a: alert(3)}' </p><p id=\"said\" hx-swap-oob=\"true\">attack</p><hx-partial hx-target='body'>",
    ]
    parts = ("one", "two", "four", "eight", "more", "most")
    words = [" ".join(word for j, word in enumerate(parts) if k >> j & 1) for k in range(40)]
    rows = [(f"{nasty[k % 3]} {k}", f"{words[k]} {nasty[k % 3]}", nasty[k % 3], k < 12) for k in range(40)]
    file = write_csv(tmp_path / "texts.csv", ("id", "text", "label", "ok"), rows)
    arguments = f"{QUICK} --clean-column ok --method cross-entropy --out {tmp_path}/run"
    assert run_cli(["train", str(file), *arguments.split()], capsys).code == 0
    program = start(tmp_path / "run")
    page = opened(chromium, program)
    page.on("dialog", lambda dialog: page.complaints.append(dialog.message))
    asked: list[tuple[str, str]] = []
    page.on("request", lambda request: asked.append((request.method, request.url.removeprefix(program.base))))
    for path in ("/?show=all&view=one", "/clean", "/export", "/?show=all"):
        page.goto(program.base + path)
        active = page.locator(ACTIVE).evaluate_all("parts => parts.map(part => part.outerHTML.slice(0, 60))")
        assert all(part.startswith('<form method="post" action="/verdict" hx-post="/verdict"') for part in active)
    first = page.locator(".card").first.get_attribute("id")
    for typed in (nasty[2], nasty[1]):  # a card that comes by htmx, and a class that comes with it
        page.locator(f"#{first} input[name=class]").focus()
        page.keyboard.insert_text(typed)
        press_and_wait(page, "Enter")
        until(lambda typed=typed: page.locator(f"#{first} .verdict b").inner_text() == typed)
        assert page.locator("#heard").inner_text().endswith(f"Your verdict: {typed}")
    assert page.locator(f"#{first} :is(hx-partial, [hx-get], [hx-trigger], [hx-swap-oob])").count() == 0
    assert page.locator("#said").inner_text() == ""
    assert page.evaluate("typeof htmx") == "object"  # it was there to be attacked
    assert {path for method, path in asked if method == "POST"} == {"/verdict"}
    assert not any("attack" in path and not path.startswith("/?") for _, path in asked)
    assert page.complaints == []
