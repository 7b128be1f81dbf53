"""Reports in Chromium: no requests, no errors, readable on a phone, in dark mode and in print."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metalabelnet.report import make_report
from report_runs import HOSTILE, train_run, write_run

pytestmark = pytest.mark.browser


def thousand_classes(folder: Path) -> list[Path]:
    return [write_run(folder / "run", tuple(f"class {k}" for k in range(1000)), rows=3000)]


def single_epoch(folder: Path) -> list[Path]:
    return [write_run(folder / "run", ("a", "b"), epochs=1)]


def hostile_names(folder: Path) -> list[Path]:
    return [write_run(folder / "<img src=x onerror=alert(1)>", HOSTILE)]


def hostile_samples(folder: Path) -> list[Path]:
    """Texts and ids with markup in them."""
    lines = ["id,text,label,ok"]
    for k in range(64):
        words = " ".join(word for j, word in enumerate(("one", "two", "four", "eight", "more", "most")) if k >> j & 1)
        hostile_text = HOSTILE[k % 3].replace('"', '""')
        lines.append(f'"{hostile_text} {k}","{words} {hostile_text}",{"ab"[k % 2]},{int(k < 20)}')
    (folder / "texts.csv").write_text("\n".join(lines), encoding="utf-8")
    return [train_run(folder / "run", "texts.csv", clean_column="ok", clean="all", method="cross-entropy", text="text")]


def several_seeds(folder: Path) -> list[Path]:
    return [write_run(folder / f"seed{k}", tuple("abcdefghijklmnopqrst"), seed=k) for k in range(3)]


def images(folder: Path) -> list[Path]:
    x = np.random.default_rng(0).integers(0, 255, (60, 50, 30, 3), dtype=np.uint8)
    np.savez(folder / "gone.npz", x_train=x, y_train=np.zeros(60, np.int64), classes=np.array(["a", "b"]))
    return [write_run(folder / "run", ("a", "b"))]


@pytest.mark.parametrize(
    "make_folders",
    [
        *(pytest.param(make, marks=pytest.mark.slow) for make in (thousand_classes, single_epoch, hostile_names)),
        *(hostile_samples, several_seeds, images),
    ],
)
def test_page_opens_without_errors(
    make_folders: Any, chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "report.html"
    file.write_text(make_report(make_folders(tmp_path)), encoding="utf-8")
    context = chromium.new_context()
    for width, scheme, dark in ((360, "light", False), (360, "dark", True), (1280, "light", False)):
        page, errors, requests = context.new_page(), [], []
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        page.on("console", lambda message, errors=errors: errors.append(message.text))
        page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
        page.on("dialog", lambda dialog, errors=errors: errors.append(dialog.message))
        page.on("request", lambda request, requests=requests: requests.append(request.url))
        page.goto(file.as_uri())
        assert errors == []
        assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        assert page.locator("img").count() == (30 if make_folders is images else 0)
        assert page.locator("h2").last.is_visible()
        assert page.get_by_text("Learning curves").first.is_visible()
        assert (brightness(page, "background-color") < 60) == dark
        assert (brightness(page, "color") > 180) == dark
        page.emulate_media(media="print")
        assert brightness(page, "background-color") > 250  # print is white in dark mode too
        assert len(page.pdf()) > 10_000
        page.close()
    context.close()


def brightness(page: Any, prop: str) -> float:
    """The mean of red, green and blue of a color of the page."""
    color = page.evaluate(f"getComputedStyle(document.body).getPropertyValue('{prop}')")
    return sum(map(float, color.removeprefix("rgb(").removesuffix(")").split(","))) / 3
