"""Run folders for report tests (trained in a fraction of a second, or written), and a parser of report pages."""

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from metalabelnet.report import make_report
from metalabelnet.train import RunFolder, make_run, train

QUICK: dict[str, Any] = {
    "method": "metalabelnet",
    "epochs": 3,
    "warmup": 1,
    "batch_size": 16,
    "lr": 0.05,
    "device": "cpu",
}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title>&amp;",
    "ü – 文 \u202eabc",
    "x" * 5000,
    "javascript:alert('1')",
    "nul \x00 bell \x07",
)
VOID_ELEMENTS = {"meta", "img", "br"}
URL_ATTRIBUTES = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


def train_run(folder: Path, data: str, **changes: Any) -> Path:
    """Train a tiny run in the folder."""
    train(make_run(data, recipe="paper", **(QUICK | changes)), folder=folder)
    return folder


def write_run(folder: Path, classes: tuple[str, ...], *, rows: int = 60, epochs: int = 3, seed: int = 0) -> Path:
    """Write the folder of a finished run without training; the given label of every third row is wrong."""
    random = np.random.default_rng(seed)
    run = make_run("gone.npz", recipe="paper", method="cross-entropy", noise="none", epochs=epochs, warmup=0, seed=seed)
    files = RunFolder(folder)
    files.create(run, classes=classes, shape=[4], bytes=False, own_net=None, data_digest="")
    true = random.integers(0, len(classes), rows)
    given = np.where(np.arange(rows) % 3 == 0, (true + 1) % len(classes), true)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", "id", "given", "label", "confidence", "suspect", "suspicion", "true"])
    for k in range(rows):
        wrong = int(given[k] != true[k])
        suspicion = f"{0.5 * wrong + random.random() / 2:.6f}"
        writer.writerow([k, str(k), classes[given[k]], classes[true[k]], "0.900000", wrong, suspicion, ""])
    files.write("labels.csv", text.getvalue())
    files.write_metrics(
        [
            {
                "epoch": e,
                "phase": "only",
                "candidate": True,
                "lr": 0.1,
                "loss": 1 / (1 + e),
                "clean_accuracy": 50.0 + e,
            }
            | {"clean_loss": 1.0, "test_accuracy": 40.0 + e + seed, "seconds": 0.1}
            for e in range(epochs)
        ]
    )
    hits = [[int(k), int(k), int((true == k).sum())] for k in np.unique(true)]
    files.write("confusion.json", json.dumps({"part": "test", "counts": [*hits, [0, len(classes) - 1, 7]]}))
    files.write_json(
        "summary.json",
        {
            "method": "cross-entropy",
            "dataset": "gone.npz",
            "noise": "none",
            "noise_rate": None,
            "seed": seed,
            "epochs": epochs,
            "selected_epoch": epochs - 1,
            "clean_accuracy": 87.654321,
            "test_accuracy": 76.54321 + seed,
            "test_accuracy_last": 70.1,
            "macro_f1": 71.2,
            "ece": 3.3,
            "class_accuracy": {name: 100.0 * k / len(classes) for k, name in enumerate(classes)},
            "samples": {"train": rows, "clean": 8, "validation": 2, "test": 30},
            "unlabeled": 0,
            "suspects": int((given != true).sum()),
            "seconds": 1.5,
        },
    )
    return folder


class ReportPage(HTMLParser):
    """A parsed page. Asserts that elements are closed, nothing is loaded from elsewhere, and the page is below 5 MB."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.content = text
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(text.encode()) < 5_000_000

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object", "embed", "form", "base")
        self.elements.append((tag, dict(attrs)))
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "style"
            if name in URL_ATTRIBUTES:
                assert value is not None
                assert value.startswith(("data:image/png;base64,", "data:image/jpeg;base64,", "#")), value[:80]
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data
        elif data.strip():
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def images(self) -> list[str]:
        return [str(attributes["src"]) for tag, attributes in self.elements if tag == "img"]

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def parse_report(*folders: Path) -> ReportPage:
    return ReportPage(make_report(folders))
