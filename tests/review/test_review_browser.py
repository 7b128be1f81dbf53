"""The page in a real browser, by keyboard alone. Needs Chromium (Debian: chromium) and playwright."""

import json
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browsing import Program, opened, press_and_wait, until
from cli_runner import run_cli
from user_data import QUICK, read_csv, write_csv

pytestmark = pytest.mark.browser


def test_twenty_suspects_by_keyboard_a_kill_an_export_and_a_training(
    chromium: Any, start: Callable[..., Program], tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = start()
    page = opened(chromium, program)
    page.goto(f"{program.base}/?show=labeled")
    for k in range(10):
        press_and_wait(page, "s" if page.locator(".card:focus button[value=corrected]").count() else "k")
        until(lambda k=k: page.locator(".card.decided").count() == k + 1)
    with page.expect_navigation():
        page.keyboard.press("u")
    assert page.complaints == []
    program.end(signal.SIGKILL)
    program = start()  # and go on where it broke off
    page = opened(chromium, program)
    page.goto(f"{program.base}/?show=all&verdict=decided")
    assert page.locator(".card").count() == 9
    page.goto(f"{program.base}/?show=labeled&view=one")
    for _ in range(11):
        with page.expect_navigation():
            page.keyboard.press("s" if page.locator("button[value=corrected]").count() else "k")
    assert page.complaints == []

    page.goto(f"{program.base}/export")
    with page.expect_download() as download:
        page.get_by_role("link", name="Clean set (CSV)").press("Enter")
    clean = tmp_path / "clean.csv"
    download.value.save_as(clean)
    assert sum(row["from"] == "person" for row in read_csv(clean)) == 20
    arguments = f"--clean {clean} {QUICK} --image-size 8 --out {tmp_path}/again"
    said = run_cli(["train", str(trained / "photos"), *arguments.split()], capsys)
    assert said.code == 0, said.err
    assert 0 < json.loads((tmp_path / "again" / "summary.json").read_text())["clean_accuracy"] <= 100


def test_another_class_by_typing_unusable_skip_and_arrows(chromium: Any, start: Callable[..., Program]) -> None:
    program = start()
    page = opened(chromium, program)
    page.goto(f"{program.base}/?show=labeled")
    ids = page.locator(".card").evaluate_all("cards => cards.map(card => card.id)")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == ids[1]
    page.keyboard.press("c")
    page.keyboard.type("bir")
    assert page.locator(f"#{ids[1]} .match").inner_text() == "Enter: birne"
    press_and_wait(page, "Enter")
    page.wait_for_selector(f"#{ids[1]}.decided")
    assert page.locator(f"#{ids[1]} .verdict").inner_text() == "Your verdict: birne"
    until(lambda: page.evaluate("document.activeElement.id") == ids[2])
    press_and_wait(page, "x")
    page.wait_for_selector(f"#{ids[2]}.decided")
    until(lambda: page.evaluate("document.activeElement.id") == ids[3])
    press_and_wait(page, "n")
    page.wait_for_selector(f"#{ids[3]}.decided")
    assert [page.locator(f"#{ids[k]} .verdict b").inner_text() for k in (2, 3)] == ["unusable", "skipped"]
    page.keyboard.press("c")  # a class that is none: nothing is written, and it is said
    page.keyboard.type("zzz")
    press_and_wait(page, "Enter")
    until(lambda: "no class begins with" in page.locator("#said").inner_text())
    page.keyboard.press("Escape")
    page.keyboard.press("v")
    page.wait_for_selector("section.one")


def test_a_clean_set_by_typing(chromium: Any, start: Callable[..., Program]) -> None:
    program = start()
    page = opened(chromium, program)
    page.goto(f"{program.base}/clean")
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
    assert "from 1 judged blind" in page.locator("#rate").inner_text()
    for expected in (None, second, first):
        with page.expect_navigation():
            page.keyboard.press("Control+z")
        if expected is not None:
            assert page.locator(".card").get_attribute("id") == expected
    assert page.complaints == []


def test_two_tabs(chromium: Any, start: Callable[..., Program]) -> None:
    program = start()
    one = opened(chromium, program)
    two = one.context.new_page()
    for page in (one, two):
        page.goto(f"{program.base}/?show=labeled")
    first = one.locator(".card").first.get_attribute("id")
    press_and_wait(one, "x")
    one.wait_for_selector(f"#{first}.decided")
    press_and_wait(two, "k")
    two.wait_for_selector(f"#{first} .alert")
    assert two.locator(f"#{first} .verdict b").inner_text() == "unusable"
    press_and_wait(two, "k")  # after a second look
    until(lambda: two.locator(f"#{first} .verdict b").inner_text() != "unusable")


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_and_everything_has_a_name(
    chromium: Any, start: Callable[..., Program], width: int, scheme: str
) -> None:
    program = start()
    page = opened(chromium, program, viewport={"width": width, "height": 700}, color_scheme=scheme)
    for path in ("/?show=all", "/?view=one&show=all", "/?least=1&show=all", "/clean", "/export", "/?least=x"):
        page.goto(program.base + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        nameless = page.evaluate(
            """[...document.querySelectorAll("a, button, input:not([type=hidden]), select, img")].filter(part =>
            !(part.innerText || part.alt || part.labels?.[0]?.textContent.trim())).map(part => part.outerHTML)"""
        )
        assert nameless == [], path
    assert [text for text in page.complaints if "400" not in text] == []


def test_a_page_of_another_origin_cannot_write(chromium: Any, start: Callable[..., Program]) -> None:
    """A browser that has the cookie, on a page of another port of this computer: the same site, another origin."""
    program, other = start(), start()
    page = opened(chromium, program)
    n = page.locator(".card").first.get_attribute("id").removeprefix("s")
    page.goto(other.address)
    page.wait_for_selector("h1")
    page.route("**/attack", lambda route: route.fulfill(content_type="text/html", body="<body></body>"))
    page.goto(f"{other.base}/attack")
    with page.expect_navigation():
        page.evaluate(
            """([action, n]) => {
            const form = Object.assign(document.createElement("form"), { method: "post", action });
            for (const [name, value] of Object.entries({ n, seen: 0, say: "skip" }))
                form.append(Object.assign(document.createElement("input"), { name, value }));
            document.body.append(form); form.submit();
            }""",
            [f"{program.base}/verdict", n],
        )
    assert "refused: the request comes from another page" in page.content()


def test_scripts_in_labels_ids_and_texts_do_not_run(
    chromium: Any, start: Callable[..., Program], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nasty = ["<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "javascript:alert(3)//'; </title>{{ 7 }}"]
    words = [
        " ".join(word for j, word in enumerate(("one", "two", "four", "eight", "more", "most")) if k >> j & 1)
        for k in range(64)
    ]
    rows = [(f"{nasty[k % 3]} {k}", f"{words[k]} {nasty[k % 3]}", nasty[k % 3], k < 12) for k in range(40)]
    file = write_csv(tmp_path / "texts.csv", ("id", "text", "label", "ok"), rows)
    arguments = f"{QUICK} --clean-column ok --method cross-entropy --out {tmp_path}/run"
    assert run_cli(["train", str(file), *arguments.split()], capsys).code == 0
    program = start(tmp_path / "run")
    page = opened(chromium, program)
    page.on("dialog", lambda dialog: page.complaints.append(dialog.message))
    for path in ("/?show=all", "/?show=all&view=one", "/clean?wanted=3", "/clean", "/export"):
        page.goto(program.base + path)
    page.goto(f"{program.base}/?show=labeled")
    first = page.locator(".card").first.get_attribute("id")
    page.keyboard.press("c")
    page.keyboard.type(nasty[0])
    press_and_wait(page, "Enter")
    until(lambda: page.locator(f"#{first} .verdict b").inner_text() == nasty[0])
    page.goto(f"{program.base}/?show=all&verdict=decided&view=one")
    assert nasty[0] in page.locator(".history").inner_text()
    assert page.locator("script").count() == 2
    assert page.locator("main img").count() == 0
    assert page.complaints == []


def test_keys_mean_what_they_say_where_classes_are_called_so(
    chromium: Any, start: Callable[..., Program], tmp_path: Path
) -> None:
    rows = [(f"r{k}", f"the text of words number {k}", ("skip", "unusable")[k % 2]) for k in range(20)]
    file = write_csv(tmp_path / "texts.csv", ("id", "text", "label"), rows)
    page = opened(chromium, start(file))
    for key in ("Delete", "PageDown"):
        with page.expect_navigation():
            page.keyboard.press(key)
    with sqlite3.connect(f"{file}.review.sqlite") as db:
        kinds = [row[0] for row in db.execute("SELECT kind FROM verdicts ORDER BY v")]
    db.close()
    assert kinds == ["unusable", "skip"]
    assert page.complaints == []
