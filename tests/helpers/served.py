"""A page as a browser sees it, without one: Starlette's test client, with the cookie and the Origin of the page."""

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
class Served:
    source: ReviewSource
    store: ReviewStore
    client: TestClient  # one that has opened the address with the token
    stranger: TestClient  # one that has not

    def get(self, address: str, **more: Any) -> Any:
        return self.client.get(address, follow_redirects=False, **more)

    def post(self, address: str, **fields: Any) -> Any:
        return self.client.post(address, data=fields, follow_redirects=False, headers={"Origin": HOST})

    def rows(self, condition: str = "1", *values: Any) -> list[Any]:
        return self.store.connection().execute(f"SELECT * FROM samples WHERE {condition}", values).fetchall()

    def row(self, n: int) -> Any:
        return self.rows("n = ?", n)[0]

    def current_verdicts(self) -> dict[int, tuple[str, int | None]]:
        asked = "SELECT n, kind, label FROM current_verdicts"
        return {row["n"]: (row["kind"], row["label"]) for row in self.store.connection().execute(asked)}


def serve(
    where: str | Path, *, data: str | None = None, clean: str | None = None, db: Path | None = None, **read_options: str
) -> Served:
    source = sources.of(str(where), ReadOptions(**read_options), data=data, clean=clean)
    store = ReviewStore(db or source.database)
    store.fill(source)
    app = ReviewApp(source, store).guarded(5000, TOKEN)
    known, stranger = (TestClient(app, base_url=HOST) for _ in range(2))
    assert known.get(f"/?token={TOKEN}").status_code == 200
    return Served(source=source, store=store, client=known, stranger=stranger)


def cards(html: str) -> list[int]:
    """The numbers of the samples on a page, in order."""
    return [int(n) for n in re.findall(r'<article class="card[^"]*" id="s(\d+)"', html)]


def field(html: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', html)
    assert found, name
    return found[1]
