"""The review page in Chromium, operated by keyboard."""

import itertools
import json
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_runner import run_cli
from review_browser import ReviewServer, open_page, press_and_wait, wait_until
from user_data import QUICK, read_csv, write_csv

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_review_kill_export_and_train(
    chromium: Any, start: Callable[..., ReviewServer], tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start()
    page = open_page(chromium, server)
    page.goto(f"{server.base}/?show=labeled")
    for k in range(10):
        press_and_wait(page, "s" if page.locator(".card:focus button[value=corrected]").count() else "k")
        wait_until(lambda k=k: page.locator(".card.decided").count() == k + 1)
    with page.expect_navigation():
        page.keyboard.press("u")
    assert page.errors == []
    server.stop(signal.SIGKILL)
    server = start()  # continues with the saved verdicts
    page = open_page(chromium, server)
    page.goto(f"{server.base}/?show=all&verdict=decided")
    assert page.locator(".card").count() == 9
    page.goto(f"{server.base}/?show=labeled&view=one")
    for _ in range(11):
        with page.expect_navigation():
            page.keyboard.press("s" if page.locator("button[value=corrected]").count() else "k")
    assert page.errors == []

    page.goto(f"{server.base}/export")
    with page.expect_download() as download:
        page.get_by_role("link", name="Clean set (CSV)").press("Enter")
    clean = tmp_path / "clean.csv"
    download.value.save_as(clean)
    assert sum(row["from"] == "person" for row in read_csv(clean)) == 20
    arguments = f"--clean {clean} {QUICK} --image-size 8 --out {tmp_path}/again"
    result = run_cli(["train", str(trained / "photos"), *arguments.split()], capsys)
    assert result.code == 0, result.err
    assert 0 < json.loads((tmp_path / "again" / "summary.json").read_text())["clean_accuracy"] <= 100


def test_keyboard_shortcuts(chromium: Any, start: Callable[..., ReviewServer]) -> None:
    server = start()
    page = open_page(chromium, server)
    page.goto(f"{server.base}/?show=labeled")
    ids = page.locator(".card").evaluate_all("cards => cards.map(card => card.id)")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == ids[1]
    page.keyboard.press("c")
    page.keyboard.type("bir")
    assert page.locator(f"#{ids[1]} .match").inner_text() == "Enter: birne"
    press_and_wait(page, "Enter")
    page.wait_for_selector(f"#{ids[1]}.decided")
    assert page.locator(f"#{ids[1]} .verdict").inner_text() == "Verdict: birne"
    wait_until(lambda: page.evaluate("document.activeElement.id") == ids[2])
    press_and_wait(page, "x")
    page.wait_for_selector(f"#{ids[2]}.decided")
    wait_until(lambda: page.evaluate("document.activeElement.id") == ids[3])
    press_and_wait(page, "n")
    page.wait_for_selector(f"#{ids[3]}.decided")
    assert [page.locator(f"#{ids[k]} .verdict b").inner_text() for k in (2, 3)] == ["unusable", "skipped"]
    page.keyboard.press("c")  # an unknown class is an error
    page.keyboard.type("zzz")
    press_and_wait(page, "Enter")
    wait_until(lambda: "no class starts with" in page.locator("#message").inner_text())
    page.keyboard.press("Escape")
    page.keyboard.press("v")
    page.wait_for_selector("section.one")


def test_clean_set_by_keyboard(chromium: Any, start: Callable[..., ReviewServer]) -> None:
    server = start()
    page = open_page(chromium, server)
    page.goto(f"{server.base}/clean")
    first = page.locator(".card").get_attribute("id")
    assert "given" not in page.locator(".card").inner_text()
    with page.expect_navigation():
        page.keyboard.type("birn")
        page.keyboard.press("Enter")
    second = page.locator(".card").get_attribute("id")
    with page.expect_navigation():
        page.keyboard.press("Delete")
    with page.expect_navigation():
        page.keyboard.press("PageDown")
    assert "from 1 random samples judged blind" in page.locator("#noise-rate").inner_text()
    for expected in (None, second, first):
        with page.expect_navigation():
            page.keyboard.press("Control+z")
        if expected is not None:
            assert page.locator(".card").get_attribute("id") == expected
    assert page.errors == []


def test_conflict_between_tabs(chromium: Any, start: Callable[..., ReviewServer]) -> None:
    server = start()
    one = open_page(chromium, server)
    two = one.context.new_page()
    for page in (one, two):
        page.goto(f"{server.base}/?show=labeled")
    first = one.locator(".card").first.get_attribute("id")
    press_and_wait(one, "x")
    one.wait_for_selector(f"#{first}.decided")
    press_and_wait(two, "k")
    two.wait_for_selector(f"#{first} .alert")
    assert two.locator(f"#{first} .verdict b").inner_text() == "unusable"
    press_and_wait(two, "k")  # after the update
    wait_until(lambda: two.locator(f"#{first} .verdict b").inner_text() != "unusable")


PATHS = ("/?show=all", "/?view=one&show=all", "/?min_confidence=1&show=all", "/clean", "/export", "/?min_confidence=x")


@pytest.mark.parametrize(
    "windows",
    [
        ((320, "light"), (1280, "dark")),
        pytest.param(((320, "dark"), (1280, "light")), marks=pytest.mark.slow),
    ],
)
def test_layout_fits_and_elements_have_names(
    chromium: Any, start: Callable[..., ReviewServer], windows: tuple[tuple[int, str], ...]
) -> None:
    server = start()
    page = open_page(chromium, server)
    for (width, scheme), path in itertools.product(windows, PATHS):
        page.set_viewport_size({"width": width, "height": 700})
        page.emulate_media(color_scheme=scheme)
        page.goto(server.base + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        unnamed = page.evaluate(
            """[...document.querySelectorAll("a, button, input:not([type=hidden]), select, img")].filter(part =>
            !(part.innerText || part.alt || part.labels?.[0]?.textContent.trim())).map(part => part.outerHTML)"""
        )
        assert unnamed == [], path
    assert [text for text in page.errors if "400" not in text] == []


def test_other_origin_cannot_write(chromium: Any, start: Callable[..., ReviewServer]) -> None:
    """A browser with the cookie on a page of another port: same site, other origin."""
    server, other = start(), start()
    page = open_page(chromium, server)
    n = page.locator(".card").first.get_attribute("id").removeprefix("s")
    page.goto(other.address)
    page.wait_for_selector("h1")
    page.route("**/attack", lambda route: route.fulfill(content_type="text/html", body="<body></body>"))
    page.goto(f"{other.base}/attack")
    with page.expect_navigation():
        page.evaluate(
            """([target, n]) => {
            const form = Object.assign(document.createElement("form"), { method: "post", action: target });
            for (const [name, value] of Object.entries({ n, seen: 0, action: "skip" }))
                form.append(Object.assign(document.createElement("input"), { name, value }));
            document.body.append(form); form.submit();
            }""",
            [f"{server.base}/verdict", n],
        )
    assert "forbidden: the request comes from another page" in page.content()


def test_scripts_in_data_do_not_run(
    chromium: Any, start: Callable[..., ReviewServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = ["<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "javascript:alert(3)//'; </title>{{ 7 }}"]
    words = [
        " ".join(word for j, word in enumerate(("one", "two", "four", "eight", "more", "most")) if k >> j & 1)
        for k in range(64)
    ]
    rows = [(f"{hostile[k % 3]} {k}", f"{words[k]} {hostile[k % 3]}", hostile[k % 3], k < 12) for k in range(40)]
    file = write_csv(tmp_path / "texts.csv", ("id", "text", "label", "ok"), rows)
    arguments = f"{QUICK} --clean-column ok --method cross-entropy --out {tmp_path}/run"
    assert run_cli(["train", str(file), *arguments.split()], capsys).code == 0
    server = start(tmp_path / "run")
    page = open_page(chromium, server)
    page.on("dialog", lambda dialog: page.errors.append(dialog.message))
    for path in ("/?show=all", "/?show=all&view=one", "/clean?target=3", "/clean", "/export"):
        page.goto(server.base + path)
    page.goto(f"{server.base}/?show=labeled")
    first = page.locator(".card").first.get_attribute("id")
    page.keyboard.press("c")
    page.keyboard.type(hostile[0])
    press_and_wait(page, "Enter")
    wait_until(lambda: page.locator(f"#{first} .verdict b").inner_text() == hostile[0])
    page.goto(f"{server.base}/?show=all&verdict=decided&view=one")
    assert hostile[0] in page.locator(".history").inner_text()
    assert page.locator("script").count() == 2
    assert page.locator("main img").count() == 0
    assert page.errors == []


def test_shortcuts_with_classes_named_like_actions(
    chromium: Any, start: Callable[..., ReviewServer], tmp_path: Path
) -> None:
    rows = [(f"r{k}", f"the text of words number {k}", ("skip", "unusable")[k % 2]) for k in range(20)]
    file = write_csv(tmp_path / "texts.csv", ("id", "text", "label"), rows)
    page = open_page(chromium, start(file))
    for key in ("Delete", "PageDown"):
        with page.expect_navigation():
            page.keyboard.press(key)
    with sqlite3.connect(f"{file}.review.sqlite") as db:
        kinds = [row[0] for row in db.execute("SELECT kind FROM verdicts ORDER BY v")]
    db.close()
    assert kinds == ["unusable", "skip"]
    assert page.errors == []
