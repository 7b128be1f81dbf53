"""Write a software bill of materials (SBOM, CycloneDX 1.6 JSON) of the packages in a Python environment.

    python scripts/write_sbom.py --python /tmp/venv/bin/python --out metalabelnet.cdx.json

The environment must contain metalabelnet, which becomes the subject of the SBOM. Format: https://cyclonedx.org
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

SUBJECT = "metalabelnet"
LIST_PACKAGES = """
import importlib.metadata, json
print(json.dumps([
    {"name": d.name, "version": d.version, "license": d.metadata.get("License-Expression"), "requires": d.requires}
    for d in importlib.metadata.distributions()
]))
"""


def canonical_name(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def package_url(name: str, version: str) -> str:
    """Return the package URL, which identifies a package in an SBOM."""
    return f"pkg:pypi/{canonical_name(name)}@{quote(version)}"


def component(package: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the entry of one package."""
    url = package_url(package["name"], package["version"])
    entry = {"type": kind, "bom-ref": url, "name": package["name"], "version": package["version"], "purl": url}
    if package["license"]:
        entry["licenses"] = [{"expression": package["license"]}]
    return entry


def sbom(packages: list[dict[str, Any]], timestamp: str) -> dict[str, Any]:
    """Return the SBOM of these packages; a dependency edge joins packages that are both installed."""
    by_name = {canonical_name(p["name"]): p for p in packages}
    if SUBJECT not in by_name:
        raise SystemExit(f"{SUBJECT} is not installed in this environment: install its wheel there first")
    refs = {name: package_url(p["name"], p["version"]) for name, p in by_name.items()}
    dependencies = []
    for name, package in sorted(by_name.items()):
        required = {canonical_name(re.match(r"[\w.-]+", line).group()) for line in package["requires"] or []}  # type: ignore[union-attr]
        dependencies.append(
            {"ref": refs[name], "dependsOn": sorted(refs[r] for r in required if r in refs and r != name)}
        )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": timestamp, "component": component(by_name[SUBJECT], "application")},
        "components": [component(p, "library") for name, p in sorted(by_name.items()) if name != SUBJECT],
        "dependencies": dependencies,
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the Python of the environment (default: this one)")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    command = [args.python, "-I", "-c", LIST_PACKAGES]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    document = sbom(json.loads(listed), datetime.now(UTC).isoformat(timespec="seconds"))
    args.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
