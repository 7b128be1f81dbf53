"""The file of CIFAR-10N's human labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metalabelnet.errors import InputError
from metalabelnet.noise.cifar10n import LABEL_SETS, read_human_labels
from metalabelnet.reproduction.resources import Resources, check_noise_probs, write_human_labels
from metalabelnet.reproduction.selection import Selection, run_specs


class MaliciousPickle:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("evil.txt"),)


def write(path: Path, **changes: Any) -> Path:
    arrays = {key: np.arange(20) % (k + 2) for k, key in enumerate(("clean_label", *LABEL_SETS.values()))}
    torch.save({name: array for name, array in (arrays | changes).items() if array is not None}, path)
    return path


def test_all_label_sets_are_read(tmp_path: Path) -> None:
    labels = read_human_labels(write(tmp_path / "human.pt"))
    assert list(labels) == ["aggregate", "random1", "random2", "random3", "worst"]
    assert labels["worst"].tolist() == [k % 7 for k in range(20)]
    assert labels["aggregate"].tolist() == [k % 3 for k in range(20)]
    assert labels["worst"].dtype == np.int64


def test_malicious_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="this is not CIFAR-10_human"):
        read_human_labels(write(tmp_path / "human.pt", worse_label=MaliciousPickle()))
    assert not (tmp_path / "evil.txt").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worse_label": None}, "no list of labels 'worse_label'"),
        ({"aggre_label": np.ones((2, 2), dtype=int)}, "'aggre_label'"),
    ],
)
def test_missing_label_set_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_human_labels(write(tmp_path / "human.pt", **changes))


def test_missing_or_foreign_file_raises_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_human_labels(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("text")
    with pytest.raises(InputError, match="this is not CIFAR-10_human"):
        read_human_labels(tmp_path / "text.pt")
    (tmp_path / "probs.npy").write_text("text")
    with pytest.raises(InputError, match="is not the authors' file"):
        check_noise_probs(tmp_path / "probs.npy")


def test_unpacked_labels_are_noise_of_run(tmp_path: Path) -> None:
    folder = write_human_labels(write(tmp_path / "human.pt"), tmp_path / "labels")
    (entry,) = run_specs("cifar10n", Selection(methods=("gce",), cells=("worst",)))
    run = Resources(human_labels=folder, device="cpu").run(entry)
    assert run.noise == f"file:{folder / 'cifar10n-worst.npy'}"
    written = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    write_human_labels(tmp_path / "human.pt", folder)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == written
