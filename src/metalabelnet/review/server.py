"""Where it is served: on this computer's own address, that no other can reach, under a token that nobody can guess."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError, missing_package

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.review.source import Source
    from metalabelnet.review.store import Store

LOOPBACK = "127.0.0.1"


def check_installed() -> None:
    """Refuse where a package is missing, before anything is read."""
    try:
        import jinja2  # noqa: F401
        import PIL  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing_package("starlette, uvicorn, jinja2 and Pillow", "review", "the page for labels") from error


def serve(source: Source, store: Store, port: int, ready: Callable[[str], None]) -> None:
    """Serve until somebody stops it; `ready` is told the address, token included, when it can be opened."""
    import uvicorn

    from metalabelnet.review.app import App

    with bind(port) as listening:
        number, token = int(listening.getsockname()[1]), secrets.token_urlsafe(24)
        app = App(source, store).guarded(number, token)
        config = uvicorn.Config(
            app, lifespan="off", ws="none", http="h11", proxy_headers=False, log_level="warning", server_header=False
        )
        ready(f"http://{LOOPBACK}:{number}/?token={token}")  # the socket takes connections from here on
        uvicorn.Server(config).run(sockets=[listening])


def bind(port: int) -> socket.socket:
    """A socket of the loopback address; port 0 is one that is free."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(64)
    except (OSError, OverflowError) as error:
        listening.close()
        raise InputError(f"port {port} cannot be used ({error}): leave --port out for one that is free") from error
    return listening
