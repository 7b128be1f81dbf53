"""Access control of the review page.

- Host must be the served address, which prevents DNS rebinding.
- The token in the address is exchanged for a cookie on the first visit; without the cookie nothing is served. A token
  works once, because addresses end up in histories and logs; the next one opens the page in another browser.
- Origin, if present, and Sec-Fetch-Site must be those of the page itself, and requests that change something must have
  an Origin: cookies are shared between ports, so a page on another port could otherwise write verdicts.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send "Origin: null" with a form
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
FIRST_VISIT_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>metalabelnet review</title>'
    '<meta http-equiv="refresh" content="0; url=/"><p><a href="/">Continue</a></p></html>'
)


class AccessGuard:
    """ASGI middleware that rejects unauthorized requests and adds security headers to every response."""

    def __init__(
        self, app: ASGIApp, *, port: int, token: str, on_new_token: Callable[[str], None] | None = None
    ) -> None:
        self.app, self.token, self.on_new_token = app, token, on_new_token
        self.secret = new_token()  # the value of the cookie
        names = ("127.0.0.1", "localhost")
        self.hosts = {f"{name}:{port}": name for name in names}
        if port == 80:  # browsers omit the default port
            self.hosts |= {name: name for name in names}
        self.cookie = f"metalabelnet_review_{port}"  # cookies are shared between ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":  # no WebSocket, no lifespan
            return
        request = Request(scope)
        reason = self.rejection_reason(request)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        response: ASGIApp = self.app
        if reason is not None:
            response = PlainTextResponse(f"forbidden: {reason}\n", status_code=403)
        elif self._has_token(request):
            # Not a redirect: if the address was opened from another site, browsers would not send the new cookie.
            response = HTMLResponse(FIRST_VISIT_PAGE)
            response.set_cookie(self.cookie, self.secret, httponly=True, samesite="strict", path="/")
            self.token = new_token()
            if self.on_new_token is not None:
                self.on_new_token(self.token)
        await response(scope, receive, send_with_headers)

    def rejection_reason(self, request: Request) -> str | None:
        """Why a request is rejected, or None if it is allowed."""
        headers: Headers = request.headers
        if headers.getlist("host") != [headers.get("host")] or headers["host"] not in self.hosts:
            return "the Host header is not the address of this page"
        if self._has_token(request):
            return None
        if not _equal(request.cookies.get(self.cookie, ""), self.secret):
            return "open the address that the program printed last, including its token: each address works once"
        origin = headers.get("origin")
        if origin is None and request.method != "GET":
            return "a request that changes something needs an Origin header"
        scheme, _, host = (origin or "").partition("://")
        if origin is not None and (scheme != "http" or self.hosts.get(host) != self.hosts[headers["host"]]):
            return "the request comes from another page"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "the request comes from another site"
        return None

    def _has_token(self, request: Request) -> bool:
        return request.method == "GET" and _equal(request.query_params.get("token", ""), self.token)


def new_token() -> str:
    """A random token for an address or a cookie."""
    return secrets.token_urlsafe(24)


def _equal(text: str, secret: str) -> bool:
    return secrets.compare_digest(text.encode(errors="replace"), secret.encode())
