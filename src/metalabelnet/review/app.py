"""What is answered: pages made of templates, pictures, and files to take away. It works without JavaScript too."""

from __future__ import annotations

import json
import shlex
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from metalabelnet.errors import InputError
from metalabelnet.review import exports, filters, request_forms, verdicts
from metalabelnet.review import clean_set_sampling
from metalabelnet.review.access import AccessGuard
from metalabelnet.review.request_forms import read_form
from metalabelnet.review.verdicts import VerdictConflict, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from metalabelnet.review.source import ReviewSource
    from metalabelnet.review.store import ReviewStore

HERE = Path(__file__).parent
STATIC = {"app.css": "text/css", "app.js": "text/javascript", "htmx.min.js": "text/javascript"}
GRID = 24
FEW_CLASSES = 20  # have a button each
SAMPLINGS = ("random", "informative")
NOTHING = "Nothing to undo: this tab has made no verdict that still stands."
CHANGED = "Another tab has decided on this sample in the meantime. Nothing was written; look again."


class ReviewApp:
    """The pages of one source and its verdicts."""

    def __init__(self, source: ReviewSource, store: ReviewStore) -> None:
        self.source, self.store = source, store
        self.templates = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )

    def guarded(self, port: int, token: str) -> ASGIApp:
        """The application, with the guard in front."""
        get, post = ["GET"], ["POST"]
        routes = [
            Route("/", self._same(self.check), methods=get),
            Route("/clean", self._same(self.clean), methods=get),
            Route("/export", self._same(self.export), methods=get),
            Route("/export/{what}.csv", self._same(self.export_file), methods=get),
            Route("/sample/{n}/{size}", self._same(self.picture), methods=get),
            Route("/static/{name}", self.static, methods=get),
            Route("/favicon.ico", lambda _request: Response(status_code=204), methods=get),
            Route("/verdict", self.decide, methods=post),
            Route("/undo", self.undo, methods=post),
        ]
        app = Starlette(routes=routes, exception_handlers={InputError: self.wrong, sqlite3.Error: self.broken})
        return AccessGuard(app, port=port, token=token)

    def _same(self, answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """The answer, unless another program reads the data in anew before it or while it is made."""

        def checked(request: Request) -> Response:
            self.store.check()
            made = answer(request)
            self.store.check()
            return made

        return checked

    def check(self, request: Request) -> Response:
        """The list of suspects, as a grid or one at a time."""
        if self.source.run is None:
            return RedirectResponse("/clean", 303)
        fields = request.query_params
        which, view = (
            request_forms.read_filter(fields, self.source.classes),
            request_forms.choice(fields, "view", request_forms.VIEWS),
        )
        n = request_forms.whole(fields, "n", 0)
        if n:
            rows = [row for row in [filters.sample(self.store, n)] if row is not None]
        else:
            rows = filters.page(self.store, which, 1 if view == "one" else GRID, request_forms.read_after(fields))
        last = f"{rows[-1]['suspicion']!r},{rows[-1]['n']}" if rows else None
        return self._page(
            "check.html",
            here="check",
            view=view,
            which=which,
            plain=filters.SampleFilter(),
            fields=dict(fields),
            cards=[self._card(row) for row in rows],
            count=filters.count(self.store, which),
            most=filters.MAX_COUNT,
            following=None if last is None else request_forms.address(fields, after=last),
            other=request_forms.address(fields, view="grid" if view == "one" else "one"),
            first=request_forms.address(fields),
            labeled=request_forms.address(fields, show="labeled"),
            snapshots=self._history(rows[0]["n"]) if view == "one" and rows else [],
            message=fields.get("message", "") if fields.get("message", "") in MESSAGES else "",
        )

    def clean(self, request: Request) -> Response:
        """The next sample for the clean set."""
        fields = request.query_params
        if "wanted" in fields:
            wanted = request_forms.whole(fields, "wanted", 10, 1, request_forms.MOST_PER_CLASS)
            seeing = "1" if fields.get("blind") == "1" else "0"
            self.store.set(wanted=str(wanted), sampling=request_forms.choice(fields, "sampling", SAMPLINGS), blind=seeing)
            return RedirectResponse("/clean", 303)
        wanted, sampling, blind = int(self.store.get("wanted", "10")), self.store.get("sampling", SAMPLINGS[0]), self._blind()
        so_far = clean_set_sampling.progress(self.store, len(self.source.classes), wanted)
        sampling = sampling if self.source.run is not None else SAMPLINGS[0]
        again, n = self._drawn_before(request_forms.whole(fields, "n", 0)), None
        if again is not None:
            n, how = again["n"], again["sampling"]
        else:
            n, how = clean_set_sampling.draw(self.store, so_far, sampling), sampling
        row = None if n is None else filters.sample(self.store, n)
        return self._page(
            "clean.html",
            here="clean",
            card=None if row is None else self._card(row, blind=blind),
            progress=so_far,
            per_class=list(zip(self.source.classes, so_far.confirmed, strict=True)),
            sampling=sampling,
            how=how,
            blind=blind,
            buttons=len(self.source.classes) <= FEW_CLASSES,
            message=fields.get("message", "") if fields.get("message", "") in MESSAGES else "",
        )

    def export(self, request: Request) -> Response:
        """What can be taken away, with the commands that do the same and the one that trains with it."""
        confirmed = sum(clean_set_sampling.confirmed(self.store, len(self.source.classes)))
        lacking = [
            name
            for name, number in zip(self.source.classes, self._clean_counts(), strict=True)
            if number < 2  # one to learn from and one to select on
        ]
        elsewhere = () if self.store.path == self.source.database else ("--db", str(self.store.path))
        return self._page(
            "export.html",
            here="export",
            confirmed=confirmed,
            lacking=lacking,
            shell=shlex.join([*self.source.named, *elsewhere]),
            data=shlex.join([self.source.data, *self.source.options]),
        )

    def export_file(self, request: Request) -> Response:
        """One of the files."""
        what = request.path_params["what"]
        if what not in exports.EXPORTS:
            return self._missing()
        drawn = {"drawn": True} if what == "clean" and request.query_params.get("drawn") == "1" else {}
        lines = list(exports.lines(exports.EXPORTS[what](self.store, self.source, **drawn)))
        headers = {"Content-Disposition": f'attachment; filename="{what}.csv"'}
        return StreamingResponse(iter(lines), media_type="text/csv; charset=utf-8", headers=headers)

    def picture(self, request: Request) -> Response:
        """The picture of a sample, by its number alone."""
        number = request.path_params["n"]
        row = (
            filters.sample(self.store, int(number))
            if number.isascii() and number.isdigit() and len(number) < 20
            else None
        )
        if row is None or self.source.contents.kind != "image" or request.path_params["size"] not in ("small", "large"):
            return self._missing()
        try:
            content, kind = self.source.contents.picture(row["position"], request.path_params["size"])
        except InputError as error:
            return Response(f"the picture {error}\n", 404, media_type="text/plain")
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})

    def static(self, request: Request) -> Response:
        """The style and the scripts: these names, and no other file."""
        name = request.path_params["name"]
        if name not in STATIC:
            return self._missing()
        return FileResponse(HERE / "static" / name, media_type=STATIC[name], headers={"Cache-Control": "no-cache"})

    async def decide(self, request: Request) -> Response:
        """Write a verdict down, and go on."""
        form = await read_form(request)
        try:
            return await run_in_threadpool(self._decide, form)
        except VerdictConflict as conflict:
            return self._conflict(form, conflict.n)

    def _decide(self, form: dict[str, str]) -> Response:
        n, seen = request_forms.whole(form, "n", 0), request_forms.whole(form, "seen", 0)
        page = request_forms.choice(form, "page", ("check", "clean"))
        row = filters.sample(self.store, n)
        if row is None:
            return self._missing()
        said, tab = form.get("action", ""), form.get("tab", "")[:40]
        if said == "undo":
            verdicts.undo(self.store, n, seen, tab)
        else:
            kind, label = self._meant(said, form, row)
            sampling = "listed" if page == "check" else request_forms.choice(form, "sampling", SAMPLINGS)
            seen_openly = any(look["page"] == "check" or not look["blind"] for look in verdicts.history(self.store, n))
            blind = page == "clean" and form.get("blind") == "1" and not seen_openly
            verdict = Verdict(n=n, kind=kind, label=label, page=page, blind=blind, sampling=sampling, tab=tab)
            verdicts.decide(self.store, verdict, seen)
        if form.get("answer") == "card":
            row = filters.sample(self.store, n)
            assert row is not None
            return HTMLResponse(self._render("updated_card.html", card=self._card(row), view="grid", fields=form))
        if page == "clean":
            return RedirectResponse("/clean", 303)
        changes = {"n": n} if said == "undo" else {"after": f"{row['suspicion']!r},{n}"}
        return RedirectResponse(request_forms.address(form, **changes), 303)

    async def undo(self, request: Request) -> Response:
        """Undo this tab's last verdict, and show the sample again."""
        form = await read_form(request)
        last = await run_in_threadpool(verdicts.undo_last, self.store, form.get("tab", "")[:40])
        page = request_forms.choice(form, "page", ("check", "clean"))
        if last is None:
            return RedirectResponse(_with_message(page, form, NOTHING), 303)
        if last["page"] == "clean":
            return RedirectResponse(f"/clean?n={last['n']}", 303)
        grid = request_forms.choice(form, "view", request_forms.VIEWS) == "grid"
        return RedirectResponse(request_forms.address(form, **({} if grid else {"n": last["n"]})), 303)

    def _meant(self, said: str, form: dict[str, str], row: sqlite3.Row) -> tuple[str, int | None]:
        """The verdict that a button or a typed class stands for."""
        if said in ("unusable", "skip"):
            return said, None
        if said == "keep" and row["given"] >= 0:
            return "label", row["given"]
        if said == "corrected" and row["label"] >= 0:
            return "label", row["label"]
        if said == "choose":
            return "label", request_forms.find_class(form.get("class", ""), self.source.classes)
        raise InputError(f"{said[:40]!r} is no verdict on this sample")

    def _card(self, row: sqlite3.Row, *, blind: bool = False) -> dict[str, Any]:
        """What a template may know of a sample; blind: what it looks like, and nothing else."""
        kind, position = self.source.contents.kind, row["position"]
        card: dict[str, Any] = {"n": row["n"], "seen": row["seen"], "kind": kind, "blind": blind}
        if kind == "text":
            card["text"] = self.source.contents.text(position)
        elif kind == "table":
            card["cells"] = self.source.contents.cells(position)
        card["decided"] = self._words(row["kind"], row["decided"])
        if blind:
            return card
        names = [*self.source.classes, ""]
        bars = [
            {"name": names[c], "p": p, "given": c == row["given"], "label": c == row["label"]}
            for c, p in json.loads(row["probabilities"])
        ]
        return card | {
            "id": row["id"],
            "given": names[row["given"]],
            "label": names[row["label"]],
            "confidence": row["confidence"],
            "suspicion": row["suspicion"],
            "suspect": row["suspect"],
            "bars": bars,
        }

    def _words(self, kind: str | None, label: int | None) -> str:
        """A verdict in words."""
        if kind is None:
            return ""
        return self.source.classes[label] if label is not None else {"skip": "skipped"}.get(kind, kind)

    def _history(self, n: int) -> list[dict[str, Any]]:
        return [
            {"at": look["at"], "said": self._words(look["kind"], look["label"]), "undone": look["undone"]}
            for look in verdicts.history(self.store, n)
            if look["kind"] != "undo"
        ]

    def _drawn_before(self, n: int) -> sqlite3.Row | None:
        """The last verdict on a sample that was drawn for the clean set and is to be shown again; None for others."""
        return next((look for look in verdicts.history(self.store, n) if look["page"] == "clean"), None) if n else None

    def _blind(self) -> bool:
        return self.store.get("blind", "1") == "1"

    def _clean_counts(self) -> list[int]:
        counts = dict.fromkeys((*self.source.classes, ""), 0)
        rows = exports.clean(self.store, self.source)
        next(rows)
        for _, label, _ in rows:
            counts[label] += 1
        return [counts[name] for name in self.source.classes]

    def wrong(self, _request: Request, error: Exception) -> Response:
        """Input that cannot be used."""
        return HTMLResponse(self._render("error.html", here="", message=str(error)), 400)

    def broken(self, _request: Request, error: Exception) -> Response:
        """The file of the verdicts cannot be used: the disk is full, or somebody holds it."""
        message = f"Nothing was written: {self.store.path}: {error}"
        return HTMLResponse(self._render("error.html", here="", message=message), 500)

    def _conflict(self, form: dict[str, str], n: int) -> Response:
        """Another tab was first: show what stands now."""
        row = filters.sample(self.store, n)
        if form.get("page") == "clean" or row is None:
            return RedirectResponse(_with_message("clean", form, CHANGED), 303)
        if form.get("answer") == "card":
            html = self._render("updated_card.html", card=self._card(row), view="grid", fields=form, alert=CHANGED)
            return HTMLResponse(html, 409)
        return RedirectResponse(_with_message("check", {**form, "view": "one"}, CHANGED, n=n), 303)

    def _missing(self) -> Response:
        return HTMLResponse(self._render("error.html", here="", message="There is nothing here."), 404)

    def _page(self, template: str, **values: Any) -> Response:
        return HTMLResponse(self._render(template, **values))

    def _render(self, template: str, **values: Any) -> str:
        common = {"source": self.source, "classes": self.source.classes, "notes": self.source.notes}
        return self.templates.get_template(template).render(**common, **values)


MESSAGES = (CHANGED, NOTHING)


def _with_message(page: str, form: dict[str, str], message: str, **more: object) -> str:
    """The page, saying something that is one of our own sentences."""
    if page == "clean":
        return f"/clean?{urlencode({'message': message})}"
    return request_forms.address(form, message=message, **more)
