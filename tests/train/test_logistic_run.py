"""Runs of methods that are fitted: run folder, stop and resume, prediction, sparse texts."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from metalabelnet.data.encoders import TextEncoder
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.errors import InputError, RunStopped
from metalabelnet.inference.predict import Predictor
from metalabelnet.methods import LINEAR_METHODS
from metalabelnet.methods.logistic import predict_samples
from metalabelnet.nets.linear import LinearNet
from metalabelnet.train import RunFolder, make_run, train
from metalabelnet.train.cost_estimate import estimate_cost
from metalabelnet.train.prepare import prepare
from small_runs import small_run
from user_data import text_rows, write_csv


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    write_csv(tmp_path / "news.csv", ["text", "topic", "ok"], text_rows(120))
    return tmp_path / "news.csv"


def text_run(texts: Path, **changes):
    return make_run(str(texts), label="topic", clean_column="ok", device="cpu", **changes)


@pytest.mark.parametrize("name", LINEAR_METHODS)
def test_run_folder_predicts_and_labels(name: str, texts: Path, tmp_path: Path) -> None:
    run = text_run(texts, method=name)
    result = train(run, folder=tmp_path / "run")
    files = RunFolder(tmp_path / "run")
    summary = files.summary()
    assert (summary["method"], summary["epochs"], len(files.metrics())) == (name, 0, 1)
    assert summary["samples"]["clean"] == summary["samples"]["validation"] == 40
    assert summary["clean_accuracy"] > 60
    assert len((tmp_path / "run" / "labels.csv").read_text().splitlines()) == 81
    rows = list(Predictor(tmp_path / "run", device="cpu").predict([texts]))
    with texts.open() as file:
        training = [k for k, row in enumerate(csv.DictReader(file)) if row["ok"] == "0"]
    predicted = [result.labels.rows.classes.index(rows[k][1]) for k in training]
    assert predicted == result.method.logits(result.labels.rows.x[:]).argmax(1).tolist()


def test_stopped_run_is_fitted_again(texts: Path, tmp_path: Path) -> None:
    run = text_run(texts)
    calls = iter(range(10**6))
    with pytest.raises(RunStopped):
        train(run, folder=tmp_path / "run", stop=lambda: next(calls) >= 3)
    train(run, folder=tmp_path / "run", resume=True)
    train(run, folder=tmp_path / "again")
    for name in ("model.safetensors", "labels.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_tables_and_texts_are_fitted_unless_a_network_is_chosen(texts: Path) -> None:
    assert text_run(texts).method == "metalabelnet-plus"
    assert isinstance(prepare(text_run(texts)).train.x, SparseTensor)
    assert isinstance(prepare(text_run(texts, net="text-mlp")).train.x, torch.Tensor)
    assert isinstance(prepare(text_run(texts, method="fine-tune")).train.x, torch.Tensor)


def test_settings_of_the_network_are_rejected(texts: Path) -> None:
    with pytest.raises(InputError, match="no settings"):
        train(text_run(texts, settings={"sharpening": 1.5}))
    with pytest.raises(InputError, match="linear layer"):
        train(text_run(texts, method="logistic-given", net="text-mlp"))


def test_cost_is_estimated(texts: Path) -> None:
    run = text_run(texts)
    assert 0 < estimate_cost(run, prepare(run)).seconds < 60


@pytest.mark.parametrize("features", ["word", "char", "both"])
def test_text_encoder_is_restored_from_json(features: str) -> None:
    analyzers = ("word", "char") if features == "both" else (features,)
    items = [(row[0],) for row in text_rows(40)]
    encoder = TextEncoder.fit("text", items, analyzers=analyzers, sparse=True)
    restored = TextEncoder.from_json(encoder.to_json())
    dense = torch.stack(list(restored.encode(items)))
    assert restored.shape == encoder.shape
    np.testing.assert_allclose(encoder.encode_sparse(items)[:], dense)
    np.testing.assert_allclose(dense.norm(dim=1), 1, rtol=1e-6)


def test_char_ngrams_see_misspelled_words() -> None:
    encoder = TextEncoder.fit("text", [("weather",), ("finance",)], analyzers=("char",))
    first, second, misspelled = torch.stack(list(encoder.encode([("weather",), ("finance",), ("wether",)])))
    assert misspelled @ first > 0.3 > misspelled @ second


def test_sparse_samples_are_predicted_without_dense_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.sparse

    g = torch.Generator().manual_seed(0)
    dense = torch.randn(40, 30, generator=g) * (torch.rand(40, 30, generator=g) < 0.2)
    net = LinearNet((30,), 4)
    expected = predict_samples(net, dense)
    torch.testing.assert_close(expected, net(dense).detach())
    monkeypatch.setattr(SparseTensor, "__getitem__", None)
    sparse = predict_samples(net, SparseTensor(scipy.sparse.csr_matrix(dense.numpy())))
    assert sparse.dtype == torch.float32
    assert not sparse.requires_grad
    torch.testing.assert_close(sparse, expected)


def test_sparse_tensor_is_read_like_a_tensor() -> None:
    import scipy.sparse

    dense = torch.tensor([[0.0, 1, 2], [3, 0, 0], [0, 0, 0]])
    x = SparseTensor(scipy.sparse.csr_matrix(dense.numpy()))
    assert torch.equal(x[:], dense)
    assert torch.equal(x[1:], dense[1:])
    order = torch.tensor([2, 0])
    assert torch.equal(x[order], dense[order])
    assert torch.equal(x.take(order)[:], dense[order])
    assert torch.equal(x.concat(x.take(order))[:], torch.cat([dense, dense[order]]))
    assert (len(x), x.shape, x.ndim, x.is_floating_point()) == (3, (3, 3), 2, True)


@pytest.mark.parametrize("method", ["logistic-clean", "metalabelnet-plus"])
def test_given_labels_are_kept_where_corrected_ones_are_worse(method: str) -> None:
    """Features without information; a tenth of the given labels is wrong."""
    g = torch.Generator().manual_seed(0)
    true = torch.arange(300) % 3
    given = torch.where(torch.arange(300) % 10 == 0, (true + 1) % 3, true)
    x = torch.randn(300, 4, generator=g)
    rows = make_rows(x, given, true=true, classes=("a", "b", "c"), what="rows")
    a, b, none = (rows.take(torch.arange(*ends)) for ends in ((0, 240), (240, 300), (0, 0)))
    problem = Problem(train=a, clean=b, validation=b, test=none, holds_out=False, noise_rate=0.1)
    result = train(small_run(method, net="linear"), problem=problem)
    summary = result.summary
    assert summary["given_check"]["given_right"] == pytest.approx(90)
    assert summary["right_after"] >= summary["right_before"] - 1e-9
    if method == "logistic-clean":
        assert len(result.labels.decisions().suspicion.unique()) > 200  # still ranked by the classifier
        assert summary["given_check"]["keeps_given"]
        assert "keeps the given labels" in summary["warnings"][0]
