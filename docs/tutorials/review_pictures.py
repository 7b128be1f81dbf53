"""Take the screenshots of the review page while building a clean set from a folder of noisy images.

    python docs/tutorials/review_pictures.py          (needs playwright and Chromium)

A quarter of 400 drawings are in a wrong folder. A simulated reviewer, who knows the true classes, operates the page in
Chromium by keyboard: it labels drawings blind until each class has six clean samples, trains with them, checks the
suspects of that run, continues until each class has twenty, and trains again. Each clean set is used by several methods
with three seeds. All runs are tested on 300 other drawings.
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

FOLDER = Path(__file__).parent
SCHEDULE = "--epochs 10 --warmup 4"  # as in examples/images.py: 30 epochs memorize so few labels
SUSPECTS = 30
METHODS = "metalabelnet,metalabelnet-plus,fine-tune"


def true_class(number: int) -> str:
    """The class that examples/images.py draws under this number."""
    return ("bar", "cross", "ring")[number % 3]


@contextmanager
def review(browser: Browser, source: str) -> Iterator[tuple[Page, str]]:
    """Run `metalabelnet review SOURCE`; yields its page and the address without the token."""
    print(f"$ metalabelnet review {source}", flush=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "metalabelnet", "review", source], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        page = browser.new_page(viewport={"width": 1100, "height": 700})
        page.goto(address)
        page.wait_for_selector("h1")
        yield page, address.partition("/?")[0]
        page.close()
    finally:
        process.terminate()
        process.communicate()


def true_classes(file: str) -> dict[str, str]:
    """The true class of each sample by its number on the page."""
    with sqlite3.connect(file) as db:
        return {f"s{n}": true_class(int(Path(name).stem)) for n, name in db.execute("SELECT n, id FROM samples")}


def check_suspects(page: Page, base: str, answers: dict[str, str]) -> None:
    """Check suspects one at a time, most suspicious first."""
    page.goto(base)
    page.wait_for_load_state("networkidle")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=FOLDER / "review-suspects.png")
    page.goto(f"{base}/?view=one&show=labeled")
    for _ in range(SUSPECTS):
        with page.expect_navigation():
            page.keyboard.press("c")
            page.keyboard.type(answers[str(page.locator(".card").get_attribute("id"))])
            page.keyboard.press("Enter")


def build_clean_set(page: Page, base: str, answers: dict[str, str], target: int) -> None:
    """Label samples blind until each class has the target number."""
    page.goto(f"{base}/clean?target={target}&sampling=random&blind=1")
    while page.locator(".card").count():
        with page.expect_navigation():
            page.keyboard.type(answers[str(page.locator(".card").get_attribute("id"))])
            page.keyboard.press("Enter")
        if "from 15 random" in page.locator("#noise-rate").inner_text():
            page.wait_for_load_state("networkidle")
            page.screenshot(path=FOLDER / "review-clean-set.png")
    print(page.locator("#noise-rate").inner_text(), flush=True)


def run(command: str) -> None:
    """Run a `metalabelnet` command."""
    print(f"$ metalabelnet {command}", flush=True)
    if main(command.split()):
        sys.exit(1)


def draw_folders(home: Path) -> None:
    """Write the noisy drawings of the example and 300 test drawings."""
    example = runpy.run_path(str(FOLDER.parents[1] / "examples" / "images.py"))
    example["make"](home)
    random = np.random.default_rng(7)
    for number in range(300):
        file = home / "test" / true_class(number) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        example["draw"](true_class(number), random).save(file)


if __name__ == "__main__":
    home = Path(tempfile.mkdtemp())
    draw_folders(home)
    os.chdir(home)
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with review(chromium, "pictures") as (page, base):
            build_clean_set(page, base, true_classes("pictures.review.sqlite"), 6)
        run("review pictures --export clean -o clean.csv")
        run(f"train pictures --clean clean.csv --test test --method fine-tune {SCHEDULE} --out runs/first")
        with review(chromium, "runs/first") as (page, base):
            answers = true_classes("runs/first/review.sqlite")
            check_suspects(page, base, answers)
            build_clean_set(page, base, answers, 20)
        chromium.close()
    run("review runs/first --export clean -o more.csv")
    run(f"train pictures --clean more.csv --test test --method fine-tune {SCHEDULE} --out runs/second")
    for clean in ("clean", "more"):
        options = f"--methods {METHODS} {SCHEDULE} --seeds 3 --out runs/{clean}"
        run(f"compare pictures --clean {clean}.csv --test test {options}")
