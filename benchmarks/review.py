"""How long the review page takes on a large list: opening it, filtering it, and writing a verdict, on the server.

    python benchmarks/review.py [--rows 1000000]

The file is made up: a million samples of 100 classes in 20,000 pairs of classes, 10,000 of them judged. Each request
goes through the whole application (guard, SQL, templates) in one process, without a network. What is promised: a page
of the list in 300 ms, a verdict in 50 ms.
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
from metalabelnet.review.source import SampleRow, ReviewSource
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Iterator

CLASSES = tuple(f"class {k}" for k in range(100))
HOST = "http://127.0.0.1:5000"
LIMITS = {"list": 300.0, "verdict": 50.0}


class MadeUp(ReviewSource):
    """A run over texts that nobody wrote."""

    def samples(self) -> Iterator[SampleRow]:
        chance = random.Random(0)
        for k in range(len(self.ids)):
            given, label = chance.randrange(-1, 100), chance.randrange(100)
            label = given if given >= 0 and chance.random() < 0.7 else label
            suspicion = -1.0 if given < 0 else chance.random()
            yield SampleRow(
                n=chance.getrandbits(62),
                position=k,
                id=f"sample-{k:07d}.txt",
                split="train",
                given=given,
                label=label,
                confidence=chance.random(),
                suspect=int(suspicion > 0.7),
                suspicion=suspicion,
                informativeness=chance.random(),
                probabilities="[[1, 0.7], [2, 0.2], [3, 0.1]]",
            )


def timed(call, times: int) -> list[float]:
    took = []
    for k in range(times):
        start = time.perf_counter()
        answer = call(k)
        took.append(1000 * (time.perf_counter() - start))
        assert answer.status_code in (200, 303), answer.text
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    texts = ["a text of a few words"] * rows
    with tempfile.TemporaryDirectory() as home:
        source = MadeUp(
            data="made-up",
            run=Path(home),
            classes=CLASSES,
            contents=SampleDisplay(kind="text", items=texts),
            ids=range(rows),  # type: ignore[arg-type]
            given=(),
            splits={},
            clean_labels={},
            options=(),
            named=("made-up",),
            fingerprint="made up",
        )
        start = time.perf_counter()
        store = ReviewStore(Path(home) / "review.sqlite")
        store.fill(source)
        size = store.path.stat().st_size / 2**20
        print(f"{rows:,} rows read in, once: {time.perf_counter() - start:.1f} s, {size:.0f} MiB")
        numbers = [
            row[0] for row in store.connection().execute("SELECT n FROM samples ORDER BY suspicion DESC LIMIT 12000")
        ]
        store.connection().execute("PRAGMA synchronous = OFF")  # for the preparation alone
        for k, n in enumerate(numbers[:10_000]):
            how = {"page": "clean", "blind": True, "sampling": "random"} if k % 2 else {}
            decide(store, Verdict(n=n, kind="label", label=k % 100, **how), seen=0)
        store.close()
        client = TestClient(ReviewApp(source, store).guarded(5000, "t"), base_url=HOST, follow_redirects=False)
        client.get("/?token=t")
        fresh = iter(numbers[10_000:])
        headers = {"Origin": HOST}

        def verdict(_k: int, **more: str):
            fields = {"n": next(fresh), "seen": 0, "action": "choose", "class": "class 7", **more}
            return client.post("/verdict", data=fields, headers=headers)

        lists = {
            "suspects, the first page": "/",
            "all rows": "/?show=all&verdict=any",
            "one at a time": "/?view=one",
            "of a class": "/?given=class+5&show=all&verdict=any",
            "suggested a class": "/?label=class+5&show=all",
            "a pair of classes": "/?given=class+5&label=class+9&show=all",
            "a narrow confidence": "/?show=all&least=50&most=50.01&verdict=any",
            "confidence nobody has": "/?show=all&least=99.99999&most=100&verdict=any",
            "decided": "/?verdict=decided&show=all",
            "unusable, of which there are none": "/?verdict=unusable&show=all",
            "deep in the list": f"/?show=all&after=0.0001,{numbers[0]}",
            "the clean set's next sample": "/clean",
            "take it away": "/export",
        }
        worst = {"list": 0.0, "verdict": 0.0}
        print(f"{'':36}  first   median   worst  (ms)")
        for name, address in lists.items():
            took = timed(lambda _k, address=address: client.get(address), 7)
            worst["list"] = max(worst["list"], *took)
            print(f"{name:36} {took[0]:6.1f}   {statistics.median(took):6.1f}  {max(took):6.1f}")
        for name, more in (
            ("a verdict in the grid", {"answer": "card"}),
            ("a verdict one at a time", {}),
            ("a verdict for the clean set", {"page": "clean", "sampling": "random", "blind": "1"}),
        ):
            took = timed(lambda k, more=more: verdict(k, **more), 100)
            worst["verdict"] = max(worst["verdict"], statistics.quantiles(took, n=20)[-1])
            print(f"{name:36} {took[0]:6.1f}   {statistics.median(took):6.1f}  {max(took):6.1f}")
    for what, limit in LIMITS.items():
        kept = "kept" if worst[what] < limit else "NOT KEPT"
        print(f"{what}: {limit:.0f} ms are {kept} ({worst[what]:.1f}; of verdicts 19 in 20)")
    return int(any(worst[what] >= limit for what, limit in LIMITS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
