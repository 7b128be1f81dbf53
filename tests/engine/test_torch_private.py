"""Private PyTorch APIs are behind one module; without them steps run eagerly with one warning."""

import ast
import builtins
import importlib
import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import metalabelnet
from metalabelnet.engine import EngineFallback, torch_private
from metalabelnet.engine.torch_private import API, COMPILE, TRACE, MissingTorchAPI, load, preload_compiler, require
from metalabelnet.train import train
from small_runs import small_problem, small_run

SOURCE = Path(metalabelnet.__file__).parent
PRIVATE = ("torch._", "torch.fx.experimental", "torch.utils._", "torch.cuda._")
MODULES = sorted({module for module, _ in (TRACE | COMPILE).values()})


def imported_modules(file: Path) -> list[str]:
    """All modules that a file imports, at the top or inside functions."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_no_other_file_imports_private_modules() -> None:
    """`torch._foreach_*`, which torch.optim uses, are functions and not imported."""
    found = {
        str(file.relative_to(SOURCE)): name
        for file in SOURCE.rglob("*.py")
        for name in imported_modules(file)
        if name.startswith(PRIVATE)
    }
    assert not found


def test_importing_train_imports_no_private_module() -> None:
    """Beyond those that `import torch` imports."""
    code = (
        "import json, sys, torch; before = set(sys.modules); from metalabelnet.train import train; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    imported = json.loads(out)
    assert "metalabelnet.engine.engine" in imported
    assert not [name for name in imported if name.startswith(PRIVATE)]
    assert not [name for name in imported if name.startswith(("metalabelnet.engine.hopper", "metalabelnet.engine.re"))]


@pytest.fixture(scope="module", autouse=True)
def _import_all_private_modules() -> None:
    """Import them completely: an import that a test interrupts would leave PyTorch's compiler half imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("torch._dynamo")
        for module in MODULES:
            importlib.import_module(module)


@pytest.fixture
def without_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes a module unimportable."""

    def remove(name: str) -> None:
        original = torch_private.importlib.import_module

        def import_module(module: str, *args: Any) -> Any:
            if module == name:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)
            return original(module, *args)

        monkeypatch.setattr(torch_private.importlib, "import_module", import_module)

    return remove


@pytest.mark.parametrize("module", MODULES)
def test_training_without_a_private_module_is_eager_with_one_warning(
    module: str, without_module: Any, tmp_path: Path
) -> None:
    run = small_run("cross-entropy", execution="compiled", epochs=2, warmup=0)
    without_module(module)
    with pytest.warns(EngineFallback, match=module.replace(".", r"\.")) as caught:
        result = train(run, problem=small_problem(), folder=tmp_path / "run")
    assert len([warning for warning in caught if warning.category is EngineFallback]) == 1
    eager = train(small_run("cross-entropy", execution="eager", epochs=2, warmup=0), problem=small_problem())
    assert [line["loss"] for line in result.history] == [line["loss"] for line in eager.history]
    executed = json.loads((tmp_path / "run" / "run.json").read_text())["executed"]
    assert executed["execution"] == "eager"
    assert module in executed["fallbacks"][0]
    assert len(executed["fallbacks"]) == 1


@pytest.mark.parametrize("name", [name for name, (_, attribute) in (TRACE | COMPILE).items() if attribute])
def test_renamed_private_name_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute = API[name]
    monkeypatch.delattr(sys.modules.get(module) or torch_private.importlib.import_module(module), attribute)
    with pytest.raises(MissingTorchAPI, match=rf"{torch.__version__.partition('+')[0]}.* has no {module}.{attribute}"):
        require(compiler=True)


def test_all_missing_names_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "TRACE", {"a": ("torch.no_such", None), "b": ("torch", "no_such_name")})
    monkeypatch.setattr(torch_private, "API", API | torch_private.TRACE)
    with pytest.raises(MissingTorchAPI, match=r"has no torch\.no_such, torch\.no_such_name$"):
        require(compiler=False)


def test_this_pytorch_has_all_names() -> None:
    """NVRTC's are imported only for Hopper kernels, but exist without a GPU, too."""
    for name in API:
        load(name)


def test_compiler_is_imported_when_the_body_is_done() -> None:
    """Also if the body raises."""
    with pytest.raises(KeyError), preload_compiler(on=True):
        raise KeyError
    assert "torch._inductor.compile_fx" in sys.modules
    before = threading.active_count()
    with preload_compiler(on=False):
        assert threading.active_count() == before


def test_preload_ignores_a_missing_compiler(without_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine reports it when it traces; the thread prints no traceback."""
    errors: list[object] = []
    without_module("torch._inductor.compile_fx")
    monkeypatch.setattr(threading, "excepthook", errors.append)
    with preload_compiler(on=True):
        pass
    assert not errors


def test_private_modules_are_not_imported_by_eager_training(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    original = builtins.__import__

    def spy(name: str, *args: Any, **kwargs: Any) -> Any:
        imported.append(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(torch_private, "load", lambda name: pytest.fail(f"{name} was imported"))
    monkeypatch.setattr(builtins, "__import__", spy)
    train(small_run("cross-entropy", execution="eager", epochs=1, warmup=0), problem=small_problem())
    assert not [name for name in imported if name.startswith("torch._inductor")]
