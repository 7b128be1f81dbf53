"""The choice of convolution kernels, and training without the Hopper package."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from metalabelnet.engine.kernel_selection import select_kernels
from metalabelnet.engine.kernels import NoKernels
from metalabelnet.errors import InputError
from metalabelnet.reproduction.results import make_result_line, run_key
from metalabelnet.train.settings import Run
from sample_results import METADATA, run_spec

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture
def hopper_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the GPU has compute capability 9.0."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


@pytest.mark.usefixtures("hopper_gpu")
def test_auto_uses_cudnn_for_float32_and_without_a_gpu() -> None:
    assert select_kernels("auto", CUDA, bf16=False).name == "cudnn"
    assert select_kernels("auto", CPU, bf16=True).name == "cudnn"


@pytest.mark.usefixtures("hopper_gpu")
def test_cudnn_never_uses_hopper_kernels() -> None:
    assert isinstance(select_kernels("cudnn", CUDA, bf16=True), NoKernels)


def test_other_gpus_use_cudnn_or_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    assert select_kernels("auto", CUDA, bf16=True).name == "cudnn"
    with pytest.raises(InputError, match=r"9\.0 \(H100, H200\), and this one has 8\.6; choose auto or cudnn"):
        select_kernels("hopper", CUDA, bf16=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float32"}, "dtype bf16, not float32"),
        ({"dtype": "bf16", "execution": "eager"}, "eagerly"),
        ({"dtype": "bf16", "method": "logistic-both"}, "eagerly"),
    ],
)
def test_settings_reject_hopper_where_it_is_never_used(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Run(kernels="hopper", **changes)
    with pytest.raises(InputError, match=r"triton.*auto.*cudnn.*hopper"):
        Run(kernels="triton")


@pytest.mark.usefixtures("hopper_gpu")
def test_missing_package_is_a_failure_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metalabelnet.engine.hopper", None)
    kernels = select_kernels("auto", CUDA, bf16=True)
    assert kernels.name == "cudnn"
    assert "cannot be imported" in kernels.failures[0]
    with pytest.raises(InputError, match="hopper"):
        select_kernels("hopper", CUDA, bf16=True)


WITHOUT_HOPPER = """
import sys, torch
sys.modules["metalabelnet.engine.hopper"] = None
sys.path.insert(0, {helpers!r})
torch.set_num_threads(1)
from metalabelnet.engine import engine as engine_module
from metalabelnet.engine.engine import Engine
from metalabelnet.engine.rewrites import operators
from metalabelnet.train.build_method import build_method
from small_runs import make_batches, small_problem, small_run, tiny_cnn

original = operators.OperatorRewrites.__init__
def on_cuda(self, *, rewrite_convolutions, kernels):  # rewrite convolutions on this CPU, too
    original(self, rewrite_convolutions=True, kernels=kernels)
operators.OperatorRewrites.__init__ = on_cuda
run, problem = small_run("metalabelnet", dtype="float32", epochs=2, warmup=1), small_problem()
eager, traced = (build_method(run, problem, tiny_cnn()) for _ in range(2))
all_batches = make_batches(run, problem, eager)
engine = Engine(traced, all_batches.make_batch, traced=True, compile=False)
for epoch in range(2):
    for method in (eager, traced):
        method.begin_epoch(epoch)
    for plan in all_batches.plan_epoch(epoch, labeled_only=eager.labeled_only(epoch)):
        torch.testing.assert_close(engine.step(plan), eager.step(all_batches.make_batch(plan)), rtol=1e-3, atol=1e-3)
    for method in (eager, traced):
        method.end_epoch(epoch)
assert engine.traced and engine.executed()["execution"] == "traced", engine.executed()
assert not [name for name in sys.modules if name.startswith("metalabelnet.engine.hopper.")]
print("done")
"""


def test_traced_training_works_without_the_hopper_package() -> None:
    code = WITHOUT_HOPPER.format(helpers=str(Path(__file__).parents[1] / "helpers"))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.splitlines()[-1:] == ["done"], result.stderr


def test_kernels_are_not_part_of_a_result_s_identity() -> None:
    """They are stored as a part of how a run was computed; lines without them are those of `auto`."""
    line = make_result_line(run_spec("cifar10-table"), metadata=METADATA | {"method_settings": {}})
    assert line["settings"]["kernels"] == "auto"
    stored = METADATA | {"method_settings": {}, "run": METADATA["run"] | {"kernels": "cudnn"}}
    assert make_result_line(run_spec("cifar10-table"), metadata=stored)["settings"]["kernels"] == "cudnn"
    settings = {name: value for name, value in line["settings"].items() if name != "kernels"}
    assert len({run_key(settings), run_key(line["settings"]), run_key(settings | {"kernels": "cudnn"})}) == 1
