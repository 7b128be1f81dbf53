"""Who may ask: this computer's browser, on the page it was given the address of, and nobody else.

- Host must be the address served: a foreign name that was made to point here (DNS rebinding) is refused.
- The token of the address is exchanged for a cookie at the first visit; without it there is nothing to see.
- Origin, where a browser names one, and Sec-Fetch-Site must be the page itself, and what changes something must name an
  Origin: cookies alone would let another program's page on another port of this computer write verdicts.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # no-referrer would have browsers send "Origin: null" with a form
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
WELCOME = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>metalabelnet review</title>'
    '<meta http-equiv="refresh" content="0; url=/"><p><a href="/">Go on</a></p></html>'
)


class Guard:
    """Lets the right requests through to the application, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        self.app, self.token = app, token
        names = ("127.0.0.1", "localhost")
        self.hosts = {f"{name}:{port}": name for name in names}
        if port == 80:  # the usual one, which browsers leave out
            self.hosts |= {name: name for name in names}
        self.cookie = f"metalabelnet_review_{port}"  # cookies do not know ports: two pages must not share one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":  # nothing else is served
            return
        request = Request(scope)
        refused = self.refusal(request)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer: ASGIApp = self.app
        if refused is not None:
            answer = PlainTextResponse(f"refused: {refused}\n", status_code=403)
        elif self._right(request.query_params.get("token", "")):
            # Not a redirect: where the address was clicked on another site, browsers would withhold the new cookie.
            answer = HTMLResponse(WELCOME)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        await answer(scope, receive, send_with_headers)

    def refusal(self, request: Request) -> str | None:
        """Why a request is refused; None where it is not."""
        headers: Headers = request.headers
        if headers.getlist("host") != [headers.get("host")] or headers["host"] not in self.hosts:
            return "this page answers under the address it was started with only"
        if request.method == "GET" and self._right(request.query_params.get("token", "")):
            return None
        if not self._right(request.cookies.get(self.cookie, "")):
            return "open the address that the program printed, with its token"
        origin = headers.get("origin")
        if origin is None and request.method != "GET":
            return "a request that changes something must say where it comes from"
        scheme, _, place = (origin or "").partition("://")
        if origin is not None and (scheme != "http" or self.hosts.get(place) != self.hosts[headers["host"]]):
            return "the request comes from another page"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "the request comes from another site"
        return None

    def _right(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())
