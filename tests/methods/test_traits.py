"""Method traits: complete for every method, and the only source of facts about methods for the rest of the package."""

import ast
import dataclasses
from pathlib import Path

import pytest

import metalabelnet
from metalabelnet.methods import METHODS, MethodTraits
from metalabelnet.run_options import RunOptions
from metalabelnet.train import cost_estimate
from metalabelnet.train.cost_estimate import estimate_cost
from small_runs import TRAINED_METHODS, small_problem, small_run

SOURCE = Path(metalabelnet.__file__).parent
PACKAGES = ("train", "labels", "launch", "inference", "estimator", "report", "cli")


@pytest.mark.parametrize("name", METHODS)
def test_traits_are_complete(name: str) -> None:
    method = METHODS[name]
    traits = method.traits
    assert isinstance(traits, MethodTraits)
    assert 10 < len(traits.summary) <= 105
    assert "\n" not in traits.summary
    assert not traits.summary.endswith(".")
    if traits.reference == "–":
        assert not traits.paper_url
    else:
        assert traits.reference[-4:].isdigit()
        assert traits.paper_url.startswith("https://arxiv.org/abs/")
    assert traits.relative_cost >= 1
    assert traits.relative_cost > 2 or not traits.looks_ahead
    assert set(traits.own_recipe) <= {field.name for field in dataclasses.fields(RunOptions)}
    assert set(traits.own_recipe.get("settings", {})) <= {field.name for field in dataclasses.fields(method.Settings)}


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_has_a_help_text(name: str) -> None:
    for field in dataclasses.fields(METHODS[name].Settings):
        text = field.metadata.get("help", "")
        assert text, field.name
        assert not text.endswith("."), field.name


@pytest.mark.parametrize("name", METHODS)
def test_file_of_a_method_links_its_paper(name: str) -> None:
    file = SOURCE.parent.joinpath(*METHODS[name].__module__.split(".")).with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert docstring is not None
    assert METHODS[name].traits.paper_url in docstring


@pytest.mark.parametrize("name", TRAINED_METHODS)
def test_cost_estimate_comes_from_traits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes one second by this clock, evaluating a batch a third; changing the traits changes the estimate."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(cost_estimate, "_now", lambda _device: float(next(seconds) * cost_estimate.TIMED_STEPS))
    run, problem = small_run(name, epochs=3, warmup=1, snapshots=0), small_problem()  # no head refit
    steps = 3 * (len(problem.train) // run.batch_size)
    evaluation = 3 * 99 / run.batch_size / 3  # of 48 training, 12 clean, 9 validation and 30 test images
    assert estimate_cost(run, problem).seconds == pytest.approx(steps * METHODS[name].traits.relative_cost + evaluation)
    estimates = []
    for looks_ahead in (False, True):
        traits = dataclasses.replace(METHODS[name].traits, relative_cost=7.0, looks_ahead=looks_ahead)
        monkeypatch.setattr(METHODS[name], "traits", traits)
        estimates.append(estimate_cost(run, problem))
    assert estimates[0].seconds == pytest.approx(7 * steps + evaluation)
    assert estimates[0].bytes < estimates[1].bytes


def strings_compared_or_used_as_keys(tree: ast.AST) -> set[str]:
    """Return the string constants in comparisons, dictionary keys and match patterns."""
    roots: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            roots.append(node)
        elif isinstance(node, ast.Dict):
            roots += [key for key in node.keys if key is not None]
    constants = [node.value for root in roots for node in ast.walk(root) if isinstance(node, ast.Constant)]
    return {value for value in constants if isinstance(value, str)}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_code_depends_on_the_name_of_a_method(package: str) -> None:
    """A new method must not need a change there."""
    for file in sorted((SOURCE / package).rglob("*.py")):
        used = strings_compared_or_used_as_keys(ast.parse(file.read_text(encoding="utf-8")))
        assert not used & (METHODS.keys() - {"metalabelnet"}), file  # "metalabelnet" is the package's name, too


def test_strings_compared_or_used_as_keys() -> None:
    tree = ast.parse('x = "a" == y; d = {"b": "c"}; z = y in ("d", "e")\nmatch x:\n    case "f":\n        pass')
    assert strings_compared_or_used_as_keys(tree) == {"a", "b", "d", "e", "f"}
