"""MetaLabelNetClassifier: effect of the clean set, formats of samples and labels, attributes, wrong input."""

import pickle
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from metalabelnet import MetaLabelNetClassifier, NoCleanSetWarning
from metalabelnet.errors import InputError
from metalabelnet.estimator.unused_parameters import NETWORK_PARAMETERS
from metalabelnet.labels.metrics import expected_calibration_error
from noisy_data import blobs, digits, images


def quick(method: str = "metalabelnet", **changes: Any) -> MetaLabelNetClassifier:
    return MetaLabelNetClassifier(method, **{"epochs": 6, "random_state": 0, "device": "cpu", **changes})


def cheap(**changes: Any) -> MetaLabelNetClassifier:
    """Return a classifier for tests of input and output, which do not depend on the method."""
    return quick("gce", **{"epochs": 2, "batch_size": 32, **changes})


@pytest.mark.slow
def test_clean_set_improves_accuracy() -> None:
    data = digits()
    before = float((data.y == data.true).mean())
    score, right = {}, {}
    for method in ("cross-entropy", "metalabelnet"):
        clf = quick(method, epochs=12).fit(data.X, data.y, clean_mask=data.clean_mask)
        score[method] = clf.score(data.X_test, data.y_test)
        right[method] = float((clf.labels_ == data.true).mean())
    assert score["metalabelnet"] > score["cross-entropy"] + 0.05
    assert score["metalabelnet"] > 0.85
    assert (
        right["metalabelnet"] >= right["cross-entropy"] > before + 0.2
    )  # both have the same warm-up and its snapshots


def test_labels_and_suspects() -> None:
    data = blobs()
    y = data.y.copy()
    unlabeled = np.flatnonzero(~data.clean_mask)[:20]
    y[unlabeled] = -1
    clf = quick().fit(data.X, y, clean_mask=data.clean_mask)
    assert clf.classes_.tolist() == [0, 1, 2]
    assert clf.labels_.shape == clf.suspects_.shape == y.shape
    assert clf.suspects_.dtype == bool
    assert (clf.labels_[data.clean_mask] == data.y[data.clean_mask]).all()
    assert not clf.suspects_[data.clean_mask | (y == -1)].any()
    assert (clf.labels_[unlabeled] == data.true[unlabeled]).mean() > 0.8
    rest = ~data.clean_mask & (y != -1)
    wrong = data.y != data.true
    assert clf.suspects_[rest & wrong].mean() > 0.8
    assert clf.suspects_[rest & ~wrong].mean() < 0.2
    assert len(clf.history_) == clf.summary_["epochs"] == 6
    assert clf.method_ == clf.summary_["method"] == "metalabelnet"
    assert clf.summary_["samples"] == {"train": 142, "clean": 14, "validation": 4, "test": 0}


def test_same_seed_same_result_and_global_generators_untouched() -> None:
    data = blobs()
    before = torch.random.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (
        quick(random_state=seed, epochs=3).fit(data.X, data.y, clean_mask=data.clean_mask).predict_proba(data.X_test)
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002
    for kind in (np.random.RandomState, np.random.default_rng):
        one, two = (cheap(random_state=kind(1)).fit(data.X, data.y, data.clean_mask) for _ in range(2))
        assert np.array_equal(one.predict_proba(data.X), two.predict_proba(data.X))
    unseeded = cheap(random_state=None)
    assert not np.array_equal(*(unseeded.fit(data.X, data.y, data.clean_mask).predict_proba(data.X) for _ in range(2)))


@pytest.mark.parametrize("nothing", ["", "-1", None, float("nan")])
def test_string_labels_and_missing_labels(nothing: Any) -> None:
    data = blobs()
    names = np.array(["ant", "bee", "cat"], dtype=object)
    y = names[data.y]
    free = np.flatnonzero(~data.clean_mask)[:10]
    y[free] = nothing
    numbers = data.y.copy()
    numbers[free] = -1
    clf = cheap().fit(data.X, y, clean_mask=data.clean_mask)
    same = cheap().fit(data.X, numbers, clean_mask=data.clean_mask)
    assert clf.classes_.tolist() == ["ant", "bee", "cat"]
    assert np.array_equal(clf.predict_proba(data.X), same.predict_proba(data.X))
    assert np.array_equal(clf.labels_, names[same.labels_])
    assert np.array_equal(clf.predict(data.X_test), names[same.predict(data.X_test)])


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_images_with_channels_first_or_last(dtype: type) -> None:
    data = images(dtype)
    last = cheap(epochs=6, batch_size=16).fit(data.X, data.y, clean_mask=data.clean_mask)
    first = cheap(epochs=6, batch_size=16).fit(data.X.transpose(0, 3, 1, 2), data.y, clean_mask=data.clean_mask)
    assert last.score(data.X_test, data.y_test) > 0.8
    assert np.array_equal(last.predict_proba(data.X_test), first.predict_proba(data.X_test.transpose(0, 3, 1, 2)))
    assert np.array_equal(last.labels_, first.labels_)
    assert last.n_features_in_ == 3 * 8 * 8
    other = np.float32 if dtype is np.uint8 else np.uint8
    with pytest.raises(InputError, match="but the classifier was trained on"):
        last.predict(data.X_test.astype(other))
    with pytest.raises(ValueError, match=r"\d features"):
        last.predict(data.X_test[:, 0, :, 0])


def test_grayscale_images_without_channel_axis() -> None:
    data = images()
    grey = cheap().fit(data.X[..., 0], data.y, clean_mask=data.clean_mask)
    one = cheap().fit(data.X[..., :1], data.y, clean_mask=data.clean_mask)
    assert np.array_equal(grey.predict_proba(data.X_test[..., 0]), one.predict_proba(data.X_test[..., :1]))


def test_scale_of_features_does_not_matter() -> None:
    data = blobs()
    scale, shift = np.array([1e6, 1e-6, 1, 1e3, 1]), np.array([1e9, 0, -3, 1e3, 1e5])
    plain = cheap(epochs=3).fit(data.X, data.y, clean_mask=data.clean_mask)
    moved = cheap(epochs=3).fit(data.X * scale + shift, data.y, clean_mask=data.clean_mask)
    difference = plain.predict_proba(data.X_test) - moved.predict_proba(data.X_test * scale + shift)
    assert np.abs(difference).max() < 1e-3
    raw = cheap(standardize=False).fit(data.X, data.y, clean_mask=data.clean_mask)
    assert raw.sample_format_.mean is None


class OwnNet(nn.Module):
    """A user's network."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.body, self.drop, self.last = nn.Linear(features, 16), nn.Dropout(0.1), nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.body(x))))


def make_own_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return OwnNet(shape[0], classes)


def test_module_is_copied_and_callable_is_called() -> None:
    data = blobs()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = OwnNet(5, 3)
    before = {name: weight.clone() for name, weight in net.state_dict().items()}
    clf = quick(net=net, lr=0.1, recipe="paper").fit(data.X, data.y, clean_mask=data.clean_mask)
    assert isinstance(clf.model_, OwnNet)
    assert clf.score(data.X_test, data.y_test) > 0.8
    assert all(torch.equal(before[name], weight) for name, weight in net.state_dict().items())
    made = [cheap(net=make_own_net).fit(data.X, data.y, data.clean_mask).predict_proba(data.X) for _ in range(2)]
    assert np.array_equal(*made)


def test_pickle_round_trip() -> None:
    data = blobs()
    for clf in (quick(epochs=2), quick("co-teaching", epochs=2), quick(epochs=2, net=OwnNet(5, 3))):
        clf.fit(data.X, data.y, clean_mask=data.clean_mask)
        content = pickle.dumps(clf)
        assert data.X.astype(np.float32).tobytes()[:64] not in content  # the samples are not pickled
        read = pickle.loads(content)
        assert np.array_equal(read.predict_proba(data.X_test), clf.predict_proba(data.X_test))
        assert np.array_equal(read.labels_, clf.labels_)


def test_fit_without_clean_set_warns() -> None:
    data = blobs()
    with pytest.warns(
        NoCleanSetWarning, match="instead of metalabelnet, which needs a clean set.*labels of the training samples"
    ) as caught:
        instead = quick().fit(data.X, data.y)
    assert caught[0].filename == __file__
    with pytest.warns(NoCleanSetWarning, match="pencil is trained, .* a held-out fifth of the samples"):
        as_asked = quick("pencil").fit(data.X, data.y, clean_mask=np.zeros(len(data.y)))
    assert (instead.method_, as_asked.method_) == ("gce", "pencil")
    assert (instead.summary_["unlabeled"], as_asked.summary_["unlabeled"]) == (0, 32)
    wrong = data.y != data.true
    for clf in (instead, as_asked):
        assert clf.score(data.X_test, data.y_test) > 0.8
        assert clf.suspects_[wrong].mean() > 0.9  # the held-out samples too
        assert clf.suspects_[~wrong].mean() < 0.1
    with pytest.warns(
        NoCleanSetWarning, match="instead of co-teaching"
    ):  # it estimates the noise rate on the clean set
        quick("co-teaching", epochs=2).fit(data.X, data.y)
    with pytest.warns(NoCleanSetWarning, match="co-teaching is trained"):
        quick("co-teaching", epochs=2, settings={"noise_rate": 0.3}).fit(data.X, data.y)


def test_only_clean_and_unlabeled_samples() -> None:
    data = blobs()
    y = np.where(data.clean_mask, data.y, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf = quick(epochs=12).fit(data.X, y, clean_mask=data.clean_mask)
    assert clf.method_ == "metalabelnet"
    assert (clf.labels_ == data.true).mean() > 0.8
    assert not clf.suspects_.any()


def test_one_clean_sample_per_class() -> None:
    data = blobs()
    clean_mask = np.zeros(len(data.y), dtype=bool)
    clean_mask[[np.flatnonzero(data.clean_mask & (data.y == label))[0] for label in range(3)]] = True
    clf = quick(epochs=2).fit(data.X, data.y, clean_mask=clean_mask)
    assert clf.summary_["samples"]["validation"] == clf.summary_["samples"]["clean"] == 3


def check_error(sentence: str, change: Any = None, **settings: Any) -> None:
    data = blobs()
    given = {"X": data.X, "y": data.y, "clean_mask": data.clean_mask} | (change(data) if change else {})
    with pytest.raises(InputError, match=sentence):
        quick(**settings).fit(**given)


def test_wrong_input() -> None:
    check_error("class '2' is missing from the clean set", lambda d: {"clean_mask": d.clean_mask & (d.y != 2)})
    check_error("clean_mask is int64 of shape", lambda d: {"clean_mask": np.flatnonzero(d.clean_mask)})
    fourth = np.arange(160) == 3
    check_error(
        "clean_mask: sample 3 is unlabeled",
        lambda d: {"y": np.where(fourth, -1, d.y), "clean_mask": d.clean_mask | fourth},
    )
    check_error("no sample has a label", lambda d: {"y": np.full(160, -1)})
    check_error("labels have different types", lambda d: {"y": np.array(["a", 1] * 80, dtype=object)})
    check_error("labels have the type bytes_: give all as text", lambda d: {"y": d.y.astype("S1")})
    check_error("labels have the type bytes: give all as text", lambda d: {"y": np.array([b"a", b"b"] * 80, object)})
    check_error("did you mean 'metalabelnet'", method="metalabelnets")
    check_error("did you mean 'beta'", settings={"betta": 1.0})
    check_error("epochs='many': give an integer", epochs="many")
    check_error("warmup 6 is too large for 6 epochs of metalabelnet", warmup=6)
    check_error("lr_milestones='never'", lr_milestones="never")
    check_error("lr='fast': give a number", lr="fast")
    check_error("give a mapping of the method's settings", settings=["beta"])
    check_error("too large to standardize", lambda d: {"X": d.X * 1e200})
    check_error(r"up to .*e\+201, too large for float32", lambda d: {"X": d.X * 1e200}, standardize=False)
    check_error(r"up to .*e\+21, too large for float32", lambda d: {"X": d.X * 1e20}, standardize=False)
    check_error("net=3: give auto", net=3)
    check_error("returns int: it must return an nn.Module", net=lambda shape, classes: 3)
    check_error("the network fails on a batch of shape", net=OwnNet(4, 3))
    check_error(r"returns \(2, 7\) for 2 samples", net=OwnNet(5, 7), method="gce")
    check_error("both the second and the last axis can be", lambda d: {"X": np.zeros((160, 3, 8, 3))})
    check_error("neither a table", lambda d: {"X": np.zeros((160, 3, 8, 3, 2))})
    check_error("the samples are not images", augment="crop")
    for value in (np.array([1, 2]), True, None, float("nan")):
        check_error("epochs=.*: give an integer$", epochs=value)
        check_error("batch_size=.*: give an integer, or auto", batch_size=value)
    check_error(r"lr=array.*: give a number, or auto", lr=np.array([0.1, 0.2]))
    check_error(r"unknown method '\['gce'\]'|method=\['gce'\]: give a string", method=["gce"])
    check_error("standardize='no': choose from True, False", standardize="no")
    check_error("unknown order of channels 'None': choose from auto, first, last", channels=None)
    check_error("random_state='x': give an integer, a RandomState, a Generator, or None", random_state="x")


def test_too_large_values_in_predict() -> None:
    data = blobs()
    clf = cheap().fit(data.X, data.y, clean_mask=data.clean_mask)
    with pytest.raises(InputError, match=r"X has values up to 1e\+300, too large for float32: scale"):
        clf.predict_proba(np.where(np.arange(5) == 2, 1e300, data.X_test))
    pictures = images()
    x = pictures.X / 255.0
    clf = cheap().fit(x, pictures.y, clean_mask=pictures.clean_mask)
    with pytest.raises(InputError, match="too large for float32"):
        clf.predict(x[:4] * 1e300)


def test_clean_mask_with_missing_values() -> None:
    pandas = pytest.importorskip("pandas")
    data = blobs()
    mask = pandas.array(data.clean_mask, dtype="boolean")
    mask[3] = pandas.NA
    with pytest.raises(InputError, match="clean_mask has missing values"):
        quick().fit(data.X, data.y, clean_mask=mask)


def test_integer_labels_with_missing_values() -> None:
    """Pandas stores missing integers as NA, numpy as NaN or None."""
    pandas = pytest.importorskip("pandas")
    data = blobs()
    gaps = ~data.clean_mask & (np.arange(len(data.y)) % 9 == 0)
    series = pandas.Series(data.y, dtype="Int64")
    series[gaps] = pandas.NA
    marked = np.where(gaps, -1, data.y)
    ways = (
        marked,
        series,
        np.where(gaps, np.nan, data.y),
        np.where(gaps, None, data.y),
        np.where(gaps, None, data.y.astype(float)),
    )
    first, *others = (cheap().fit(data.X, y, clean_mask=data.clean_mask) for y in ways)
    for y, other in zip(ways[1:], others, strict=True):
        assert other.classes_.tolist() == [0, 1, 2]
        assert other.score(data.X, y) == first.score(data.X, marked)
        assert np.array_equal(other.labels_, first.labels_)
        assert np.array_equal(other.suspects_, first.suspects_)


def test_boolean_labels_with_missing_values() -> None:
    """The classes are False and True, and a missing value means unlabeled."""
    pandas = pytest.importorskip("pandas")
    data = blobs()
    gaps = ~data.clean_mask & (np.arange(len(data.y)) % 9 == 0)
    right = data.y == 0
    series = pandas.Series(right, dtype="boolean")
    series[gaps] = pandas.NA
    plain = cheap().fit(data.X, np.where(gaps, None, right), clean_mask=data.clean_mask)
    for y in (series, series.array):
        clf = cheap().fit(data.X, y, clean_mask=data.clean_mask)
        assert clf.classes_.tolist() == [False, True]
        assert clf.classes_.dtype == clf.predict(data.X).dtype == clf.labels_.dtype == bool
        assert np.array_equal(clf.labels_, plain.labels_)
        assert not clf.suspects_[gaps].any()
        assert clf.score(data.X, y) == clf.score(data.X[~gaps], right[~gaps])
    whole = cheap().fit(data.X, pandas.Series(right, dtype="boolean"), clean_mask=data.clean_mask)
    assert whole.classes_.dtype == bool


@pytest.mark.slow
def test_probabilities_are_calibrated() -> None:
    """MetaLabelNet's soft labels leave its network unsure of what it knows; 100 clean samples tell."""
    data = digits()
    clf = quick(epochs=8).fit(data.X, data.y, clean_mask=data.clean_mask)
    assert clf.temperature_ == clf.summary_["temperature"] != 1
    predicted, true = torch.tensor(clf.predict_proba(data.X_test)), torch.tensor(data.y_test)
    raw = (predicted.log() * clf.temperature_).softmax(1)
    assert expected_calibration_error(predicted, true) < 0.8 * expected_calibration_error(raw, true)
    assert np.array_equal(clf.predict(data.X_test), clf.classes_[raw.argmax(1)])
    few = blobs()
    with pytest.warns(NoCleanSetWarning):
        assert quick(epochs=2).fit(few.X, few.y).temperature_ == 1


@pytest.mark.parametrize(
    ("method", "changes", "what", "why"),
    [
        (
            "metalabelnet-plus",
            {"epochs": 3, "lr": 0.1},
            "epochs=3, lr=0.1 have no effect",
            "metalabelnet-plus fits a linear layer to these samples; net='mlp' trains a network",
        ),
        (
            "logistic-given",
            {"recipe": "paper"},
            "recipe='paper' has no effect",
            "logistic-given fits a linear layer to these samples",
        ),
    ],
)
def test_linear_fit_names_parameters_without_effect(method: str, changes: dict[str, Any], what: str, why: str) -> None:
    data = blobs()
    clf = MetaLabelNetClassifier(method, random_state=0, device="cpu")
    plain = clf.fit(data.X, data.y, clean_mask=data.clean_mask).predict_proba(data.X_test)
    with pytest.warns(UserWarning, match=f"^{re.escape(what)}: {re.escape(why)}$") as caught:
        clf.set_params(**changes).fit(data.X, data.y, clean_mask=data.clean_mask)
    assert [warning.filename for warning in caught] == [__file__]
    assert np.array_equal(clf.predict_proba(data.X_test), plain)


def test_every_parameter_of_network_training_has_no_effect_in_a_linear_fit() -> None:
    """The values differ from every default and would change the training of a network."""
    data = blobs()
    values = {
        "recipe": "paper",
        "epochs": 2,
        "warmup": 1,
        "batch_size": 9,
        "lr": 0.5,
        "lr_milestones": (1,),
        "momentum": 0.1,
        "weight_decay": 0.3,
        "execution": "eager",
        "head": "0",
    }
    assert set(values) == set(NETWORK_PARAMETERS) & MetaLabelNetClassifier().get_params().keys()
    clf = MetaLabelNetClassifier(random_state=0, device="cpu")
    plain = clf.fit(data.X, data.y, clean_mask=data.clean_mask).predict_proba(data.X_test)
    changed = MetaLabelNetClassifier(random_state=0, device="cpu", **values)
    with pytest.warns(UserWarning, match=", ".join(f"{name}=.*" for name in values) + " have no effect: "):
        changed.fit(data.X, data.y, clean_mask=data.clean_mask)
    assert np.array_equal(changed.predict_proba(data.X_test), plain)
