"""The web server of the review page: on the loopback address only, protected by a random token."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError, missing_package_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.review.source import ReviewSource
    from metalabelnet.review.store import ReviewStore

LOOPBACK = "127.0.0.1"


def check_installed() -> None:
    """Raise an error if a required package is missing, before data is read."""
    try:
        import jinja2  # noqa: F401
        import PIL  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing_package_error("starlette, uvicorn, jinja2 and Pillow", "review", "the review page") from error


def serve(
    source: ReviewSource,
    store: ReviewStore,
    port: int,
    on_ready: Callable[[str], None],
    on_visit: Callable[[str], None],
) -> None:
    """Serve until stopped.

    `on_ready` is called with the address, including the token, once it can be opened. It can be opened once: `on_visit`
    is then called with the next address.
    """
    import uvicorn

    from metalabelnet.review.access import new_token
    from metalabelnet.review.app import ReviewApp

    with bind(port) as server_socket:
        actual_port, token = int(server_socket.getsockname()[1]), new_token()

        def address(token: str) -> str:
            return f"http://{LOOPBACK}:{actual_port}/?token={token}"

        app = ReviewApp(source, store).guarded(actual_port, token, lambda token: on_visit(address(token)))
        config = uvicorn.Config(
            app, lifespan="off", ws="none", http="h11", proxy_headers=False, log_level="warning", server_header=False
        )
        on_ready(address(token))  # the socket accepts connections already
        uvicorn.Server(config).run(sockets=[server_socket])


def bind(port: int) -> socket.socket:
    """A listening socket on the loopback address; port 0 means a free port."""
    server_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server_socket.bind((LOOPBACK, port))
        server_socket.listen(64)
    except (OSError, OverflowError) as error:
        server_socket.close()
        raise InputError(f"port {port} cannot be used ({error}): leave --port out to use a free port") from error
    return server_socket
