"""Response times of the review page with a million samples: lists, filters and verdicts.

    python benchmarks/review.py [--rows 1000000]

The samples are synthetic: 100 classes, 10,000 verdicts. Each request goes through the complete application (access
control, SQL, templates) in one process, without a network. Targets: 300 ms for a list, 50 ms for a verdict, 2 s for the
corrected labels of 100,000 samples.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.testclient import TestClient

from metalabelnet.review.app import ReviewApp
from metalabelnet.review.sample_display import SampleDisplay
from metalabelnet.review.source import ReviewSource, SampleRow
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, add_verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

CLASSES = tuple(f"class {k}" for k in range(100))
HOST = "http://127.0.0.1:5000"
TARGET_MS = {"list": 300.0, "verdict": 50.0, "export of 100,000 labels": 2000.0}


class SyntheticSource(ReviewSource):
    """A run on random texts."""

    fingerprint = "synthetic"  # nothing to hash: the samples are drawn

    def samples(self) -> Iterator[SampleRow]:
        rng = random.Random(0)
        for k in range(len(self.ids)):
            given, label = rng.randrange(-1, 100), rng.randrange(100)
            label = given if given >= 0 and rng.random() < 0.7 else label
            suspicion = -1.0 if given < 0 else rng.random()
            yield SampleRow(
                n=rng.getrandbits(62),
                position=k,
                id=f"sample-{k:07d}.txt",
                split="train",
                given=given,
                label=label,
                confidence=rng.random(),
                suspect=int(suspicion > 0.7),
                suspicion=suspicion,
                informativeness=rng.random(),
                probabilities="[[1, 0.7], [2, 0.2], [3, 0.1]]",
            )


def measure_ms(call, repeats: int) -> list[float]:
    milliseconds = []
    for k in range(repeats):
        start = time.perf_counter()
        response = call(k)
        milliseconds.append(1000 * (time.perf_counter() - start))
        assert response.status_code in (200, 303), response.text
    return milliseconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    texts = ["a text of a few words"] * rows
    with tempfile.TemporaryDirectory() as home:
        source = SyntheticSource(
            data="synthetic",
            run=Path(home),
            classes=CLASSES,
            display=SampleDisplay(kind="text", items=texts),
            ids=range(rows),  # type: ignore[arg-type]
            given=(),
            splits={},
            clean_labels={},
            train_arguments=(),
            review_arguments=("synthetic",),
        )
        start = time.perf_counter()
        store = ReviewStore(Path(home) / "review.sqlite")
        store.import_samples(source)
        size = store.path.stat().st_size / 2**20
        print(f"{rows:,} rows imported: {time.perf_counter() - start:.1f} s, {size:.0f} MiB")
        numbers = [
            row[0] for row in store.connection().execute("SELECT n FROM samples ORDER BY suspicion DESC LIMIT 12000")
        ]
        store.connection().execute("PRAGMA synchronous = OFF")  # for the preparation only
        for k, n in enumerate(numbers[:10_000]):
            options = {"page": "clean", "blind": True, "sampling": "random"} if k % 2 else {}
            add_verdict(store, Verdict(n=n, kind="label", label=k % 100, **options), seen=0)
        store.close()
        client = TestClient(ReviewApp(source, store).guarded(5000, "t"), base_url=HOST, follow_redirects=False)
        client.get("/?token=t")
        undecided = iter(numbers[10_000:])
        headers = {"Origin": HOST}

        def verdict(_k: int, **more: str):
            fields = {"n": next(undecided), "seen": 0, "action": "choose", "class": "class 7", **more}
            return client.post("/verdict", data=fields, headers=headers)

        lists = {
            "suspects, first page": "/",
            "all rows": "/?show=all&verdict=any",
            "one at a time": "/?view=one",
            "given class": "/?given=class+5&show=all&verdict=any",
            "corrected class": "/?label=class+5&show=all",
            "pair of classes": "/?given=class+5&label=class+9&show=all",
            "narrow confidence range": "/?show=all&min_confidence=50&max_confidence=50.01&verdict=any",
            "empty confidence range": "/?show=all&min_confidence=99.99999&max_confidence=100&verdict=any",
            "decided": "/?verdict=decided&show=all",
            "unusable (none)": "/?verdict=unusable&show=all",
            "deep in the list": f"/?show=all&after=0.0001,{numbers[0]}",
            "clean set page": "/clean",
            "export page": "/export",
        }
        worst = dict.fromkeys(TARGET_MS, 0.0)
        print(f"{'':36}  first   median   worst  (ms)")
        for name, address in lists.items():
            times = measure_ms(lambda _k, address=address: client.get(address), 7)
            worst["list"] = max(worst["list"], *times)
            print(f"{name:36} {times[0]:6.1f}   {statistics.median(times):6.1f}  {max(times):6.1f}")
        for name, more in (
            ("verdict in the grid", {"response": "card"}),
            ("verdict in the single view", {}),
            ("verdict on the clean set page", {"page": "clean", "sampling": "random", "blind": "1"}),
        ):
            times = measure_ms(lambda k, more=more: verdict(k, **more), 100)
            worst["verdict"] = max(worst["verdict"], statistics.quantiles(times, n=20)[-1])
            print(f"{name:36} {times[0]:6.1f}   {statistics.median(times):6.1f}  {max(times):6.1f}")
        times = measure_ms(lambda _k: client.get("/export/labels.csv"), 3)
        worst["export of 100,000 labels"] = max(times) * 100_000 / rows
        print(f"{'corrected labels (CSV)':36} {times[0]:6.1f}   {statistics.median(times):6.1f}  {max(times):6.1f}")
    for name, target in TARGET_MS.items():
        verdict_text = "met" if worst[name] < target else "NOT MET"
        print(f"{name}: target of {target:.0f} ms {verdict_text} ({worst[name]:.1f} ms; 95th percentile for verdicts)")
    return int(any(worst[name] >= target for name, target in TARGET_MS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
