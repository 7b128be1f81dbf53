"""Write requirements*.txt: the versions of constraints.txt with the sha256 of every file of each release.

    .venv/bin/python scripts/update_requirements.py

To change a version, edit constraints.txt and run this script, then `make .venv/installed`, which ends with `pip check`.
A line `# [requirements-cuda.txt] ...` in constraints.txt starts the section whose packages go to that file. The pins
of a section whose name does not end in `.txt` are not written. Hashes are those that pip's package index lists; pip's
settings apply. requirements-cpu.txt is edited by hand.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
HEADER = "# Written by scripts/update_requirements.py from constraints.txt: edit that file and run the script.\n"


class IndexPage(HTMLParser):
    """The files of a project in a simple index (PEP 503): file name to sha256."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.files: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Store the file name and the hash of one link."""
        address, fragment = urldefrag(dict(attrs).get("href") or "")
        if tag == "a" and (match := re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)):
            self.files[unquote(address.rsplit("/", 1)[-1])] = match.group(1)


def sections(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the name and version of each pin of constraints.txt, by section."""
    result: dict[str, list[tuple[str, str]]] = {}
    pins: list[tuple[str, str]] | None = None
    for line in text.splitlines():
        if heading := re.match(r"# \[(.+?)\]", line):
            pins = result.setdefault(heading.group(1), [])
        elif pin := re.fullmatch(r"([\w.-]+)==([\w.!+-]+)", line):
            if pins is None:
                raise SystemExit(
                    f"constraints.txt: {line} stands before the first section: add a line # [name] above it"
                )
            pins.append((pin.group(1), pin.group(2)))
        elif line and not line.startswith("#"):
            raise SystemExit(f"constraints.txt: {line!r} is not a pin: write name==version")
    return result


def file_version(filename: str) -> Version | None:
    """Return the version in the name of a wheel or a source archive, None for other kinds of files."""
    try:
        return parse_wheel_filename(filename)[1] if filename.endswith(".whl") else parse_sdist_filename(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def release_hashes(session: Any, index_url: str, name: str, version: str) -> list[str]:
    """Return the sha256 of every file of one release, sorted."""
    page = session.get(f"{index_url.rstrip('/')}/{canonicalize_name(name)}/", headers={"Accept": "text/html"})
    page.raise_for_status()
    hashes = {
        sha256 for filename, sha256 in IndexPage(page.text).files.items() if file_version(filename) == Version(version)
    }
    if not hashes:
        raise SystemExit(f"{name}=={version}: the package index has no such release: change constraints.txt")
    return sorted(hashes)


def requirement(name: str, version: str, hashes: list[str]) -> str:
    """Return the lines of one requirement."""
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{sha256}" for sha256 in hashes)]) + "\n"


def main() -> None:
    """Write the files."""
    from pip._internal.commands import create_command  # importing it patches distutils, with a warning

    command = create_command("download")
    options, _ = command.parse_args(["metalabelnet"])
    pins_of = sections((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    with command.main_context():
        session = command.get_default_session(options)
        for filename, pins in pins_of.items():
            if not filename.endswith(".txt"):
                continue
            lines = [
                requirement(name, version, release_hashes(session, options.index_url, name, version))
                for name, version in pins
            ]
            (ROOT / filename).write_text(HEADER + "".join(lines), encoding="utf-8")
            sys.stdout.write(f"{filename}: {len(pins)} packages\n")


if __name__ == "__main__":
    main()
