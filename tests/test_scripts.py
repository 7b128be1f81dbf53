"""Scripts outside of the package import names that exist: benchmarks and migrations are not run by the tests."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(
    path for folder in ("benchmarks", "scripts", "examples", "docs") for path in (ROOT / folder).rglob("*.py")
)


def imported_names(path: Path) -> list[tuple[str, str]]:
    """Return module and name of each import from the package."""
    imports = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    return [
        (node.module, alias.name)
        for node in imports
        if node.module is not None and node.module.partition(".")[0] == "metalabelnet"
        for alias in node.names
    ]


def test_scripts_are_found() -> None:
    assert {"benchmarks", "scripts", "examples"} <= {path.parent.name for path in SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imported_names_exist(path: Path) -> None:
    for module, name in imported_names(path):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")
