"""Label noise: exact counts, the papers' rules against naive loops, and messages for wrong input."""

from __future__ import annotations

import hashlib
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metalabelnet.errors import InputError
from metalabelnet.noise import (
    NOISE_KINDS,
    Noise,
    actual_noise_rate,
    class_dependent_noise,
    class_targets,
    corrupt,
    feature_dependent_noise,
    matrix_noise,
    read_label_file,
    read_matrix,
    read_probabilities,
    uniform_noise,
)
from metalabelnet.noise.class_dependent import CIFAR10_CLASSES
from metalabelnet.noise.spec import flip_count
from tiny_data import write_human_labels

quick = settings(max_examples=50, deadline=None)
rates = st.floats(0, 1, exclude_max=True)
seeds = st.integers(0, 2**32)


@st.composite
def labelings(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Labels with some of them −1, and the number of classes."""
    classes = draw(st.integers(2, 6))
    labels = draw(st.lists(st.integers(-1, classes - 1), min_size=1, max_size=60))
    return torch.tensor(labels), classes


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def names(classes: int) -> tuple[str, ...]:
    return tuple(f"class {i}" for i in range(classes))


def raises_input_error(message: str) -> pytest.RaisesExc[InputError]:
    return pytest.raises(InputError, match=re.escape(message))


# --- specification -------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["none", "uniform:0.4", "class:0.3", "feature:0.25", "cifar10n:worst", "cifar100n"])
def test_parse_and_str_are_inverse(spec: str) -> None:
    assert str(Noise.parse(spec)) == spec


@pytest.mark.parametrize("kind", ["matrix", "file"])
def test_parse_and_str_of_files_are_inverse(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a:b.csv"
    path.write_text("0\n")
    noise = Noise.parse(f"{kind}:{path}")
    assert noise == Noise(kind=kind, path=path)
    assert str(noise) == f"{kind}:{path}"


@quick
@given(rates)
def test_parse_and_str_keep_every_rate(rate: float) -> None:
    assert Noise.parse(str(Noise(kind="uniform", rate=rate))).rate == rate


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("unifrom:0.4", "unknown noise 'unifrom': did you mean 'uniform'? choose from asymmetric, cifar100n,"),
        ("", "unknown noise ''"),
        ("uniform", "noise 'uniform' has no rate; write uniform:RATE, for example uniform:0.4"),
        ("class:", "noise 'class:' has no rate; write class:RATE"),
        ("matrix", "noise 'matrix' has no file; write matrix:FILE"),
        ("uniform:lots", "noise 'uniform:lots': 'lots' is not a number; write uniform:RATE"),
        ("uniform:40%", "'40%' is not a number"),
        ("uniform:1.2", "noise rate 1.2 is not in [0, 1)"),
        ("uniform:1", "noise rate 1.0 is not in [0, 1)"),
        ("class:-0.1", "noise rate -0.1 is not in [0, 1)"),
        ("feature:nan", "noise rate nan is not in [0, 1)"),
        ("feature:inf", "noise rate inf is not in [0, 1)"),
        ("none:0.4", "noise 'none:0.4': 'none' takes neither rate nor file; write none"),
        ("none:", "'none' takes neither rate nor file"),
        ("cifar10n", "noise 'cifar10n' has no set; write cifar10n:SET, for example cifar10n:worst"),
        ("cifar10n:wrost", "unknown label set of CIFAR-10N 'wrost': did you mean 'worst'?"),
        ("cifar100n:worst", "'cifar100n' takes neither rate nor file; write cifar100n"),
        ("file:not/there.npy", "noise 'file:not/there.npy': there is no file 'not/there.npy'"),
    ],
)
def test_wrong_spec_raises_input_error(spec: str, message: str) -> None:
    with raises_input_error(message):
        Noise.parse(spec)


def test_constructor_checks_arguments() -> None:
    with raises_input_error("unknown noise 'gauss'"):
        Noise(kind="gauss")
    with raises_input_error("noise 'uniform' takes a rate and no file"):
        Noise(kind="uniform")
    with raises_input_error("noise 'file' takes a file and no rate"):
        Noise(kind="file", path=Path("x.npy"), rate=0.2)
    with raises_input_error("noise 'none' takes neither rate nor file"):
        Noise(kind="none", rate=0.2)
    with raises_input_error("noise rate 2 is not in [0, 1)"):
        Noise(kind="class", rate=2)
    with raises_input_error("noise 'cifar10n' takes a label set only"):
        Noise(kind="cifar10n", label_set="worst", rate=0.2)


def test_every_kind_has_summary_and_reference() -> None:
    assert list(NOISE_KINDS) == [
        "none", "uniform", "symmetric", "asymmetric", "class", "feature", "instance", "cifar10n", "cifar100n", "matrix",
        "file",
    ]  # fmt: skip
    for name, kind in NOISE_KINDS.items():
        assert kind.usage.startswith(name)
        assert kind.summary
        assert name == "none" or re.search(r"(19|20)\d\d", kind.reference)


def test_flip_count_corrects_rounding_errors() -> None:
    assert int(100 * 0.29) == 28  # 28.999…
    assert flip_count(100, 0.29) == 29
    assert flip_count(10, 0.19) == 1
    assert flip_count(50000, 0.4) == 20000
    assert flip_count(0, 0.4) == 0


# --- uniform --------------------------------------------------------------------------------------


@quick
@given(labelings(), rates, seeds)
def test_uniform_noise_flips_exact_count_to_other_classes(labeling: tuple[Tensor, int], rate: float, seed: int) -> None:
    true, classes = labeling
    before = true.clone()
    out = uniform_noise(true, classes, rate, rng(seed))
    labeled = true >= 0
    assert torch.equal(true, before)
    assert out.dtype == torch.int64
    assert torch.equal(out[~labeled], true[~labeled])
    assert int((out != true).sum()) == flip_count(int(labeled.sum()), rate)
    assert bool(((out[labeled] >= 0) & (out[labeled] < classes)).all())
    if labeled.any():
        assert actual_noise_rate(true, out) == pytest.approx(flip_count(int(labeled.sum()), rate) / labeled.sum())


def test_uniform_noise_targets_are_equally_likely() -> None:
    """Every wrong class of every class within 4.5 standard errors of its expectation."""
    classes, rate = 5, 0.6
    true = torch.arange(classes).repeat_interleave(20000)
    out = uniform_noise(true, classes, rate, rng())
    counts = torch.bincount(true * classes + out, minlength=classes**2).view(classes, classes)
    p = rate / (classes - 1)
    error = math.sqrt(20000 * p * (1 - p))
    off = counts[~torch.eye(classes, dtype=torch.bool)]
    assert (off - 20000 * p).abs().max() < 4.5 * error


def test_seed_determines_labels() -> None:
    true = torch.arange(10).repeat(50)
    assert torch.equal(uniform_noise(true, 10, 0.5, rng(3)), uniform_noise(true, 10, 0.5, rng(3)))
    assert not torch.equal(uniform_noise(true, 10, 0.5, rng(3)), uniform_noise(true, 10, 0.5, rng(4)))


# --- class-dependent ------------------------------------------------------------------------------


def test_cifar10_class_targets() -> None:
    pairs = {CIFAR10_CLASSES[a]: CIFAR10_CLASSES[b] for a, b in class_targets(CIFAR10_CLASSES).items()}
    assert pairs == {
        "truck": "automobile",
        "bird": "airplane",
        "deer": "horse",
        "cat": "dog",
        "dog": "cat",
    }
    shuffled = tuple(reversed(CIFAR10_CLASSES))  # the names matter, not their order
    assert {shuffled[a]: shuffled[b] for a, b in class_targets(shuffled).items()} == pairs


def test_class_targets_default_to_next_class() -> None:
    assert class_targets(("a", "b", "c")) == {0: 1, 1: 2, 2: 0}


@quick
@given(labelings(), rates, seeds)
def test_class_dependent_noise_flips_exact_count_per_class(
    labeling: tuple[Tensor, int], rate: float, seed: int
) -> None:
    true, classes = labeling
    before = true.clone()
    target = {0: classes - 1, classes - 1: 0}
    out = class_dependent_noise(true, target, rate, rng(seed))
    assert torch.equal(true, before)
    for label in range(-1, classes):
        labels = out[true == label]
        flipped = labels[labels != label]
        assert len(flipped) == (flip_count(len(labels), rate) if label in target else 0)
        assert all(int(to) == target[label] for to in flipped)


def test_class_dependent_noise_flips_random_rows() -> None:
    """In 4000 draws at rate 0.3 each of 10 rows is flipped 1200 times, within 4.5 standard errors."""
    generator, true = rng(), torch.zeros(10, dtype=torch.int64)
    hits = sum(class_dependent_noise(true, {0: 1}, 0.3, generator) for _ in range(4000))
    assert isinstance(hits, Tensor)
    assert (hits - 1200).abs().max() < 4.5 * math.sqrt(4000 * 0.3 * 0.7)


# --- feature-dependent ----------------------------------------------------------------------------


def naive_feature_dependent(true: list[int], scores: list[list[float]], rate: float) -> list[int]:
    """The rule in plain loops; (value, position) pairs order ties by position."""
    rows = [i for i, label in enumerate(true) if label != -1]
    count = int(len(rows) * rate + 1e-9)
    misclassified, others = [], []
    for i in rows:
        ranking = sorted((value, j) for j, value in enumerate(scores[i]))
        (best, first), (second_value, second) = ranking[-1], ranking[-2]
        if first != true[i]:
            misclassified.append((best, i, first))
        else:
            others.append((second_value, i, second))
    flips = sorted(misclassified, reverse=True)[:count]
    flips += sorted(others, reverse=True)[: count - len(flips)]
    out = list(true)
    for _, i, to in flips:
        out[i] = to
    return out


@quick
@given(st.data(), labelings(), rates)
def test_feature_dependent_noise_equals_plain_loops(
    data: st.DataObject, labeling: tuple[Tensor, int], rate: float
) -> None:
    true, classes = labeling
    row = st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5]), min_size=classes, max_size=classes)  # many ties
    scores = data.draw(st.lists(row, min_size=len(true), max_size=len(true)))
    before = true.clone()
    out = feature_dependent_noise(true, torch.tensor(scores), rate)
    assert out.tolist() == naive_feature_dependent(true.tolist(), scores, rate)
    assert torch.equal(true, before)
    assert int((out != true).sum()) == flip_count(int((true >= 0).sum()), rate)


def test_feature_dependent_noise_worked_by_hand() -> None:
    scores = torch.tensor(
        [
            [0.6, 0.3, 0.1],  # correct, second best 0.3
            [0.5, 0.1, 0.4],  # correct, second best 0.4
            [0.1, 0.8, 0.1],  # misclassified, most confident
            [0.2, 0.5, 0.3],  # misclassified, less confident
            [0.4, 0.2, 0.4],  # tied: class 2 ranks first, which is correct; second is class 0
            [0.9, 0.1, 0.0],  # unlabeled
        ]
    )
    true = torch.tensor([0, 0, 0, 0, 2, -1])
    assert feature_dependent_noise(true, scores, 0.0).tolist() == [0, 0, 0, 0, 2, -1]
    assert feature_dependent_noise(true, scores, 0.2).tolist() == [0, 0, 1, 0, 2, -1]
    assert feature_dependent_noise(true, scores, 0.4).tolist() == [0, 0, 1, 1, 2, -1]
    assert feature_dependent_noise(true, scores, 0.6).tolist() == [0, 0, 1, 1, 0, -1]  # 0.4 twice: the later row
    assert feature_dependent_noise(true, scores, 0.8).tolist() == [0, 2, 1, 1, 0, -1]


def test_only_order_of_scores_matters() -> None:
    p = torch.rand(300, 4, generator=rng(), dtype=torch.float64).softmax(1)
    true = torch.randint(4, (300,), generator=rng(1))
    assert torch.equal(feature_dependent_noise(true, p, 0.7), feature_dependent_noise(true, p.log(), 0.7))


AUTHORS_LABELS = {
    0.2: "9802a7238f733c4a5a67bdab8dde3c739692560c5b3693d036564fa30bd815e3",
    0.4: "f182da812c6f8dffe39e64c053c527156e402e19a03e908442fd4f6a0a30eec3",
    0.6: "4018b2c444fba456ffb3811e4e9923c8920897acb9fd1b45bb7f3b6e4c5d96d5",
    0.8: "2d9985c3cf1fcdb4cf2eb9009e4bb5c011fec7ab961614b03f46dfcbcaf52817",
}


@pytest.mark.skipif(
    not os.environ.get("METALABELNET_DATA"),
    reason="the authors' CIFAR-10 labels need cifar10.npz and feature_noise_probs_cifar10.npy in the folder "
    "METALABELNET_DATA",
)
def test_labels_of_authors_are_reproduced() -> None:
    folder = Path(os.environ["METALABELNET_DATA"])
    with np.load(folder / "cifar10.npz") as archive:
        true = torch.from_numpy(archive["y_train"].astype(np.int64))
    p = read_probabilities(folder / "feature_noise_probs_cifar10.npy", 50000, 10)
    for rate, digest in AUTHORS_LABELS.items():
        out = corrupt(Noise(kind="feature", rate=rate), true, CIFAR10_CLASSES, rng(), probabilities=p)
        assert hashlib.sha256(out.numpy().tobytes()).hexdigest() == digest
        assert actual_noise_rate(true, out) == rate
    assert torch.bincount(out).tolist() == [3788, 2230, 2916, 2689, 1827, 4327, 2759, 2580, 6060, 20824]


def test_wrong_scores_raise_input_error() -> None:
    true = torch.tensor([0, 1])
    with raises_input_error("scores have shape (3, 2), not (2, classes)"):
        feature_dependent_noise(true, torch.zeros(3, 2), 0.5)
    with raises_input_error("a score is NaN"):
        feature_dependent_noise(true, torch.tensor([[0.0, 1.0], [math.nan, 1.0]]), 0.5)
    with raises_input_error("noise rate 1.5 is not in [0, 1)"):
        feature_dependent_noise(true, torch.zeros(2, 2), 1.5)


def test_probabilities_are_read_unchanged(tmp_path: Path) -> None:
    for kind in ("<f4", ">f8", "<f2"):
        array = np.random.default_rng(0).random((5, 3)).astype(kind)
        np.save(tmp_path / "p.npy", array)
        out = read_probabilities(tmp_path / "p.npy", 5, 3)
        assert out.dtype == (torch.float64 if kind == ">f8" else torch.float32)
        assert np.array_equal(out.numpy(), array)


def test_wrong_probabilities_raise_input_error(tmp_path: Path) -> None:
    path = tmp_path / "p.npy"
    with raises_input_error("class probabilities: there is no file"):
        read_probabilities(path, 2, 3)
    with raises_input_error("a .npy file is needed"):
        read_probabilities(tmp_path / "p.csv", 2, 3)
    path.write_bytes(b"")
    with raises_input_error("this is not a .npy array of numbers"):
        read_probabilities(path, 2, 3)
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with raises_input_error("this is not a .npy array of numbers"):
        read_probabilities(path, 2, 3)
    with path.open("wb") as file:
        np.savez(file, p=np.zeros((2, 3)))
    with raises_input_error("this is an archive of arrays"):
        read_probabilities(path, 2, 3)
    np.save(path, np.zeros((3, 2)))
    with raises_input_error("shape (3, 2), but the data has 2 samples and 3 classes: (2, 3)"):
        read_probabilities(path, 2, 3)
    np.save(path, np.zeros((2, 3), dtype=np.int64))
    with raises_input_error("floating-point numbers are needed, not int64"):
        read_probabilities(path, 2, 3)
    np.save(path, np.array([[0.0, 0.5, 0.5], [0.1, np.inf, 0.2]]))
    with raises_input_error("row 1 has a value that is NaN or infinite"):
        read_probabilities(path, 2, 3)


# --- transition matrix --------------------------------------------------------------------------------

MATRIX = [[0.7, 0.3, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]


def test_matrix_noise_has_frequencies_of_matrix() -> None:
    """Within 4.5 standard errors, and never where the entry is zero."""
    n = 30000
    true = torch.arange(3).repeat_interleave(n)
    matrix = torch.tensor(MATRIX, dtype=torch.float64)
    out = matrix_noise(true, matrix, rng())
    counts = torch.bincount(true * 3 + out, minlength=9).view(3, 3)
    assert ((counts - n * matrix).abs() <= 4.5 * (n * matrix * (1 - matrix)).sqrt()).all()


def test_matrix_noise_keeps_unlabeled_rows() -> None:
    true = torch.tensor([-1, 0, 1, 2, -1, 0])
    shift = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=torch.float64)
    assert matrix_noise(true, shift, rng()).tolist() == [-1, 1, 2, 0, -1, 1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.csv", "0.7,0.3,0\n0,1,0\n0.25,0.25,0.5\n"),
        ("m.txt", "\ufeff0.7 0.3  0\n\n0\t1\t0\n0.25 0.25 0.5\n\n"),
        ("m.CSV", " 0.7, 0.3, 0\r\n0, 1, 0\r\n0.25, 0.25, 0.5"),
    ],
)
def test_matrix_is_read_from_text(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert read_matrix(tmp_path / name, 3).tolist() == MATRIX


def test_matrix_is_read_from_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.array(MATRIX))
    assert read_matrix(tmp_path / "m.npy", 3).tolist() == MATRIX
    np.save(tmp_path / "m.npy", np.eye(3, dtype=np.int8))
    assert read_matrix(tmp_path / "m.npy", 3).tolist() == np.eye(3).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,0\n0.5,0.4999", "row 2 sums to 0.9999, not 1"),
        ("1,0\n1.5,-0.5", "row 2 has an entry outside [0, 1]: [1.5, -0.5]"),
        ("1,0\nnan,1", "row 2 has an entry outside [0, 1]"),
        ("1,0\n0,1\n1,0", "shape (3, 2), but 2 classes need (2, 2)"),
        ("", "shape (0,), but 2 classes need (2, 2)"),
        ("1,0\n0,0,1", "line 2: 3 numbers, but there are 2 classes"),
        ("a,b\n1,0\n0,1", "line 1: 'a' is not a number"),
    ],
)
def test_wrong_matrix_raises_input_error(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    with raises_input_error(message):
        read_matrix(path, 2)


def test_wrong_matrix_file_raises_input_error(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.array([["a", "b"], ["c", "d"]]))
    with raises_input_error("numbers are needed, not <U1"):
        read_matrix(tmp_path / "m.npy", 2)
    with raises_input_error("noise matrix " + str(tmp_path / "m.json") + ": a .npy, .csv or .txt file is needed"):
        read_matrix(tmp_path / "m.json", 2)
    with raises_input_error("noise matrix: there is no file"):
        read_matrix(tmp_path / "m.txt", 2)
    (tmp_path / "m.txt").write_bytes(b"\xff\xfe\xff")
    with raises_input_error("this cannot be read as text"):
        read_matrix(tmp_path / "m.txt", 2)


def test_rows_may_have_rounding_errors(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0.3333333 0.3333333 0.3333333\n0 1 0\n0 0 1")
    assert read_matrix(tmp_path / "m.csv", 3).shape == (3, 3)


# --- label file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"), [("y.txt", "2\n-1\n0\n1\n"), ("y.csv", "2\n\n0\n1.0\n"), ("y.csv", '2\n""\n 0 \n1')]
)
def test_labels_are_read_from_text(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    labels = read_label_file(tmp_path / name, 3)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [2, -1, 0, 1]


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.int64, np.float32])
def test_labels_are_read_from_npy(kind: type, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array([2, 0, 1], dtype=kind))
    assert read_label_file(tmp_path / "y.npy", 3).tolist() == [2, 0, 1]


def test_labels_are_looked_up_by_sample_number(tmp_path: Path) -> None:
    path = tmp_path / "y.csv"
    path.write_text("0\n1\n2\n-1\n0\n")
    true = torch.tensor([0, 0, 0, -1])
    noise = Noise.parse(f"file:{path}")
    out = corrupt(noise, true, names(3), rng(), index=torch.tensor([2, 3, 1, 4]))
    assert out.tolist() == [2, -1, 1, -1]  # unlabeled by the file, and unlabeled before
    assert corrupt(noise, true, names(3), rng()).tolist() == [0, 1, 2, -1]
    with raises_input_error("the label file has 5 labels, but the data has a sample number 5"):
        corrupt(noise, true, names(3), rng(), index=torch.tensor([2, 3, 1, 5]))


def test_too_long_label_file_raises_input_error(tmp_path: Path) -> None:
    """Its labels may be shifted; empty lines at the end are allowed."""
    path = tmp_path / "y.txt"
    path.write_text("0\n1\n2\n1\n\n\n")
    noise, true = Noise.parse(f"file:{path}"), torch.zeros(4).long()
    assert corrupt(noise, true, names(3), rng(), samples=4).tolist() == [0, 1, 2, 1]
    path.write_text("\n0\n1\n2\n1\n")
    with raises_input_error("the label file has 5 labels, but the data has 4 samples"):
        corrupt(noise, true, names(3), rng(), samples=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\n3\n", "label 2 is 3; labels are 0 to 2, or -1 for unlabeled"),
        ("-2\n", "label 1 is -2; labels are 0 to 2"),
        ("0\n0.5\n", "label 2 is 0.5"),
        ("nan\n", "label 1 is nan"),
        ("label\n0\n", "line 1: 'label' is not a number"),
        ("0,1\n", "line 1: '0,1' is not a number"),
    ],
)
def test_wrong_labels_raise_input_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text(text)
    with raises_input_error(message):
        read_label_file(tmp_path / "y.csv", 3)


def test_labels_of_wrong_shape_raise_input_error(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.zeros((2, 3), dtype=np.int64))
    with raises_input_error("one dimension of whole numbers is needed, not int64 of shape (2, 3)"):
        read_label_file(tmp_path / "y.npy", 3)
    np.save(tmp_path / "y.npy", np.array(["a"]))
    with raises_input_error("one dimension of whole numbers is needed, not <U1 of shape (1,)"):
        read_label_file(tmp_path / "y.npy", 3)
    np.save(tmp_path / "y.npy", np.array([2**64 - 1], dtype=np.uint64))
    with raises_input_error("labels are 0 to 2, or -1 for unlabeled"):
        read_label_file(tmp_path / "y.npy", 3)


# --- all kinds ----------------------------------------------------------------------------------


def make_noise(kind: str, true: Tensor, folder: Path) -> Noise:
    write_human_labels(folder, true)
    (folder / "matrix.csv").write_text("0.5,0.5,0\n0,0.5,0.5\n0.5,0,0.5\n")
    (folder / "file.csv").write_text("1\n" * 60)
    argument = {"RATE": "0.5", "FILE": folder / f"{kind}.csv", "SET": "worst", "": ""}[NOISE_KINDS[kind].argument]
    return Noise.parse(f"{kind}:{argument}" if argument else kind)


@pytest.mark.parametrize("kind", list(NOISE_KINDS))
def test_contract_of_every_kind(kind: str, tmp_path: Path) -> None:
    true = torch.tensor([0, 1, 2, -1, 2, 1] * 10)
    classes = CIFAR10_CLASSES if kind == "asymmetric" else names(3)
    noise = make_noise(kind, true, tmp_path)
    before, x = true.clone(), torch.rand(60, 4, generator=rng(2))
    options = {"probabilities": torch.rand(60, 3, generator=rng(1)), "read_samples": x.__getitem__, "folder": tmp_path}
    out = corrupt(noise, true, classes, rng(), **options)
    assert torch.equal(true, before)
    assert out.dtype == torch.int64
    assert out.data_ptr() != true.data_ptr()
    assert torch.equal(out == -1, true == -1)
    assert int(out.max()) <= 2
    assert torch.equal(out, corrupt(noise, true, classes, rng(), **options))
    assert (actual_noise_rate(true, out) == 0) == (kind == "none")
    last = len(classes) - 1
    with raises_input_error(f"noise {noise}: a true label is {last + 1}; labels are 0 to {last}, or -1 for unknown"):
        corrupt(noise, torch.tensor([0, last + 1]), classes, rng())
    if kind != "none":
        with raises_input_error(f"noise {noise} changes true labels, but none of the 4 rows has one"):
            corrupt(noise, torch.full((4,), -1), classes, rng(), **options)


@pytest.mark.parametrize("kind", ["uniform", "symmetric", "class", "feature", "instance"])
def test_one_class_raises_input_error(kind: str) -> None:
    options = {"probabilities": torch.zeros(4, 1), "read_samples": torch.zeros(4, 1).__getitem__}
    with raises_input_error("label noise needs at least 2 classes, not 1"):
        corrupt(Noise(kind=kind, rate=0.5), torch.zeros(4).long(), ("a",), rng(), **options)


def test_feature_noise_needs_probabilities() -> None:
    noise, true = Noise(kind="feature", rate=0.5), torch.tensor([0, 1, 2])
    with raises_input_error("noise feature:0.5 needs a network's probabilities of every class for every row"):
        corrupt(noise, true, names(3), rng())
    with raises_input_error("probabilities have shape (3, 2), but there are 3 rows and 3 classes"):
        corrupt(noise, true, names(3), rng(), probabilities=torch.zeros(3, 2))


def test_actual_noise_rate_counts_rows_with_both_labels() -> None:
    true = torch.tensor([0, 1, 2, -1, 1, 0])
    assert actual_noise_rate(true, torch.tensor([0, 2, -1, 1, 1, 0])) == 0.25
    assert math.isnan(actual_noise_rate(true, torch.full((6,), -1)))
