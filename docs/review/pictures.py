"""Make the pictures of the review page: drawings in folders, a run, the page in Chromium, some verdicts by keyboard.

    python docs/review/pictures.py          (needs playwright, and Debian's package chromium)

It goes the whole way: noisy folders, a run, twelve suspects and blind draws, until each class has twenty, judged on the
page by somebody who knows what was drawn, the clean set taken away, and a run with that; both runs are tested on 300
other drawings.
"""

import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

from metalabelnet.cli import main

HERE = Path(__file__).parent


def kind_of(number: int) -> str:
    """What examples/images.py drew under that number."""
    return ("bar", "cross", "ring")[number % 3]


def right_answers(folder: Path) -> dict[str, str]:
    """The right class of each sample by its number on the page, which says nothing of it."""
    import sqlite3

    with sqlite3.connect(folder / "review.sqlite") as db:
        return {f"s{n}": kind_of(int(Path(name).stem)) for n, name in db.execute("SELECT n, id FROM samples")}


def work(page: Page, base: str, answers: dict[str, str]) -> None:
    """Judge, and take pictures."""
    page.goto(f"{base}/?view=one&show=labeled")
    for _ in range(12):
        kind = answers[str(page.locator(".card").get_attribute("id"))]
        with page.expect_navigation():
            page.keyboard.press("c")
            page.keyboard.type(kind)
            page.keyboard.press("Enter")
    page.goto(f"{base}/?show=labeled")
    page.wait_for_load_state("networkidle")
    page.screenshot(path=HERE / "suspects.png")
    page.goto(f"{base}/clean?wanted=20&way=random&blind=1")
    while page.locator(".card").count():
        kind = answers[str(page.locator(".card").get_attribute("id"))]
        with page.expect_navigation():
            page.keyboard.type(kind)
            page.keyboard.press("Enter")
        if "from 30 judged" in page.locator("#rate").inner_text():
            page.wait_for_load_state("networkidle")
            page.screenshot(path=HERE / "clean.png")


def run(command: str) -> None:
    print(f"$ metalabelnet {command}", flush=True)
    if main(command.split()):
        sys.exit(1)


if __name__ == "__main__":
    home = Path(tempfile.mkdtemp())
    example = runpy.run_path(str(HERE.parents[1] / "examples" / "images.py"))
    example["make"](home)
    random = np.random.default_rng(7)
    for number in range(300):
        file = home / "test" / kind_of(number) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        example["draw"](kind_of(number), random).save(file)
    os.chdir(home)
    run("train pictures --meta checked.csv --test test --out runs/first")
    program = subprocess.Popen(
        [sys.executable, "-m", "metalabelnet", "review", "runs/first"], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    try:
        address = program.stdout.readline().strip()
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1100, "height": 700})
            page.goto(address)
            page.wait_for_selector("h1")
            work(page, address.partition("/?")[0], right_answers(home / "runs" / "first"))
            browser.close()
    finally:
        program.terminate()
        program.communicate()
    run("review runs/first --take clean -o clean.csv")
    run("train pictures --meta clean.csv --test test --out runs/second")
    for name in ("first", "second"):
        summary = json.loads(Path("runs", name, "summary.json").read_text())
        print(f"{name}: test accuracy {summary['test_accuracy']:.2f} %")
