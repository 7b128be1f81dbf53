"""The run folder: all files of a run.

run.json           settings, classes, sample shape, data digest, what was executed, package versions, commit
metrics.jsonl      one JSON object per epoch
summary.json       the result; written last, so a folder that has it is finished
model.safetensors  weights of the selected epoch
calibration.json   temperature of the model, and provenance of the corrected labels
labels.csv         given label, corrected label, confidence, suspicion and probabilities of each training sample
labels.npy         probabilities of the classes, if there are too many for labels.csv
soft_labels.npy    soft labels of the method, if there are too many classes for labels.csv
*_classes.npy      the classes of their columns, of each row, if they have the most likely classes only
confusion.json     nonzero cells of the confusion matrix, on the test rows or else the validation rows
encoder.json       configuration of the encoder that turned samples into tensors, for folders and tables
clean_set.json     positions and classes of the clean rows, if they were drawn from the training rows
digests.json       SHA-256 of every other file; files are checked against it when they are read
checkpoint/        state to resume from, the state before it, and a lock; removed when the run is finished

A folder may come from a stranger: links are rejected, and all content is checked before it is used. PyTorch takes
seconds to import; it is imported in the functions that need it, so that `review` exports labels without it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_type_hints

from metalabelnet.atomic_write import is_temporary_file, remove_temporary_files
from metalabelnet.errors import InputError, as_path
from metalabelnet.run_options import RunOptions
from metalabelnet.train import json_files
from metalabelnet.train.digested_folder import DigestedFolder
from metalabelnet.train.folder_checks import all_settings, check_output_folder, check_outside_data
from metalabelnet.train.folder_lock import check_no_link, lock_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch
    from torch import Tensor

    from metalabelnet.data.encoders import Encoder
    from metalabelnet.train.settings import Run


FILES = frozenset(
    (
        *("run.json", "metrics.jsonl", "summary.json", "model.safetensors", "calibration.json", "labels.csv"),
        *("labels.npy", "soft_labels.npy", "labels_classes.npy", "soft_labels_classes.npy"),
        *("confusion.json", "encoder.json", "clean_set.json", "digests.json"),
    )
)
CHECKPOINT_FILES = frozenset(("state.pt", "previous.pt", "lock"))


class RunFolder(DigestedFolder):
    """Read and write the files of one run.

    Parameters
    ----------
    path : Path or str
        The folder. It need not exist.

    Attributes
    ----------
    path : Path
        The folder.
    checkpoint : Path
        File of the checkpoint.

    Examples
    --------
    >>> from metalabelnet.train import RunFolder
    >>> RunFolder("runs/none").finished
    False
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(as_path("folder", path))
        self.checkpoint = self.path / "checkpoint" / "state.pt"

    def check(self, run: Run, *, resume: bool) -> None:
        """Raise InputError if the run cannot be trained in this folder. No file is written.

        Parameters
        ----------
        run : Run
            The run to train.
        resume : bool
            Whether an unfinished run in the folder may be resumed. Its settings must equal those of `run`.
        """
        check_outside_data(self.path, run)
        check_output_folder(self.path)
        if not self.path.exists():
            return
        self.check_links()
        if not (self.path / "run.json").exists():
            if not all(self._is_left_by_a_start(entry) for entry in self.path.iterdir()):
                raise InputError(f"{self.path} is not empty and has no run.json: choose another folder with --out")
            return
        if not resume:
            raise InputError(
                f"{self.path} already holds a run: resume it with --resume, or choose another folder with --out"
            )
        stored, new = all_settings(self.run(), self.metadata()["method_settings"]), all_settings(run)
        for name, value in new.items():
            if value != stored.get(name):
                raise InputError(
                    f"{self.path} was started with {name} = {stored.get(name)!r}, not {value!r}: "
                    "resume with the settings of the run, or choose another folder with --out"
                )

    def check_links(self) -> None:
        """Raise InputError if a file of the run, or the folder of its checkpoint, is a symbolic link.

        Such a link would lead reads and writes out of the folder. The folder itself may be a link.
        """
        folder = self.checkpoint.parent
        paths = [*(self.path / name for name in sorted(FILES)), folder]
        if not folder.is_symlink():
            paths += [folder / name for name in sorted(CHECKPOINT_FILES)]
        for path in paths:
            check_no_link(path)

    def _is_left_by_a_start(self, entry: Path) -> bool:
        """Return whether a process that was killed before it wrote run.json has left this entry of the folder."""
        if entry == self.checkpoint.parent and entry.is_dir():
            return all(child.name == "lock" for child in entry.iterdir())
        return is_temporary_file(entry, FILES)

    def check_data(self, digest: str) -> None:
        """Raise InputError if the data differs from the data the run was started with."""
        if (self.path / "run.json").exists() and self.metadata()["data_digest"] != digest:
            raise InputError(
                f"{self.path}: the data has changed since the run was started: restore it, or train a new run with "
                "another --out"
            )

    def create(
        self,
        run: Run,
        *,
        encoder_config: dict[str, Any] | None = None,
        clean_labels: dict[int, int] | None = None,
        device: torch.device | None = None,
        **facts: Any,
    ) -> None:
        """Create the folder with the files that are known at the start, or check that its run has the same facts.

        Parameters
        ----------
        run : Run
            The settings.
        encoder_config : dict, optional
            Content of encoder.json.
        clean_labels : dict, optional
            Content of clean_set.json: the class of each clean row by its position.
        device : torch.device, optional
            The device that trains, as in `versions`.
        **facts
            Further entries of run.json.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / "run.json").exists():
            stored, new = self.metadata(), json.loads(json.dumps(facts))
            for name in facts:
                if stored.get(name, new[name]) != new[name]:
                    raise InputError(
                        f"{self.path / 'run.json'}: {name} is {str(stored[name])[:80]}, but that of the run is "
                        f"{str(new[name])[:80]}: copy the run folder again, or choose another folder with --out"
                    )
        else:
            from metalabelnet.train.versions import commit, versions

            metadata = {
                "run": dataclasses.asdict(run),
                "method_settings": dataclasses.asdict(run.method_settings()),
                **facts,
                "versions": versions(device),
                "commit": commit(),
            }
            self.write_json("run.json", metadata)
        if encoder_config is not None:  # also on resume: a process may have been killed before it wrote the file
            self.write_once("encoder.json", json.dumps(encoder_config, ensure_ascii=False) + "\n")
        if clean_labels is not None:
            content = {"positions": list(clean_labels), "labels": list(clean_labels.values())}
            self.write_once("clean_set.json", json.dumps(content) + "\n")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder and hold a lock against other processes that train in it, until this process ends.

        Temporary files that killed processes have left are removed.

        Raises
        ------
        RunBusyError
            If another process holds the lock.
        """
        folder = self.checkpoint.parent
        self.path.mkdir(parents=True, exist_ok=True)
        check_no_link(folder)
        folder.mkdir(exist_ok=True)
        with lock_file(folder / "lock", self.path):
            remove_temporary_files(self.path, FILES)
            remove_temporary_files(folder, CHECKPOINT_FILES)
            yield

    def options(self, **changes: Any) -> RunOptions:
        """Return the settings of the run, with changes, of the right types but unchecked."""
        try:
            return RunOptions(**{**self.metadata()["run"], **changes})
        except TypeError as error:
            raise self._other_version(str(error)) from error

    def run(self, **changes: Any) -> Run:
        """Return the settings of the run, checked.

        Parameters
        ----------
        **changes
            Fields to change. If `data` changes, its format is detected again.
        """
        from metalabelnet.train.settings import Run

        fields = self.metadata()["run"]
        if "data" in changes:
            changes = {"data_format": "auto", **changes}
        try:
            return Run(**{**fields, "lr_milestones": tuple(fields["lr_milestones"]), **changes})
        except (KeyError, TypeError) as error:
            raise self._other_version(str(error)) from error

    def _other_version(self, reason: str) -> InputError:
        file = self.path / "run.json"
        return InputError(f"{file} was written by another version ({reason}): train again, or use that version")

    def metadata(self) -> dict[str, Any]:
        """Return the content of run.json."""
        file = self.path / "run.json"
        if not self.has(file.name):
            runs = sorted(file.parent for file in self.path.glob(f"*/{file.name}"))
            if runs:
                raise InputError(f"{self.path} is not a run folder, but holds run folders: give one, such as {runs[0]}")
            raise InputError(
                f"{self.path} is not a run folder: it has no run.json; give a folder that train or compare has created"
            )
        metadata = json_files.parse_object(
            file, self.read(file.name), json_files.METADATA, json_files.OPTIONAL_METADATA
        )
        json_files.check_fields(file, metadata.get("executed", {}), {}, json_files.EXECUTED)
        json_files.check_shape(file, metadata["shape"])
        types = get_type_hints(RunOptions)
        if missing := [name for name in ("data", "method", "net", "noise", "seed") if name not in metadata["run"]]:
            raise self._other_version(f"{missing[0]!r} is missing")
        json_files.check_fields(file, metadata["run"], {}, types)
        return metadata

    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        if not self.finished:
            self.metadata()  # raises InputError if this is not a run folder
            raise self._not_finished("summary.json")
        file = self.path / "summary.json"
        summary = json_files.parse_object(file, self.read(file.name), json_files.SUMMARY, json_files.OPTIONAL_SUMMARY)
        json_files.check_summary_parts(file, summary)
        return summary

    def _not_finished(self, missing: str) -> InputError:
        command = shlex.join(["metalabelnet", "train", str(self.path), "--resume"])
        return InputError(f"{self.path} has no {missing}: the run is not finished; resume it with: {command}")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each epoch so far."""
        file = self.path / "metrics.jsonl"
        lines = self.read(file.name).splitlines() if self.has(file.name) else []
        return [json_files.parse_object(file, line, json_files.METRICS, json_files.OPTIONAL_METRICS) for line in lines]

    def weights(self, device: torch.device) -> dict[str, Tensor]:
        """Return the weights of the selected epoch by name."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        file = self.path / "model.safetensors"
        if not self.has(file.name):
            raise self._not_finished("model.safetensors")
        try:
            return {name: tensor.to(device) for name, tensor in load(self.read(file.name)).items()}
        except SafetensorError as error:
            reason = " ".join(str(error).split())[:80]
            raise InputError(
                f"{file} is not a metalabelnet model ({reason}): copy the run folder again, or train again"
            ) from error

    def encoder(self) -> Encoder | None:
        """Return the encoder of encoder.json; None if the samples were tensors already."""
        from metalabelnet.data.encoders import encoder_from_json

        file = self.path / "encoder.json"
        if not self.has(file.name):
            return None
        return encoder_from_json(json_files.parse_object(file, self.read(file.name), json_files.ENCODER), file)

    def temperature(self) -> float:
        """Return the temperature that the logits are divided by for calibrated probabilities."""
        file = self.path / "calibration.json"
        if not self.has(file.name):
            raise InputError(f"{file} is missing: copy the run folder again, or train again")
        temperature = json_files.parse_object(file, self.read(file.name), json_files.CALIBRATION)["temperature"]
        if not (math.isfinite(temperature) and temperature > 0):
            raise InputError(f"{file}: temperature {temperature} is not a positive number")
        return float(temperature)

    def confusion(self) -> dict[str, Any] | None:
        """Return the content of confusion.json; None if the run has none."""
        file = self.path / "confusion.json"
        if not self.has(file.name):
            return None
        return json_files.parse_object(file, self.read(file.name), json_files.CONFUSION)

    def drawn_clean_labels(self) -> dict[int, int] | None:
        """Return the class of each clean row by its position in the data; None if the run has not stored them."""
        file = self.path / "clean_set.json"
        if not self.has(file.name):
            return None
        content = json_files.parse_object(file, self.read(file.name), json_files.CLEAN_SET)
        positions, labels = content["positions"], content["labels"]
        if not len({*positions}) == len(positions) == len(labels) or any(value < 0 for value in (*positions, *labels)):
            raise InputError(
                f"{file}: positions and labels are not those of a clean set: copy the run folder again, or train again"
            )
        return dict(zip(positions, labels, strict=True))

    def write_metrics(self, history: list[dict[str, Any]], *, sync: bool = True) -> None:
        """Write metrics.jsonl as a whole: after a resume it must not have epochs past the checkpoint."""
        text = "".join(json.dumps(line) + "\n" for line in history)
        self._write_chunks("metrics.jsonl", (text.encode(),), sync=sync)

    def write_model(self, tensors: dict[str, Tensor]) -> None:
        """Write model.safetensors."""
        from safetensors.torch import save

        self._write_chunks("model.safetensors", (save({k: t.contiguous().cpu() for k, t in tensors.items()}),))

    def write_executed(self, executed: dict[str, Any]) -> None:
        """Add to run.json how steps were executed (see `Engine.executed`); fallbacks before a resume stay listed."""
        metadata = self.metadata()
        earlier = metadata.get("executed", {}).get("fallbacks", [])
        fallbacks = [*earlier, *(reason for reason in executed["fallbacks"] if reason not in earlier)]
        self.write_json("run.json", metadata | {"executed": executed | {"fallbacks": fallbacks}})

    def finish(self, summary: dict[str, Any]) -> None:
        """Write digests.json, then summary.json, with which the run is finished; then remove the checkpoint."""
        self._write_digests_and_summary(summary)
        shutil.rmtree(self.checkpoint.parent, ignore_errors=True)
