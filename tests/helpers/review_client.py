"""The review page without a browser: Starlette's test client with the cookie and Origin of the page."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from metalabelnet.data import ReadOptions
from metalabelnet.review import source as sources
from metalabelnet.review.app import ReviewApp
from metalabelnet.review.source import ReviewSource
from metalabelnet.review.store import ReviewStore

HOST = "http://127.0.0.1:5000"
TOKEN = "a-token-nobody-guesses"


@dataclass
class ReviewClient:
    """A review page with a client that has its cookie and a stranger that has not."""

    source: ReviewSource
    store: ReviewStore
    client: TestClient
    stranger: TestClient

    def get(self, address: str, **more: Any) -> Any:
        return self.client.get(address, follow_redirects=False, **more)

    def post(self, address: str, **fields: Any) -> Any:
        return self.client.post(address, data=fields, follow_redirects=False, headers={"Origin": HOST})

    def rows(self, condition: str = "1", *values: Any) -> list[Any]:
        return self.store.connection().execute(f"SELECT * FROM samples WHERE {condition}", values).fetchall()

    def row(self, n: int) -> Any:
        return self.rows("n = ?", n)[0]

    def current_verdicts(self) -> dict[int, tuple[str, int | None]]:
        query = "SELECT n, kind, label FROM current_verdicts"
        return {row["n"]: (row["kind"], row["label"]) for row in self.store.connection().execute(query)}


def open_review(
    path: str | Path, *, data: str | None = None, clean: str | None = None, db: Path | None = None, **read_options: str
) -> ReviewClient:
    source = sources.open_source(str(path), ReadOptions(**read_options), data=data, clean=clean)
    store = ReviewStore(db or source.database)
    store.import_samples(source)
    app = ReviewApp(source, store).guarded(5000, TOKEN)
    client, stranger = (TestClient(app, base_url=HOST) for _ in range(2))
    assert client.get(f"/?token={TOKEN}").status_code == 200
    return ReviewClient(source=source, store=store, client=client, stranger=stranger)


def sample_numbers(html: str) -> list[int]:
    """The numbers of the samples on a page, in order."""
    return [int(n) for n in re.findall(r'<article class="card[^"]*" id="s(\d+)"', html)]


def form_field(html: str, name: str) -> str:
    match = re.search(rf'name="{name}" value="([^"]*)"', html)
    assert match, name
    return match[1]
