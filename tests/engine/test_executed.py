"""run.json says how a run was executed; a resumed run keeps its outputs and its earlier fallbacks."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from metalabelnet.engine import EngineFallback
from metalabelnet.errors import RunStopped
from metalabelnet.train import train
from metalabelnet.train.run_folder import RunFolder
from small_runs import small_problem, small_run

OUTPUTS = ("labels.csv", "model.safetensors")


def executed(folder: Path) -> dict[str, Any]:
    entry: dict[str, Any] = RunFolder(folder).metadata()["executed"]
    return entry


class DataDependentNet(nn.Sequential):
    """A network whose step cannot be traced."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.mean() > -10 else -x)


def test_run_json_says_what_was_executed(tmp_path: Path) -> None:
    run = small_run("cross-entropy", epochs=1, warmup=0)
    train(run, problem=small_problem(), folder=tmp_path)
    entry = executed(tmp_path)
    assert (entry["execution"], entry["kernels"], entry["fallbacks"]) == ("eager", "none", [])
    assert entry["device"] == RunFolder(tmp_path).metadata()["versions"]["device"]
    assert RunFolder(tmp_path).run() == run


def test_fallback_is_in_run_json_at_once_and_after_a_resume(tmp_path: Path) -> None:
    """The outputs have the same bytes as those of an eager run without an interruption."""
    changes = {"epochs": 2, "warmup": 0}
    run, seen = small_run("cross-entropy", execution="compiled", **changes), []

    def stop() -> bool:
        seen.append(executed(tmp_path / "run"))
        return len(seen) == 3

    net = DataDependentNet()
    initial = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.warns(EngineFallback, match="cannot be traced"), pytest.raises(RunStopped):
        train(run, problem=small_problem(), folder=tmp_path / "run", net=net, stop=stop)
    assert seen[0]["execution"] == "eager"
    (reason,) = seen[0]["fallbacks"]
    assert "the step cannot be traced" in reason
    with pytest.warns(EngineFallback, match="cannot be traced"):
        train(run, problem=small_problem(), folder=tmp_path / "run", net=net, resume=True)
    assert executed(tmp_path / "run")["fallbacks"] == [reason]
    eager_net = DataDependentNet()
    eager_net.load_state_dict(initial)
    eager = small_run("cross-entropy", execution="eager", **changes)
    train(eager, problem=small_problem(), folder=tmp_path / "eager", net=eager_net)
    for name in OUTPUTS:
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "eager" / name).read_bytes()
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "eager")]
    for summary in summaries:
        summary.pop("seconds")
    assert summaries[0] == summaries[1]


def test_fallbacks_of_both_parts_of_a_resumed_run_are_listed(tmp_path: Path) -> None:
    train(small_run("cross-entropy", epochs=1, warmup=0), problem=small_problem(), folder=tmp_path)
    (tmp_path / "digests.json").unlink()  # a finished run is not changed
    folder, entry = RunFolder(tmp_path), executed(tmp_path)
    for reasons, expected in [(["a"], ["a"]), (["a", "b"], ["a", "b"]), ([], ["a", "b"])]:
        folder.write_executed(entry | {"fallbacks": reasons})
        assert executed(tmp_path)["fallbacks"] == expected
