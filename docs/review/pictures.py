"""Make the pictures of the review page, by the whole sampling from a folder of noisy images to a better model.

    python docs/review/pictures.py          (needs playwright, and Debian's package chromium)

A quarter of 400 drawings lie in a wrong folder. Somebody who knows what was drawn sits at the page, in Chromium, with
the keyboard alone: judges drawings blind until each class has six, trains with these, checks the suspects of that run
and judges until each class has twenty, and trains again; each clean set by several methods and with three seeds. All
runs are tested on 300 other drawings.
"""

import os
import runpy
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from metalabelnet.cli import main

HERE = Path(__file__).parent
SHORT = "--epochs 10 --warmup 4"  # as in examples/images.py: 30 epochs would learn so few labels by heart
SUSPECTS = 30
METHODS = "metalabelnet,metalabelnet-plus,fine-tune"


def kind_of(number: int) -> str:
    """What examples/images.py drew under that number."""
    return ("bar", "cross", "ring")[number % 3]


@contextmanager
def review(browser: Browser, source: str) -> Iterator[tuple[Page, str]]:
    """The page of `metalabelnet review SOURCE`, and its address without the token."""
    print(f"$ metalabelnet review {source}", flush=True)
    program = subprocess.Popen(
        [sys.executable, "-m", "metalabelnet", "review", source], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    try:
        address = program.stdout.readline().strip()
        page = browser.new_page(viewport={"width": 1100, "height": 700})
        page.goto(address)
        page.wait_for_selector("h1")
        yield page, address.partition("/?")[0]
        page.close()
    finally:
        program.terminate()
        program.communicate()


def right_answers(file: str) -> dict[str, str]:
    """The right class of each sample by its number on the page, which says nothing of it."""
    with sqlite3.connect(file) as db:
        return {f"s{n}": kind_of(int(Path(name).stem)) for n, name in db.execute("SELECT n, id FROM samples")}


def check_suspects(page: Page, base: str, answers: dict[str, str]) -> None:
    """One at a time, the most suspicious first."""
    page.goto(base)
    page.wait_for_load_state("networkidle")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=HERE / "suspects.png")
    page.goto(f"{base}/?view=one&show=labeled")
    for _ in range(SUSPECTS):
        with page.expect_navigation():
            page.keyboard.press("c")
            page.keyboard.type(answers[str(page.locator(".card").get_attribute("id"))])
            page.keyboard.press("Enter")


def build_clean_set(page: Page, base: str, answers: dict[str, str], wanted: int) -> None:
    """Blind, until each class has so many."""
    page.goto(f"{base}/clean?wanted={wanted}&sampling=random&blind=1")
    while page.locator(".card").count():
        with page.expect_navigation():
            page.keyboard.type(answers[str(page.locator(".card").get_attribute("id"))])
            page.keyboard.press("Enter")
        if "from 15 judged" in page.locator("#rate").inner_text():
            page.wait_for_load_state("networkidle")
            page.screenshot(path=HERE / "clean.png")
    print(page.locator("#rate").inner_text(), flush=True)


def run(command: str) -> None:
    print(f"$ metalabelnet {command}", flush=True)
    if main(command.split()):
        sys.exit(1)


def draw_folders(home: Path) -> None:
    """The noisy drawings of the example, and 300 to test on."""
    example = runpy.run_path(str(HERE.parents[1] / "examples" / "images.py"))
    example["make"](home)
    random = np.random.default_rng(7)
    for number in range(300):
        file = home / "test" / kind_of(number) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        example["draw"](kind_of(number), random).save(file)


if __name__ == "__main__":
    home = Path(tempfile.mkdtemp())
    draw_folders(home)
    os.chdir(home)
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with review(chromium, "pictures") as (page, base):
            build_clean_set(page, base, right_answers("pictures.review.sqlite"), 6)
        run("review pictures --export clean -o clean.csv")
        run(f"train pictures --clean clean.csv --test test --method fine-tune {SHORT} --out runs/first")
        with review(chromium, "runs/first") as (page, base):
            answers = right_answers("runs/first/review.sqlite")
            check_suspects(page, base, answers)
            build_clean_set(page, base, answers, 20)
        chromium.close()
    run("review runs/first --export clean -o more.csv")
    run(f"train pictures --clean more.csv --test test --method fine-tune {SHORT} --out runs/second")
    for clean in ("clean", "more"):
        run(
            f"compare pictures --clean {clean}.csv --test test --methods {METHODS} {SHORT} --seeds 3 --out runs/{clean}"
        )
