"""--encoder end to end: train, predict, report, review and `embed` with a small encoder."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from cli_runner import run_cli
from encoder_weights import write_resnet
from metalabelnet.data import ReadOptions
from metalabelnet.data.embeddings import load_model
from metalabelnet.data.embeddings.cache import DIGEST_BYTES
from metalabelnet.review.source import open_source
from metalabelnet.train import RunFolder
from user_data import read_csv, text_rows, write_csv, write_photos

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    load_model.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METALABELNET_DATA", str(tmp_path / "data"))
    write_resnet(tmp_path / "net.pth")
    return tmp_path


def succeed(arguments: str, capsys: Capture) -> str:
    output = run_cli(arguments.split(), capsys)
    assert output.code == 0, output.err
    return output.out + output.err


def test_photos(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "clean.csv", ["file", "label"], [*true_label[10:40], true_label[90]])
    said = succeed("train photos --clean clean.csv --encoder net.pth --device cpu --out run", capsys)
    assert "net.pth: embeddings of 32 values, cached in data/embeddings/" in said.replace(f"{work_dir}/", "")
    assert RunFolder(work_dir / "run").metadata()["shape"] == [32]
    labels = {row["id"]: row for row in read_csv(work_dir / "run" / "labels.csv")}
    assert len(labels) == 62
    # prediction and classifier see the same embeddings
    succeed("predict run photos -o out.csv", capsys)
    predicted = {row["id"]: row for row in read_csv(work_dir / "out.csv")}
    assert len(predicted) == 93
    (work_dir / "data").rename(work_dir / "moved")  # without the cache
    succeed("predict run photos -o again.csv", capsys)
    assert [row["label"] for row in read_csv(work_dir / "again.csv")] == [row["label"] for row in predicted.values()]
    # the report and the review page show images
    succeed("report run -o report.html", capsys)
    assert "data:image/" in (work_dir / "report.html").read_text()
    source = open_source("run", ReadOptions())
    assert source.display.kind == "image"
    assert source.display.image(0, "small")[1] == "image/png"
    # exported features are the same problem
    said = succeed("embed photos --encoder net.pth -o features.npz", capsys)
    assert "features.npz is written: 93 samples of 32 values" in said
    succeed("train features.npz --clean clean.csv --device cpu --out from_features", capsys)
    exported = {row["id"]: row for row in read_csv(work_dir / "from_features" / "labels.csv")}
    assert exported.keys() == labels.keys()
    assert all(exported[name]["label"] == row["label"] for name, row in labels.items())


def test_stop_while_embeddings_are_computed(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stops after a batch of 64, not at the end, and continues with what is cached."""
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "clean.csv", ["file", "label"], [*true_label[10:40], true_label[90]])
    cache = work_dir / "data" / "embeddings"
    arguments = "train photos --clean clean.csv --encoder net.pth --device cpu --out run"
    with monkeypatch.context() as patch:
        patch.setattr("metalabelnet.cli.commands.train.interruptible", lambda: nullcontext(cache.exists))
        stopped = run_cli(arguments.split(), capsys)
    assert stopped.code == 130
    assert "stopped; progress saved" in stopped.err
    (file,) = cache.iterdir()
    assert file.stat().st_size == 64 * (DIGEST_BYTES + 32 * 4)
    succeed(f"{arguments} --resume", capsys)
    assert file.stat().st_size == 93 * (DIGEST_BYTES + 32 * 4)


def test_arrays_of_images(capsys: Capture, work_dir: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    x = rng.integers(0, 100, (60, 12, 12, 3)) + 100 * y[:, None, None, None]
    np.savez(work_dir / "pics.npz", x_train=x.astype(np.uint8), y_train=y)
    succeed("train pics.npz --clean 20 --encoder net.pth --device cpu --out run", capsys)
    assert RunFolder(work_dir / "run").summary()["clean_accuracy"] > 90
    succeed("predict run pics.npz -o out.csv", capsys)
    assert len(read_csv(work_dir / "out.csv")) == 60
    succeed("labels run --data pics.npz -o labels.csv", capsys)
    assert [row["label"] for row in read_csv(work_dir / "labels.csv")] == [
        row["label"] for row in read_csv(work_dir / "out.csv")
    ]
    assert open_source("run", ReadOptions()).display.kind == "image"


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["wordllama", "model2vec:static"])
def test_static_text_encoders(encoder: str, capsys: Capture, work_dir: Path) -> None:
    """The real packages; WordLlama ships its weights, for model2vec a small model is made of random vectors."""
    package = pytest.importorskip(encoder.partition(":")[0])
    if encoder.startswith("model2vec"):
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = sorted({word for text, *_ in text_rows(60) for word in text.lower().split()})
        tokenizer = Tokenizer(
            models.WordLevel({word: k for k, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]")
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        vectors = np.random.default_rng(0).standard_normal((len(words) + 1, 16)).astype(np.float32)
        package.StaticModel(vectors, tokenizer).save_pretrained(work_dir / "static")
    write_csv(work_dir / "news.csv", ["text", "topic", "ok"], text_rows(60))
    succeed(f"train news.csv --label topic --clean-column ok --encoder {encoder} --device cpu --out run", capsys)
    assert RunFolder(work_dir / "run").summary()["clean_accuracy"] > 80
    succeed("predict run news.csv -o out.csv", capsys)
    assert len(read_csv(work_dir / "out.csv")) == 60
