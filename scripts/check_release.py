"""Check that a tag, the package's version and the changelog agree; print the release notes.

python scripts/check_release.py 0.2.0            fails where they differ
python scripts/check_release.py 0.2.0 --notes    prints the changelog's section of that version
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def package_version(root: Path = ROOT) -> str:
    """Return the version in `metalabelnet/__init__.py`, the only place it is written."""
    text = (root / "src" / "metalabelnet" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)
    if match is None:
        raise SystemExit('src/metalabelnet/__init__.py has no line __version__ = "..."')
    return match.group(1)


def release_notes(version: str, root: Path = ROOT) -> str:
    """Return the changelog's section of this version."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    match = re.search(rf"^## {re.escape(version)}\b.*?\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    if match is None:
        raise SystemExit(f"CHANGELOG.md has no section ## {version}: add one")
    return match.group(1).strip()


def main() -> None:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", help="the version of the tag, without its v")
    parser.add_argument("--notes", action="store_true", help="print the release notes")
    args = parser.parse_args()
    if package_version() != args.version:
        raise SystemExit(f"the tag says {args.version}, the package {package_version()}: change one of them")
    notes = release_notes(args.version)
    if args.notes:
        sys.stdout.write(notes + "\n")


if __name__ == "__main__":
    main()
