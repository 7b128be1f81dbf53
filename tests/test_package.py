"""`import metalabelnet` and `--help` are fast, and the examples in the docstrings of the public API run."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import metalabelnet
from metalabelnet.cli.parser import LABEL_FORMATS, REVIEW_EXPORTS
from metalabelnet.data import DATASETS
from metalabelnet.data.augment import AUGMENTATIONS
from metalabelnet.labels.export_formats import FORMATS
from metalabelnet.nets import NETS
from metalabelnet.review.exports import EXPORTS
from metalabelnet.run_options import DATASET_DEFAULTS, RunOptions

PACKAGE = Path(metalabelnet.__file__).parent
HEAVY_PACKAGES = {"torch", "numpy", "sklearn", "matplotlib", "rich", "PIL"}
MAX_CPU_SECONDS = 0.5
ATTEMPTS = 5  # on a busy machine, CPU time varies
COMMANDS = [
    "train",
    "compare",
    "labels",
    "predict",
    "embed",
    "pack",
    "export",
    "report",
    "review",
    "reproduce",
    "methods",
    "datasets",
    "noises",
]
RUN_AND_MEASURE = """
import sys, time
sys.argv = ["metalabelnet", *sys.argv[1:]]
try:
    {code}
except SystemExit as end:
    assert not end.code, end.code
print("##", time.process_time(), *sys.modules)
"""


def python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def cpu_seconds_and_modules(code: str, *arguments: str) -> tuple[float, set[str]]:
    seconds, *modules = python(RUN_AND_MEASURE.format(code=code), *arguments).partition("## ")[2].split()
    return float(seconds), set(modules)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)])
def test_help_is_fast(arguments: list[str]) -> None:
    for _ in range(ATTEMPTS):
        seconds, modules = cpu_seconds_and_modules("from metalabelnet.cli import main; main()", *arguments)
        assert "metalabelnet.cli.parser" in modules
        assert not modules & HEAVY_PACKAGES
        if seconds < MAX_CPU_SECONDS:
            return
    pytest.fail(f"{arguments} takes {seconds} s of CPU time")


def test_import_is_fast() -> None:
    for _ in range(ATTEMPTS):
        seconds, modules = cpu_seconds_and_modules("import metalabelnet; dir(metalabelnet)")
        assert not modules & HEAVY_PACKAGES
        if seconds < MAX_CPU_SECONDS:
            break
    else:
        pytest.fail(f"import metalabelnet takes {seconds} s of CPU time")
    assert {"MetaLabelNetClassifier", "NoCleanSetWarning", "fit"} <= set(dir(metalabelnet))
    assert not hasattr(metalabelnet, "no_such_name")


def test_names_in_help_match_the_tables() -> None:
    """Help lists names without importing the tables that define them."""
    text = {name: field.metadata.get("help", "") for name, field in RunOptions.__dataclass_fields__.items()}
    assert all(name in text["net"] for name in NETS)
    assert all(name in text["augment"] for name in AUGMENTATIONS)
    assert list(DATASET_DEFAULTS) == list(DATASETS)
    assert tuple(FORMATS) == LABEL_FORMATS
    assert set(REVIEW_EXPORTS) == set(EXPORTS)


def modules_with_examples() -> list[str]:
    files = [path for path in PACKAGE.rglob("*.py") if ">>>" in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]
    return sorted(name.removesuffix(".__init__") for name in names)


@pytest.mark.parametrize("module", modules_with_examples())
def test_docstring_examples_run_as_they_stand(module: str) -> None:
    """An example imports what it uses, so that a reader can paste it."""
    results = doctest.testmod(importlib.import_module(module), globs={})
    assert results.attempted > 0
    assert results.failed == 0


def test_without_sklearn() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
import metalabelnet
print(callable(metalabelnet.fit))
try:
    from metalabelnet import MetaLabelNetClassifier
except ValueError as error:
    print(error)
"""
    has_fit, message = python(code).splitlines()
    assert has_fit == "True"
    assert message == "MetaLabelNetClassifier needs scikit-learn 1.6 or newer: pip install 'metalabelnet[sklearn]'"
