"""Checks that everything the project downloads is pinned: packages by hash, workflow actions by commit."""

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
REQUIREMENT_FILES = sorted(ROOT.glob("requirements*.txt"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def canonical_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Return the version and the options of each requirement, by name."""
    result = {}
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            pin, *options = line.split()
            name, version = pin.split("==")
            assert canonical_name(name) not in result, f"{path.name} pins {name} twice"
            result[canonical_name(name)] = (version, options)
    return result


def constraints() -> dict[str, str]:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert len({canonical_name(name) for name, _ in pins}) == len(pins)
    return {canonical_name(name): version for name, version in pins}


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_requirement_files_exist() -> None:
    names = {path.name for path in REQUIREMENT_FILES}
    assert names == {f"requirements{kind}.txt" for kind in ("", "-cpu", "-cuda", "-release")}


@pytest.mark.parametrize("path", REQUIREMENT_FILES, ids=lambda path: path.name)
def test_every_requirement_has_hashes(path: Path) -> None:
    for name, (_, options) in requirements(path).items():
        assert options, f"{path.name}: {name} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option) for option in options), name


@pytest.mark.parametrize("path", REQUIREMENT_FILES, ids=lambda path: path.name)
def test_requirements_agree_with_constraints(path: Path) -> None:
    pinned = constraints()
    for name, (version, _) in requirements(path).items():
        assert version.removesuffix("+cpu") == pinned[name], f"{name}: run scripts/update_requirements.py"


def test_constraints_section_is_complete() -> None:
    for filename, pins in script("update_requirements").sections((ROOT / "constraints.txt").read_text()).items():
        if filename.endswith(".txt"):
            assert {canonical_name(name) for name, _ in pins} == requirements(ROOT / filename).keys()


def test_extras_are_pinned() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"]
    names = set()
    waiting = [*pyproject["build-system"]["requires"], *pyproject["project"]["dependencies"]]
    waiting += ["metalabelnet[all,dev,docs]", "editables"]  # hatchling needs editables for an editable install
    while waiting:
        match = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", waiting.pop())
        assert match is not None
        if match[1] == "metalabelnet":
            for extra in match[2].split(","):
                waiting += extras[extra]
        else:
            names.add(canonical_name(match[1]))
    assert len(names) > 20
    assert names <= requirements(ROOT / "requirements.txt").keys()


def test_make_installs_with_hashes_and_without_sudo() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "sudo" not in makefile
    installs = re.findall(r"^.*(?:pip install|PIP_INSTALL\)).*$", makefile, flags=re.MULTILINE)
    assert len(installs) == 5  # the definition, three requirement files, the package itself
    for line in installs[1:-1]:
        assert "--require-hashes" in line
    assert "--no-deps" in installs[0]
    assert "--no-build-isolation --editable ." in installs[-1]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_actions_are_pinned(path: Path) -> None:
    text = path.read_text()
    uses = re.findall(r"^\s*-?\s*uses:\s*(.+)$", text, flags=re.MULTILINE)
    assert uses
    for action in uses:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action
    assert re.search(r"^permissions:\n  contents: read\n", text, flags=re.MULTILINE)


def test_same_action_has_same_commit() -> None:
    pins = {match for path in WORKFLOWS for match in re.findall(r"uses: (.+)@([0-9a-f]{40})", path.read_text())}
    assert len({action for action, _ in pins}) == len(pins)


def test_dependabot_covers_packages_and_actions() -> None:
    text = (ROOT / ".github" / "dependabot.yml").read_text()
    assert set(re.findall(r"package-ecosystem: (.+)", text)) == {"pip", "github-actions"}
    assert text.count("interval: weekly") == 2


def test_index_page_hashes() -> None:
    module = script("update_requirements")
    html = f'<a href="../a/demo-1.0%2Bcpu-py3-none-any.whl#sha256={"a" * 64}">x</a><a href="demo-1.0.tar.gz">y</a>'
    assert module.IndexPage(html).files == {"demo-1.0+cpu-py3-none-any.whl": "a" * 64}
    assert str(module.file_version("demo-1.0.tar.gz")) == "1.0"
    assert module.file_version("demo-1.0.win32.exe") is None


def test_unknown_line_in_constraints() -> None:
    with pytest.raises(SystemExit, match="'torch>=2' is not a pin"):
        script("update_requirements").sections("# [a.txt]\ntorch>=2\n")
    with pytest.raises(SystemExit, match="before the first section"):
        script("update_requirements").sections("torch==2.0\n")


def test_sbom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sbom.json"
    monkeypatch.setattr(sys, "argv", ["write_sbom.py", "--out", str(out)])
    script("write_sbom").main()
    document = json.loads(out.read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "metalabelnet"
    components = {canonical_name(part["name"]): part for part in document["components"]}
    assert {"torch", "numpy", "safetensors"} <= components.keys()
    assert "metalabelnet" not in components
    refs = {part["bom-ref"] for part in document["components"]} | {document["metadata"]["component"]["bom-ref"]}
    assert {edge["ref"] for edge in document["dependencies"]} == refs
    assert all(set(edge["dependsOn"]) <= refs for edge in document["dependencies"])
    of_package = next(e for e in document["dependencies"] if e["ref"].startswith("pkg:pypi/metalabelnet@"))
    assert components["torch"]["bom-ref"] in of_package["dependsOn"]


def test_sbom_without_package() -> None:
    with pytest.raises(SystemExit, match="metalabelnet is not installed"):
        script("write_sbom").sbom([], "2026-01-01T00:00:00+00:00")


def test_release_check() -> None:
    module = script("check_release")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", module.package_version())
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md has no section"):
        module.release_notes("99.0.0")
