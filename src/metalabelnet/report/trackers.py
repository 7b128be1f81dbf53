"""Curves and results of runs in an experiment tracker: TensorBoard, MLflow or Weights & Biases, in local files.

Everything is read from the run folder, so that a resumed run and a run of another process are logged completely.
Nothing is sent over the network.
"""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from metalabelnet.errors import InputError, missing_package_error, unknown_name_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metalabelnet.train import RunFolder

EXPERIMENT = "metalabelnet"  # name of the project in MLflow and Weights & Biases


class Tracker(Protocol):
    """The log of one run."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve."""

    def finish(self, results: Mapping[str, float]) -> None:
        """Add the results and close the log."""


class TensorBoard:
    """Event files in a subfolder for each run; results are in the tab HPARAMS."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.settings = dict(settings)
        self.writer: Any = SummaryWriter(str(folder / name))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the point of each curve."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self, results: Mapping[str, float]) -> None:
        """Write settings and results, and close the file."""
        if results:
            metrics = {f"result/{name}": value for name, value in results.items()}
            self.writer.add_hparams(self.settings, metrics, run_name=".")
        self.writer.close()


class MLflow:
    """A SQLite database of MLflow: `mlflow ui --backend-store-uri sqlite:///DIR/mlflow.db`."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # else it reports its use over the network
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # else it reports that a database is created
        from mlflow import MlflowClient

        folder.mkdir(parents=True, exist_ok=True)
        self.client: Any = MlflowClient(tracking_uri=f"sqlite:///{folder.absolute() / 'mlflow.db'}")
        found = self.client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            artifacts = (folder.absolute() / "artifacts").as_uri()  # by default: in the working directory
            experiment = self.client.create_experiment(EXPERIMENT, artifact_location=artifacts)
        else:
            experiment = found.experiment_id
        self.run = self.client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            self.client.log_param(self.run, key, value)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the point of each curve."""
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def finish(self, results: Mapping[str, float]) -> None:
        """Write the results, and mark the run as finished, or as failed without results."""
        for name, value in results.items():
            self.client.log_metric(self.run, f"result.{name}", value)
        self.client.set_terminated(self.run, "FINISHED" if results else "FAILED")


class WeightsAndBiases:
    """An offline run of Weights & Biases, which `wandb sync` can upload later."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it reports its failures over the network
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self.run: Any = wandb.init(
            mode="offline",
            project=EXPERIMENT,
            name=name,
            dir=str(folder),
            config=dict(settings),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True),
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the point of each curve."""
        self.run.log(dict(values), step=step)

    def finish(self, results: Mapping[str, float]) -> None:
        """Write the results and close the run, as failed without results."""
        self.run.summary.update({f"result/{name}": value for name, value in results.items()})
        self.run.finish(exit_code=0 if results else 1)


class TrackerKind(NamedTuple):
    """A kind of tracker: its class, and the modules it needs. The extra that installs them has the tracker's name."""

    make: Callable[[Path, str, Mapping[str, Any]], Tracker]
    modules: tuple[str, ...]


TRACKERS = {
    "tensorboard": TrackerKind(TensorBoard, ("tensorboard",)),
    "mlflow": TrackerKind(MLflow, ("mlflow", "sqlalchemy", "alembic")),
    "wandb": TrackerKind(WeightsAndBiases, ("wandb",)),
}


class LogTarget(NamedTuple):
    """What `--log KIND:DIR` names."""

    kind: str
    folder: Path


def parse_log_target(text: str) -> LogTarget:
    """Return what `--log` names; raise InputError if it is unknown or its package is missing."""
    kind, colon, folder = text.partition(":")
    if kind not in TRACKERS:
        raise unknown_name_error("tracker", kind, TRACKERS)
    if not colon or not folder:
        raise InputError(f"--log {text}: name a folder, as in --log {kind}:logs")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise InputError(f"--log {text}: {folder} is a file; name a folder")
    for module in TRACKERS[kind].modules:
        if importlib.util.find_spec(module) is None:
            raise missing_package_error(module, kind, f"--log {kind}")
    return LogTarget(kind, Path(folder))


class RunLog:
    """Logs one run to the trackers, an epoch at a time.

    A tracker that fails is reported and left out; the run is not affected.

    Parameters
    ----------
    targets : list of LogTarget
        The trackers.
    files : RunFolder
        Folder of the run.
    warn : callable
        Called with the message of a tracker that failed.
    """

    def __init__(self, targets: list[LogTarget], files: RunFolder, warn: Callable[[str], None]) -> None:
        self.targets, self.files, self.warn = targets, files, warn
        self.trackers: dict[LogTarget, Tracker] = {}
        self.epochs = 0

    def update(self) -> None:
        """Log the epochs that have ended since the last call."""
        if not self.targets:
            return
        lines = self.files.metrics()
        for line in lines[self.epochs :]:
            self._each(partial(_log_line, line))
        self.epochs = len(lines)

    def finish(self) -> None:
        """Log what is left and, if the run is finished, its results."""
        if not self.targets or not self.files.has("run.json"):
            return
        self.update()
        results = _numbers(self.files.summary()) if self.files.finished else {}
        self._each(lambda tracker: tracker.finish(results))
        self.targets = []

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for target in list(self.targets):
            try:
                if target not in self.trackers:
                    settings = _settings(self.files.metadata())
                    make = TRACKERS[target.kind].make
                    self.trackers[target] = make(target.folder, self.files.path.resolve().name, settings)
                action(self.trackers[target])
            except Exception as error:  # of any kind, in a package that is not ours
                self.targets = [other for other in self.targets if other != target]
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                self.warn(f"{self.files.path}: logging to {target.kind} stopped ({reason})")


def _log_line(line: Mapping[str, Any], tracker: Tracker) -> None:
    tracker.log({name: value for name, value in _numbers(line).items() if name != "epoch"}, line["epoch"])


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {name: float(v) for name, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _settings(metadata: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Return the settings of the run and of its method that have a value; lists as text."""
    run, own = metadata["run"], metadata["method_settings"]
    values = {name: value for name, value in run.items() if name != "settings" and value is not None}
    values |= {f"{run['method']}.{name}": value for name, value in own.items()}
    return {name: v if isinstance(v, str | int | float | bool) else str(v) for name, v in values.items()}
