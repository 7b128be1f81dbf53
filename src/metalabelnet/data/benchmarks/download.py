"""Where data files lie, and how one gets there: whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from metalabelnet.errors import InputError

Progress = Callable[[str, int, int], None]
"""Told while data is fetched or read: what it is, the bytes or samples done, and those in all (0 where unknown)."""

FOLDER_VARIABLE = "METALABELNET_DATA"
_CHUNK = 1 << 20
_SILENCE = 30.0  # seconds a server may say nothing


def data_folder(folder: Path | None = None) -> Path:
    """The folder for data files: the one given, else METALABELNET_DATA, else ~/.cache/metalabelnet."""
    if folder is not None:
        return folder
    return Path(os.environ.get(FOLDER_VARIABLE) or "~/.cache/metalabelnet").expanduser()


def md5_of(content: bytes) -> str:
    """The md5 as published beside data sets. It tells a damaged file; it is no signature."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def fetch(url: str, target: Path, md5: str, progress: Progress | None = None) -> None:
    """Download to `target`, which is there afterwards only if the content has that md5.

    It grows under another name, of this call's own, and is renamed when it is complete: a download that
    was cut off is never taken for the file, and two processes that fetch it at once do no harm.
    """
    growing = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    way_out = f"put the file into {target.parent} yourself, or name a folder that has it in {FOLDER_VARIABLE}"
    there = target.parent.exists()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        got = _stream(url, growing, progress)
        if got != md5:
            raise InputError(f"{url}: what came has md5 {got}, not {md5}, and was thrown away; try again, or {way_out}")
        growing.replace(target)
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection, and Python 3.13 warns where it is left open
        raise InputError(f"{url}: cannot be downloaded ({error}); {way_out}") from error
    finally:
        with suppress(OSError):  # most often it is not there, and a first error must not be hidden
            growing.unlink()
        if not there:
            with suppress(OSError):  # goes only if it is empty: what was not there before a failure is not there after
                target.parent.rmdir()


def _stream(url: str, growing: Path, progress: Progress | None) -> str:
    """Write what comes from the address, and give its md5."""
    digest, done = hashlib.md5(usedforsecurity=False), 0
    what = url.rsplit("/", 1)[-1]
    # The scheme needs no audit: addresses are constants of this package, never input.
    with urlopen(url, timeout=_SILENCE) as response, growing.open("wb") as file:  # noqa: S310
        total = int(response.headers.get("Content-Length") or 0)
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(what, done, total)
    if done < total:
        raise ConnectionError(f"it broke off after {done} of {total} bytes")
    return digest.hexdigest()
