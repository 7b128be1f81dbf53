"""The human labels of CIFAR-10N and CIFAR-100N, with stand-ins of the published files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metalabelnet.errors import InputError
from metalabelnet.noise import Noise, corrupt
from metalabelnet.noise.cifar_n import FILES, read_human_labels
from metalabelnet.noise.class_dependent import CIFAR10_CLASSES
from metalabelnet.train import make_run
from metalabelnet.train.prepare import prepare
from tiny_data import write_human_labels

KEYS = ("clean_label", *FILES["cifar10n"].keys.values())
TRUE = torch.arange(20) % 10


class MaliciousPickle:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("evil.txt"),)


def write(folder: Path, **changes: Any) -> Path:
    """Write a stand-in in which the k-th label set is the true label plus k."""
    arrays = {key: (TRUE.numpy() + k) % 10 for k, key in enumerate(KEYS)}
    path = folder / "CIFAR-10_human.pt"
    torch.save({name: array for name, array in (arrays | changes).items() if array is not None}, path)
    return path


def labels(spec: str, folder: Path, true: torch.Tensor = TRUE, **options: Any) -> list[int]:
    return corrupt(Noise.parse(spec), true, CIFAR10_CLASSES, torch.Generator(), folder=folder, **options).tolist()


@pytest.mark.parametrize(
    ("label_set", "key"),
    [
        ("worst", "worse_label"),
        ("aggregate", "aggre_label"),
        ("random1", "random_label1"),
        ("random2", "random_label2"),
        ("random3", "random_label3"),
    ],
)
def test_label_sets_of_cifar10n(label_set: str, key: str, tmp_path: Path) -> None:
    write(tmp_path)
    assert labels(f"cifar10n:{label_set}", tmp_path) == ((TRUE + KEYS.index(key)) % 10).tolist()


def test_labels_of_cifar100n(tmp_path: Path) -> None:
    true = torch.arange(100)
    write_human_labels(tmp_path, true)
    given = corrupt(Noise.parse("cifar100n"), true, tuple(map(str, range(100))), torch.Generator(), folder=tmp_path)
    assert given.tolist() == [(k + k % 2) % 100 for k in range(100)]


def test_labels_are_looked_up_by_sample_number(tmp_path: Path) -> None:
    write(tmp_path)
    index = torch.tensor([13, 2, 19])
    assert labels("cifar10n:worst", tmp_path, true=TRUE[index], index=index) == [4, 3, 0]
    assert labels("cifar10n:worst", tmp_path, true=torch.tensor([3, -1, 9]), index=index) == [4, -1, 0]


def test_data_in_another_order_raises_input_error(tmp_path: Path) -> None:
    write(tmp_path)
    true = TRUE.clone()
    true[7] = 2
    message = r"noise cifar10n:worst: sample 7 of the data has label 2, but its clean label in .*CIFAR-10_human.pt is 7"
    with pytest.raises(InputError, match=message):
        labels("cifar10n:worst", tmp_path, true=true)
    with pytest.raises(InputError, match="the label file has 20 labels, but the data has 12 samples"):
        labels("cifar10n:worst", tmp_path, true=TRUE[:12], samples=12)


@pytest.mark.parametrize(
    ("spec", "name"), [("cifar10n:worst", "CIFAR-10_human.pt"), ("cifar100n", "CIFAR-100_human.pt")]
)
def test_missing_file_is_named_with_its_source(spec: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"there is no file .*{name}'; download {name} from https://github.com/UCSC"):
        labels(spec, tmp_path)


def test_malicious_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, worse_label=MaliciousPickle())
    with pytest.raises(InputError, match=r"this is not CIFAR-10_human\.pt of CIFAR-10N"):
        labels("cifar10n:worst", tmp_path)
    assert not (tmp_path / "evil.txt").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worse_label": None}, "no list of labels 'worse_label'"),
        ({"clean_label": None}, "no list of labels 'clean_label'"),
        ({"worse_label": np.ones((2, 2), dtype=int)}, "no list of labels 'worse_label'"),
        ({"worse_label": np.arange(19)}, "'clean_label' and 'worse_label' have different lengths"),
        ({"worse_label": np.arange(20)}, "has labels outside 0 to 9"),
    ],
)
def test_damaged_file_raises_input_error(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        labels("cifar10n:worst", tmp_path)


def test_foreign_file_raises_input_error(tmp_path: Path) -> None:
    (tmp_path / "CIFAR-10_human.pt").write_text("text")
    with pytest.raises(InputError, match=r"this is not CIFAR-10_human\.pt of CIFAR-10N"):
        read_human_labels(tmp_path / "CIFAR-10_human.pt", FILES["cifar10n"], "worse_label")


def test_run_finds_the_file_with_the_data(tmp_path: Path) -> None:
    """Also the clean samples keep their human labels."""
    true = torch.arange(60) % 10
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 32, 32)).astype(np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=true.numpy(), x_test=x[:10], y_test=true[:10].numpy())
    write_human_labels(tmp_path, true)
    run = make_run(
        data="cifar10", data_dir=str(tmp_path), noise="cifar10n:aggregate", clean=20, device="cpu", split="general"
    )
    problem = prepare(run)
    for rows in (problem.train, problem.clean, problem.validation):
        wrong = rows.index % 2 == 1
        assert torch.equal(rows.given, torch.where(wrong, (rows.true + 1) % 10, rows.true))
    assert len(problem.train) + len(problem.clean) + len(problem.validation) == 60
