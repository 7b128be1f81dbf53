"""Opens the review page in a browser without showing its token to other users of the computer.

The arguments of a process are visible to all users, so the browser gets the name of a private file that leads to the
address.
"""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from pathlib import Path

REDIRECT_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>metalabelnet review</title>'
    '<meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url={address}">'
    '<p><a href="{address}">Continue</a></p></html>'
)


class BrowserRedirect:
    """The private file; removed on `remove`, or when the program ends."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def open(self, address: str) -> None:
        """Open an address in the default browser."""
        self._folder = tempfile.TemporaryDirectory(prefix="metalabelnet-")  # only its owner can enter it
        file = Path(self._folder.name) / "review.html"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(REDIRECT_PAGE.format(address=html.escape(address)))
        webbrowser.open(file.as_uri())

    def remove(self) -> None:
        """Remove the file, if there is one."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
