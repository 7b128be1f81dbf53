"""The pages of the review page: HTML from templates, images and CSV exports. They work without JavaScript."""

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
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from metalabelnet.errors import InputError
from metalabelnet.review import clean_set_sampling, exports, filters, request_forms, verdicts
from metalabelnet.review.access import AccessGuard
from metalabelnet.review.request_forms import read_form
from metalabelnet.review.store import ReviewDatabaseError
from metalabelnet.review.verdicts import Verdict, VerdictConflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from metalabelnet.review.source import ReviewSource
    from metalabelnet.review.store import ReviewStore

PACKAGE_FOLDER = Path(__file__).parent
STATIC_FILES = {"app.css": "text/css", "app.js": "text/javascript", "htmx.min.js": "text/javascript"}
GRID_SIZE = 24
MAX_CLASS_BUTTONS = 20  # with more classes there are no buttons for them
SAMPLINGS = ("random", "informative")
NOTHING_TO_UNDO = "Nothing to undo: this tab has no current verdict."
VERDICT_CHANGED = "The verdict was changed in another tab. Yours was not saved; check the sample again."


class ReviewApp:
    """The web application for one source and its verdicts."""

    def __init__(self, source: ReviewSource, store: ReviewStore) -> None:
        self.source, self.store = source, store
        self.templates = Environment(
            loader=FileSystemLoader(PACKAGE_FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )

    def guarded(self, port: int, token: str, on_new_token: Callable[[str], None] | None = None) -> ASGIApp:
        """The application behind access control; `on_new_token` is called with the next token when one is used."""
        get, post = ["GET"], ["POST"]
        routes = [
            Route("/", self._with_unchanged_data(self.check), methods=get),
            Route("/clean", self._with_unchanged_data(self.clean), methods=get),
            Route("/export", self._with_unchanged_data(self.export), methods=get),
            Route("/export/{name}.csv", self._with_unchanged_data(self.export_file), methods=get),
            Route("/sample/{n}/{size}", self._with_unchanged_data(self.image), methods=get),
            Route("/static/{name}", self.static, methods=get),
            Route("/favicon.ico", lambda _request: Response(status_code=204), methods=get),
            Route("/verdict", self.add_verdict, methods=post),
            Route("/undo", self.undo, methods=post),
        ]
        app = Starlette(
            routes=routes,
            exception_handlers={
                InputError: self.input_error,
                ReviewDatabaseError: self.database_error,
                sqlite3.Error: self.database_error,
            },
        )
        return AccessGuard(app, port=port, token=token, on_new_token=on_new_token)

    def _with_unchanged_data(self, handler: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """A handler that raises InputError if another process imports the data again before or during the request."""

        def checked_handler(request: Request) -> Response:
            self.store.check_unchanged()
            response = handler(request)
            self.store.check_unchanged()
            return response

        return checked_handler

    def check(self, request: Request) -> Response:
        """The list of suspects, as a grid or one at a time."""
        if self.source.run is None:
            return RedirectResponse("/clean", 303)
        fields = request.query_params
        sample_filter = request_forms.read_filter(fields, self.source.classes)
        view = request_forms.parse_choice(fields, "view", request_forms.VIEWS)
        n = request_forms.parse_int(fields, "n", 0)
        if n:
            rows = [row for row in [filters.get_sample(self.store, n)] if row is not None]
        else:
            rows = filters.list_samples(
                self.store, sample_filter, 1 if view == "one" else GRID_SIZE, request_forms.read_after(fields)
            )
        last = f"{rows[-1]['suspicion']!r},{rows[-1]['n']}" if rows else None
        return self._page(
            "check.html",
            page="check",
            view=view,
            sample_filter=sample_filter,
            default_filter=filters.SampleFilter(),
            fields=dict(fields),
            cards=[self._card(row) for row in rows],
            count=filters.count_samples(self.store, sample_filter),
            max_count=filters.MAX_COUNT,
            next_page=None if last is None else request_forms.address(fields, after=last),
            other_view=request_forms.address(fields, view="grid" if view == "one" else "one"),
            first_page=request_forms.address(fields),
            all_labeled=request_forms.address(fields, show="labeled"),
            history=self._history(rows[0]["n"]) if view == "one" and rows else [],
            message=fields.get("message", "") if fields.get("message", "") in MESSAGES else "",
        )

    def clean(self, request: Request) -> Response:
        """The next sample for the clean set."""
        fields = request.query_params
        if "target" in fields:
            target = request_forms.parse_int(fields, "target", 10, 1, request_forms.MAX_SAMPLES_PER_CLASS)
            blind_text = "1" if fields.get("blind") == "1" else "0"
            sampling = request_forms.parse_choice(fields, "sampling", SAMPLINGS)
            self.store.set(target=str(target), sampling=sampling, blind=blind_text)
            return RedirectResponse("/clean", 303)
        stored = {name: self.store.get(name, "") for name in ("target", "sampling")}
        target = request_forms.parse_int(stored, "target", 10, 1, request_forms.MAX_SAMPLES_PER_CLASS)
        sampling, blind = request_forms.parse_choice(stored, "sampling", SAMPLINGS), self._blind()
        progress = clean_set_sampling.progress(self.store, len(self.source.classes), target)
        sampling = sampling if self.source.run is not None else SAMPLINGS[0]
        previous = self._last_clean_verdict(request_forms.parse_int(fields, "n", 0))
        n: int | None
        if previous is not None:
            n, drawn_by = previous["n"], previous["sampling"]
        else:
            n, drawn_by = clean_set_sampling.draw_sample(self.store, progress, sampling), sampling
        row = None if n is None else filters.get_sample(self.store, n)
        return self._page(
            "clean.html",
            page="clean",
            card=None if row is None else self._card(row, blind=blind),
            progress=progress,
            per_class=list(zip(self.source.classes, progress.confirmed, strict=True)),
            sampling=sampling,
            drawn_by=drawn_by,
            blind=blind,
            buttons=len(self.source.classes) <= MAX_CLASS_BUTTONS,
            message=fields.get("message", "") if fields.get("message", "") in MESSAGES else "",
        )

    def export(self, request: Request) -> Response:
        """The exports, with the equivalent commands and the command that trains with the clean set."""
        confirmed = sum(clean_set_sampling.count_confirmed(self.store, len(self.source.classes)))
        incomplete = [
            name
            for name, count in zip(self.source.classes, self._clean_counts(), strict=True)
            if count < 2  # one for training and one for validation
        ]
        database = () if self.store.path == self.source.database else ("--db", str(self.store.path))
        return self._page(
            "export.html",
            page="export",
            confirmed=confirmed,
            incomplete=incomplete,
            review_arguments=shlex.join([*self.source.review_arguments, *database]),
            train_arguments=shlex.join([self.source.data, *self.source.train_arguments]),
        )

    def export_file(self, request: Request) -> Response:
        """One of the exports as a CSV file."""
        name = request.path_params["name"]
        if name not in exports.EXPORTS:
            return self._not_found()
        options = {"drawn": True} if name == "clean" and request.query_params.get("drawn") == "1" else {}
        rows = exports.EXPORTS[name](self.store, self.source, **options)
        text = "".join(exports.csv_lines(rows, spreadsheet_safe=True))  # people open downloads with a double click
        headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)

    def image(self, request: Request) -> Response:
        """The image of a sample, by its number."""
        try:
            row = filters.get_sample(self.store, request_forms.parse_int(request.path_params, "n", 0))
        except InputError:
            return self._not_found()
        if row is None or self.source.display.kind != "image" or request.path_params["size"] not in ("small", "large"):
            return self._not_found()
        try:
            content, kind = self.source.display.image(row["position"], request.path_params["size"])
        except InputError as error:
            return Response(f"the image {error}\n", 404, media_type="text/plain")
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})

    def static(self, request: Request) -> Response:
        """The style sheet and the scripts; no other files are served."""
        name = request.path_params["name"]
        if name not in STATIC_FILES:
            return self._not_found()
        return FileResponse(
            PACKAGE_FOLDER / "static" / name, media_type=STATIC_FILES[name], headers={"Cache-Control": "no-cache"}
        )

    async def add_verdict(self, request: Request) -> Response:
        """Add or undo a verdict and show the next sample."""
        form = await read_form(request)
        try:
            return await run_in_threadpool(self._add_verdict, form)
        except VerdictConflict as conflict:
            return self._conflict(form, conflict.n)

    def _add_verdict(self, form: dict[str, str]) -> Response:
        n, seen = request_forms.parse_int(form, "n", 0), request_forms.parse_int(form, "seen", 0)
        page = request_forms.parse_choice(form, "page", ("check", "clean"))
        row = filters.get_sample(self.store, n)
        if row is None:
            return self._not_found()
        action, tab = form.get("action", ""), form.get("tab", "")[:40]
        if action == "undo":
            verdicts.undo(self.store, n, seen, tab)
        else:
            kind, label = self._parse_action(action, form, row)
            sampling = "listed" if page == "check" else request_forms.parse_choice(form, "sampling", SAMPLINGS)
            label_was_visible = any(v["page"] == "check" or not v["blind"] for v in verdicts.history(self.store, n))
            blind = page == "clean" and form.get("blind") == "1" and not label_was_visible
            verdict = Verdict(n=n, kind=kind, label=label, page=page, blind=blind, sampling=sampling, tab=tab)
            verdicts.add_verdict(self.store, verdict, seen)
        if form.get("response") == "card":
            row = filters.get_sample(self.store, n)
            assert row is not None
            return HTMLResponse(self._render("updated_card.html", card=self._card(row), view="grid", fields=form))
        if page == "clean":
            return RedirectResponse("/clean", 303)
        changes = {"n": n} if action == "undo" else {"after": f"{row['suspicion']!r},{n}"}
        return RedirectResponse(request_forms.address(form, **changes), 303)

    async def undo(self, request: Request) -> Response:
        """Undo the last verdict of this tab and show its sample again."""
        form = await read_form(request)
        last = await run_in_threadpool(verdicts.undo_last, self.store, form.get("tab", "")[:40])
        page = request_forms.parse_choice(form, "page", ("check", "clean"))
        if last is None:
            return RedirectResponse(_with_message(page, form, NOTHING_TO_UNDO), 303)
        if last["page"] == "clean":
            return RedirectResponse(f"/clean?n={last['n']}", 303)
        grid = request_forms.parse_choice(form, "view", request_forms.VIEWS) == "grid"
        return RedirectResponse(request_forms.address(form, **({} if grid else {"n": last["n"]})), 303)

    def _parse_action(self, action: str, form: dict[str, str], row: sqlite3.Row) -> tuple[str, int | None]:
        """The kind and class of a verdict from the pressed button or the typed class."""
        if action in ("unusable", "skip"):
            return action, None
        if action == "keep" and row["given"] >= 0:
            return "label", row["given"]
        if action == "corrected" and row["label"] >= 0:
            return "label", row["label"]
        if action == "choose":
            return "label", request_forms.find_class(form.get("class", ""), self.source.classes)
        raise InputError(f"invalid action {action[:40]!r} for this sample")

    def _card(self, row: sqlite3.Row, *, blind: bool = False) -> dict[str, Any]:
        """The values of a sample for a template; if blind, only its content."""
        kind, position = self.source.display.kind, row["position"]
        card: dict[str, Any] = {"n": row["n"], "seen": row["seen"], "kind": kind, "blind": blind}
        if kind == "text":
            card["text"] = self.source.display.text(position)
        elif kind == "table":
            card["cells"] = self.source.display.cells(position)
        card["decided"] = self._describe(row["kind"], row["decided"])
        if blind:
            return card
        names = [*self.source.classes, ""]
        try:
            probabilities = [
                {"name": names[c], "p": float(p), "given": c == row["given"], "label": c == row["label"]}
                for c, p in json.loads(row["probabilities"])
            ]
        except (ValueError, TypeError, IndexError, RecursionError):
            raise ReviewDatabaseError(self.store.path, f"the probabilities of sample {row['n']} are invalid") from None
        return card | {
            "id": row["id"],
            "given": names[row["given"]],
            "label": names[row["label"]],
            "confidence": row["confidence"],
            "suspicion": row["suspicion"],
            "suspect": row["suspect"],
            "probabilities": probabilities,
        }

    def _describe(self, kind: str | None, label: int | None) -> str:
        """A verdict as text."""
        if kind is None:
            return ""
        return self.source.classes[label] if label is not None else {"skip": "skipped"}.get(kind, kind)

    def _history(self, n: int) -> list[dict[str, Any]]:
        return [
            {"time": v["time"], "text": self._describe(v["kind"], v["label"]), "undone": v["undone"]}
            for v in verdicts.history(self.store, n)
            if v["kind"] != "undo"
        ]

    def _last_clean_verdict(self, n: int) -> sqlite3.Row | None:
        """The last verdict on a sample that was made on the clean set page, or None."""
        return next((v for v in verdicts.history(self.store, n) if v["page"] == "clean"), None) if n else None

    def _blind(self) -> bool:
        return self.store.get("blind", "1") == "1"

    def _clean_counts(self) -> list[int]:
        counts = dict.fromkeys((*self.source.classes, ""), 0)
        rows = exports.clean_set(self.store, self.source)
        next(rows)
        for _, label, _ in rows:
            counts[label] += 1
        return [counts[name] for name in self.source.classes]

    def input_error(self, _request: Request, error: Exception) -> Response:
        """The page for invalid input."""
        return HTMLResponse(self._render("error.html", page="", message=str(error)), 400)

    def database_error(self, request: Request, error: Exception) -> Response:
        """The page for database errors, such as a full disk, a locked or a damaged file."""
        problem = ReviewDatabaseError(self.store.path, error) if isinstance(error, sqlite3.Error) else error
        consequence = "The verdict was not saved: " if request.method == "POST" else ""
        return HTMLResponse(self._render("error.html", page="", message=f"{consequence}{problem}"), 500)

    def _conflict(self, form: dict[str, str], n: int) -> Response:
        """The response to a conflict: the sample with its current verdict."""
        row = filters.get_sample(self.store, n)
        if form.get("page") == "clean" or row is None:
            return RedirectResponse(_with_message("clean", form, VERDICT_CHANGED), 303)
        if form.get("response") == "card":
            html = self._render(
                "updated_card.html", card=self._card(row), view="grid", fields=form, alert=VERDICT_CHANGED
            )
            return HTMLResponse(html, 409)
        return RedirectResponse(_with_message("check", {**form, "view": "one"}, VERDICT_CHANGED, n=n), 303)

    def _not_found(self) -> Response:
        return HTMLResponse(self._render("error.html", page="", message="Not found."), 404)

    def _page(self, template: str, **values: Any) -> Response:
        return HTMLResponse(self._render(template, **values))

    def _render(self, template: str, **values: Any) -> str:
        common = {"source": self.source, "classes": self.source.classes, "notes": self.source.notes}
        return self.templates.get_template(template).render(**common, **values)


MESSAGES = (VERDICT_CHANGED, NOTHING_TO_UNDO)


def _with_message(page: str, form: dict[str, str], message: str, **more: object) -> str:
    """The address of a page that shows one of `MESSAGES`."""
    if page == "clean":
        return f"/clean?{urlencode({'message': message})}"
    return request_forms.address(form, message=message, **more)
