"""Reports in a real browser: nothing loaded, nothing complained of, readable on a phone, in the dark and on paper."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folders import HOSTILE, run, write_run
from metalabelnet.report import make_report

pytestmark = pytest.mark.browser


def one_of_a_thousand(folder: Path) -> list[Path]:
    return [write_run(folder / "run", tuple(f"class {k}" for k in range(1000)), rows=3000)]


def one_epoch(folder: Path) -> list[Path]:
    return [write_run(folder / "run", ("a", "b"), epochs=1)]


def hostile(folder: Path) -> list[Path]:
    return [write_run(folder / "<img src=x onerror=alert(1)>", HOSTILE)]


def hostile_samples(folder: Path) -> list[Path]:
    """Texts and ids, from the data itself."""
    lines = ["id,text,label,ok"]
    for k in range(64):
        words = " ".join(word for j, word in enumerate(("one", "two", "four", "eight", "more", "most")) if k >> j & 1)
        nasty = HOSTILE[k % 3].replace('"', '""')
        lines.append(f'"{nasty} {k}","{words} {nasty}",{"ab"[k % 2]},{int(k < 20)}')
    (folder / "texts.csv").write_text("\n".join(lines), encoding="utf-8")
    return [run(folder / "run", "texts.csv", clean_column="ok", clean=0, method="cross-entropy", text="text")]


def several(folder: Path) -> list[Path]:
    return [write_run(folder / f"seed{k}", tuple("abcdefghijklmnopqrst"), seed=k) for k in range(3)]


def pictures(folder: Path) -> list[Path]:
    x = np.random.default_rng(0).integers(0, 255, (60, 50, 30, 3), dtype=np.uint8)
    np.savez(folder / "gone.npz", x_train=x, y_train=np.zeros(60, np.int64), classes=np.array(["a", "b"]))
    return [write_run(folder / "run", ("a", "b"))]


@pytest.mark.parametrize("make", [one_of_a_thousand, one_epoch, hostile, hostile_samples, several, pictures])
def test_a_page_opens(make: Any, chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "report.html"
    file.write_text(make_report(make(tmp_path)), encoding="utf-8")
    for width, scheme, dark in ((360, "light", False), (360, "dark", True), (1280, "light", False)):
        context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page, said, asked = context.new_page(), [], []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("dialog", lambda dialog, said=said: said.append(dialog.message))
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(file.as_uri())
        assert said == []
        assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        assert page.locator("img").count() == (30 if make is pictures else 0)
        assert page.locator("h2").last.is_visible()
        assert page.get_by_text("Learning curves").first.is_visible()
        assert (brightness(page, "background-color") < 60) == dark
        assert (brightness(page, "color") > 180) == dark
        page.emulate_media(media="print")
        assert brightness(page, "background-color") > 250  # paper is white, whatever the screen is
        assert len(page.pdf()) > 10_000
        context.close()


def brightness(page: Any, what: str) -> float:
    """The mean of red, green and blue of the page itself."""
    color = page.evaluate(f"getComputedStyle(document.body).getPropertyValue('{what}')")
    return sum(map(float, color.removeprefix("rgb(").removesuffix(")").split(","))) / 3
