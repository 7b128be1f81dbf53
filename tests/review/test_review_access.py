"""Accessibility of the page: roles and names, keyboard without JavaScript, narrow windows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from review_browser import ReviewServer, open_page, press_and_wait, wait_until
from user_data import write_csv

pytestmark = pytest.mark.browser
LONG_WORD = "Donaudampfschifffahrtsgesellschaft" * 12


def tab_to(page: Any, role: str, name: str, max_presses: int = 200) -> None:
    """Press Tab until the element with this role and name has the focus."""
    for _ in range(max_presses):
        page.keyboard.press("Tab")
        if page.get_by_role(role, name=name, exact=True).and_(page.locator(":focus")).count():
            return
    pytest.fail(f"Tab does not lead to {role} {name!r}")


def test_roles_and_names(chromium: Any, start: Callable[..., ReviewServer]) -> None:
    """Roles and names, as Chromium gives them to a screen reader."""
    server = start()
    page = open_page(chromium, server)
    page.goto(f"{server.base}/?show=labeled")
    pages = page.get_by_role("navigation", name="Pages")
    for name, current in (("Check suspects", "page"), ("Build a clean set", None), ("Export", None)):
        assert pages.get_by_role("link", name=name, exact=True).get_attribute("aria-current") == current
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("heading", name="Check suspects", level=1).count() == 1
    samples = page.get_by_role("region", name="Samples").get_by_role("article")
    card = samples.first
    name = str(card.get_by_role("heading", level=2).text_content()).removeprefix("Sample ")
    given, corrected = (part.inner_text() for part in card.locator(".labels b").all())
    assert page.get_by_role("article", name=f"Sample {name}", exact=True).count() == 1
    assert card.get_by_role("img", name=name, exact=True).count() == 1
    probabilities = card.get_by_role("list", name="Probabilities").get_by_role("listitem")
    assert f"{corrected} " in " ".join(probabilities.all_inner_texts())
    assert all("%" in text for text in probabilities.all_inner_texts())
    for result in (
        f"Keep {given}",
        "Unusable",
        "Skip",
    ):  # shortcuts are not part of the name
        assert card.get_by_role("button", name=result, exact=True).get_attribute("aria-keyshortcuts")
    assert card.get_by_role("combobox", name="Another class: type to search", exact=True).count() == 1
    assert page.get_by_role("button", name="Undo last", exact=True).count() == 1
    assert page.get_by_role("link", name="One at a time", exact=True).count() == 1
    filters = page.get_by_role("form", name="Filters")
    for role, label in (("combobox", "Given"), ("combobox", "Verdict"), ("spinbutton", "Confidence from")):
        assert filters.get_by_role(role, name=label).count() == 1
    press_and_wait(page, "k")
    announcement = page.locator("#announcement")
    wait_until(lambda: announcement.text_content() == f"Sample {name}: verdict {given}")
    assert page.get_by_role("status").and_(announcement).count() == 1

    page.goto(f"{server.base}/clean")
    form_field = page.get_by_role("combobox", name="Class: type to search", exact=True)
    assert form_field.evaluate("field => field === document.activeElement")
    assert page.get_by_role("article", name="Which class is it?").get_by_role("img", name="sample to label").count()
    assert page.get_by_role("form", name="Settings").get_by_role("spinbutton", name="Samples per class").count() == 1
    assert page.get_by_role("checkbox", name="hide labels (blind)").is_checked()
    progress = page.get_by_role("region", name="Confirmed samples of each class").get_by_role("progressbar")
    assert progress.count() == 4
    assert page.get_by_role("progressbar", name="birne", exact=True).count() == 1
    page.goto(f"{server.base}/?min_confidence=x")
    assert "is not a percentage from 0 to 100" in page.get_by_role("alert").inner_text()


def test_keyboard_without_javascript(chromium: Any, start: Callable[..., ReviewServer], tmp_path: Path) -> None:
    server = start()
    page = open_page(chromium, server, java_script_enabled=False)
    page.goto(f"{server.base}/?show=labeled&view=one")
    page.keyboard.press("Tab")
    assert page.get_by_role("link", name="Skip to the samples").and_(page.locator(":focus")).count() == 1
    first = page.get_by_role("article").get_attribute("id")
    given = page.locator(".labels b").first.inner_text()
    tab_to(page, "button", f"Keep {given}")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.get_by_role("article").get_attribute("id") != first
    tab_to(page, "combobox", "Another class: type to search")
    page.keyboard.type("birne")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.goto(f"{server.base}/?show=all&verdict=decided")
    assert page.get_by_role("article").count() == 2
    assert page.locator(f"#{first} .verdict b").inner_text() == given
    tab_to(page, "combobox", "Verdict")  # the filters are open because one is set
    page.keyboard.type("skip")
    tab_to(page, "button", "Filter")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "verdict=skipped" in page.url
    assert page.get_by_role("article").count() == 0

    page.goto(f"{server.base}/clean")
    tab_to(page, "button", "birne")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "from 1 random samples judged blind" in page.locator("#noise-rate").inner_text()
    tab_to(page, "link", "Export")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    for name in ("Clean set (CSV)", "Corrected labels (CSV)", "Verdicts (CSV)"):
        with page.expect_download() as download:
            tab_to(page, "link", name)
            page.keyboard.press("Enter")
        download.value.save_as(tmp_path / "out.csv")
        assert (tmp_path / "out.csv").read_text().startswith(("id,label,from\n", "id,given,label", "verdict,time,id"))


def test_filters_by_keyboard(chromium: Any, start: Callable[..., ReviewServer]) -> None:
    """All filters of the form at once."""
    server = start()
    page = open_page(chromium, server)
    page.goto(server.base)
    summary = page.locator(".filter-box summary")
    summary.focus()
    page.keyboard.press("Enter")
    form = page.get_by_role("form", name="Filters")
    assert form.is_visible()
    for name, value in (("Show", "all"), ("Verdict", "any"), ("Split", "training")):
        form.get_by_role("combobox", name=name, exact=True).select_option(label=value)
    form.get_by_role("combobox", name="Given").fill("birne")
    form.get_by_role("combobox", name="Corrected").fill("bir")
    form.get_by_role("spinbutton", name="Confidence from").fill("20")
    form.get_by_role("spinbutton", name="Confidence to").fill("99.5")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.get_by_role("article").count() > 0
    for text in page.locator(".labels").all_inner_texts():
        assert text.startswith("given birne, corrected birne (")
        assert 19.5 <= float(text.partition("(")[2].partition("\xa0")[0]) <= 99.5
    form.get_by_role("combobox", name="Split").select_option(label="clean set")
    for name in ("Given", "Corrected"):
        form.get_by_role("combobox", name=name).fill("")
    form.get_by_role("spinbutton", name="Confidence from").fill("")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.get_by_role("article").count() == 24
    assert page.errors == []


@pytest.mark.parametrize("kind", ["text", pytest.param("table", marks=pytest.mark.slow)])
def test_long_words_in_a_narrow_window(
    chromium: Any, start: Callable[..., ReviewServer], tmp_path: Path, kind: str
) -> None:
    rows = [(f"{LONG_WORD} and more words {k}", f"{LONG_WORD[:60]}{k % 2}", k) for k in range(12)]
    file = write_csv(tmp_path / "mine.csv", (LONG_WORD[:80] if kind == "table" else "text", "label", "n"), rows)
    page = open_page(
        chromium,
        start(file, *(("--features", f"{LONG_WORD[:80]},n") if kind == "table" else ())),
        viewport={"width": 320, "height": 600},
    )
    page.wait_for_selector(".card")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.type(LONG_WORD[:60] + "1")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "from 1 random samples judged blind" in page.locator("#noise-rate").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.errors == []
