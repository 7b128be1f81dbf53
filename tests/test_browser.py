"""Browser tests without a browser are skipped, and fail in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_missing_browser(ci: str, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(chromium): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "browser", "-p", "no:cacheprovider", "-rsE", str(tmp_path)]
    paths = os.pathsep.join([str(Path(__file__).parent / "helpers"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": paths, "CI": ci}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert f"{outcome} in" in result.stdout, result.stdout + result.stderr
    assert "none of chromium" in result.stdout
    assert "apt-get install chromium" in result.stdout
