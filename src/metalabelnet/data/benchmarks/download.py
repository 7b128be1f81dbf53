"""The folder of data files, and downloads into it that are complete and verified."""

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

ProgressCallback = Callable[[str, int, int], None]
"""Progress callback: called with a name, the bytes or samples done, and their total (0: unknown)."""

FOLDER_VARIABLE = "METALABELNET_DATA"
_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 30.0


def data_folder(folder: Path | None = None) -> Path:
    """Return the folder for data files: `folder`, else $METALABELNET_DATA, else ~/.cache/metalabelnet."""
    if folder is not None:
        return folder
    return Path(os.environ.get(FOLDER_VARIABLE) or "~/.cache/metalabelnet").expanduser()


def md5_of(content: bytes) -> str:
    """Return the MD5 digest, as published with data sets. It detects damaged files; it is not a signature."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def fetch(url: str, target: Path, md5: str, on_download: ProgressCallback | None = None) -> None:
    """Download to `target`, which exists afterwards only if its content has that MD5 digest.

    The content is written to a temporary file with a unique name, which is renamed when it is complete. An interrupted
    download is never taken for the file, and two processes may download it at the same time.
    """
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    remedy = f"copy the file to {target.parent}, or set {FOLDER_VARIABLE} to a folder that has it"
    folder_existed = target.parent.exists()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        got = _stream(url, partial, on_download)
        if got != md5:
            raise InputError(f"{url}: the download has MD5 {got}, not {md5}, and was discarded; try again, or {remedy}")
        partial.replace(target)
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection, and Python 3.13 warns if it stays open
        raise InputError(f"{url}: cannot be downloaded ({error}); {remedy}") from error
    finally:
        with suppress(OSError):  # usually it does not exist, and an earlier error must not be hidden
            partial.unlink()
        if not folder_existed:
            with suppress(OSError):  # removed only if it is empty: a failure leaves no folder behind
                target.parent.rmdir()


def _stream(url: str, partial: Path, on_download: ProgressCallback | None) -> str:
    """Download to a file and return its MD5 digest."""
    digest, done = hashlib.md5(usedforsecurity=False), 0
    what = url.rsplit("/", 1)[-1]
    # The scheme needs no check: URLs are constants of this package.
    with urlopen(url, timeout=_TIMEOUT_SECONDS) as response, partial.open("wb") as file:  # noqa: S310
        total = int(response.headers.get("Content-Length") or 0)
        while chunk := response.read(_CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if on_download is not None:
                on_download(what, done, total)
    if done < total:
        raise ConnectionError(f"interrupted after {done} of {total} bytes")
    return digest.hexdigest()
