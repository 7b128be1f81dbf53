"""Pretrained encoders: ResNets from a weights file, preparation of images, the cache of embeddings."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from encoder_weights import resnet_weights, write_resnet, write_sentence_transformer
from metalabelnet.data import load
from metalabelnet.data.embeddings import image_models, load_model, text_models
from metalabelnet.data.embeddings.cache import DIGEST_BYTES, EmbeddingCache
from metalabelnet.data.embeddings.model import weights_digest
from metalabelnet.data.embeddings.resnet import build_resnet
from metalabelnet.data.encoders import ImageEmbedding, encoder_from_json
from metalabelnet.data.encoders.embeddings import embed_images
from metalabelnet.errors import InputError
from metalabelnet.input_files.image_decoding import decode_center
from metalabelnet.nets import external

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    load_model.cache_clear()
    monkeypatch.setenv("METALABELNET_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.parametrize("convolutions", [2, 3])
def test_resnet_equals_torchvision(convolutions: int, torchvision: ModuleType) -> None:
    """The oracle is torchvision's class with the same weights; the stem of torchvision has 64 channels."""
    resnet = torchvision.models.resnet
    oracle = resnet.ResNet(resnet.BasicBlock if convolutions == 2 else resnet.Bottleneck, [2, 1, 1, 1])
    weights = resnet_weights(convolutions=convolutions, width=64)
    weights |= {  # a second block in the first stage, without a shortcut of its own
        name.replace("layer1.0", "layer1.1"): torch.randn_like(tensor) / 10
        for name, tensor in oracle.state_dict().items()
        if name.startswith("layer1.1") and tensor.is_floating_point()
    }
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith("fc")}
    for name, tensor in weights.items():
        if name.startswith("layer1.1") and name.endswith("running_var"):
            weights[name] = tensor.abs() + 1
    assert {*oracle.load_state_dict(weights, strict=False).unexpected_keys} == set()
    oracle.fc = torch.nn.Identity()
    x = torch.randn(2, 3, 64, 64)
    net = build_resnet({f"module.pre.{name}": tensor for name, tensor in weights.items()}, "file")
    with torch.no_grad():
        assert torch.allclose(net(x), oracle.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_file_with_prefix(suffix: str, tmp_path: Path) -> None:
    """Prefix, file format and last layer change neither the embedding nor the identity of an encoder."""
    plain = load_model(write_resnet(tmp_path / "plain.pth"), "image")
    other = load_model(write_resnet(tmp_path / f"other{suffix}", prefix="module.pre."), "image")  # type: ignore[arg-type]
    images = torch.randint(0, 256, (3, 3, 224, 224), dtype=torch.uint8)
    assert (plain.width, plain.identity) == (other.width, other.identity) == (32, plain.identity)
    assert torch.equal(plain.embed(images, CPU), other.embed(images, CPU))
    by_hand = (images / 255 - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    with torch.no_grad():
        assert torch.allclose(plain.embed(images, CPU), build_resnet(resnet_weights(), "file")(by_hand), atol=1e-5)


def test_identity_depends_on_every_weight() -> None:
    weights = resnet_weights()
    changed = weights | {"layer4.0.bn2.bias": weights["layer4.0.bn2.bias"] + 1e-6}
    assert weights_digest("", weights) != weights_digest("", changed)
    assert weights_digest("", weights) != weights_digest("other preparation", weights)


def test_files_that_are_no_encoder(tmp_path: Path) -> None:
    weights = resnet_weights()
    torch.save({"a.weight": torch.zeros(2)}, tmp_path / "other.pth")
    torch.save({**weights, "layer3.0.conv2.weight": torch.zeros(16, 16, 3, 5)}, tmp_path / "odd.pth")
    torch.save({name: tensor for name, tensor in weights.items() if name != "bn1.bias"}, tmp_path / "part.pth")
    write_resnet(tmp_path / "small.pth")
    for name, problem in (
        ("missing.pth", "there is no such file; --encoder is timm:NAME, torchvision:NAME or a file of weights"),
        ("other.pth", "there is no tensor layer1.0.conv1.weight"),
        ("odd.pth", "layer3.0.conv2.weight is (16, 16, 3, 5), not (16, 16, 3, 3)"),
        ("part.pth", "bn1.bias is missing, not (4,)"),
    ):
        with pytest.raises(InputError) as error:
            load_model(str(tmp_path / name), "image")
        assert problem in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"is not a resnet50: it has 1\+1\+1\+1 blocks of 2 convolutions"):
        load_model(f"resnet50:{tmp_path / 'small.pth'}", "image")
    with pytest.raises(InputError, match="--encoder wordllama is for texts, and these samples are images"):
        load_model("wordllama", "image")
    with pytest.raises(InputError, match="--encoder timm:a is for images, and these samples are texts"):
        load_model("timm:a", "text")


@pytest.mark.parametrize(("width", "height"), [(512, 256), (32, 32), (64, 96)])
def test_center_of_an_image(width: int, height: int) -> None:
    """The oracle resizes the whole image, then crops: the short side to 256 pixels, the center of 224."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    scale = 256 / min(width, height)
    whole = Image.fromarray(pixels).resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = (whole.width - 224) // 2, (whole.height - 224) // 2
    expected = np.asarray(whole.crop((left, top, left + 224, top + 224))).transpose(2, 0, 1).astype(int)
    found = decode_center(pixels.transpose(2, 0, 1), 256, 224)
    assert found.shape == (3, 224, 224)
    assert np.abs(found - expected).max() <= 1  # rounding


def test_gray_image_and_file_equal_the_array(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "gray.png")
    from_file = decode_center(tmp_path / "gray.png", 256, 224)
    assert np.array_equal(from_file, decode_center(pixels[None], 256, 224))
    assert np.array_equal(from_file[0], from_file[2])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sentence_transformer(tmp_path: Path, working_torchvision: None) -> None:
    """The embedding is that of the package, and the identity depends on what changes it beside the weights."""
    package = pytest.importorskip("sentence_transformers", exc_type=ImportError)
    folder, texts = write_sentence_transformer(tmp_path / "tiny"), ["a good film " * 9, "bad"]
    model = load_model(f"sentence-transformers:{folder}", "text")
    expected = package.SentenceTransformer(folder)
    assert torch.equal(model.embed(texts, CPU), torch.from_numpy(expected.encode(texts)))
    assert model.width == 16
    load_model.cache_clear()
    assert load_model(folder, "text").identity == model.identity
    expected.max_seq_length = 5
    expected.save(str(tmp_path / "short"))
    expected.prompts, expected.default_prompt_name = {"query": "a bad film"}, "query"
    expected.save(str(tmp_path / "prompt"))
    identities, embeddings = {model.identity}, [model.embed(texts, CPU)]
    for name in ("short", "prompt"):
        other = load_model(f"sentence-transformers:{tmp_path / name}", "text")
        embeddings.append(other.embed(texts, CPU))
        assert not torch.allclose(embeddings[-1], embeddings[-2], atol=1e-4)
        identities.add(other.identity)
    assert len(identities) == 3


@pytest.mark.parametrize("family", ["model2vec", "sentence-transformers", "torchvision"])
def test_a_failure_of_any_kind_while_weights_are_loaded(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages raise errors that are neither OSError nor ValueError, as for a file of weights that is cut off."""

    class SafetensorError(Exception):
        pass

    def fail(*_: object, **__: object) -> None:
        raise SafetensorError("incomplete metadata,\nfile not fully covered " + 50 * "words ")

    stub = ModuleType(family.replace("-", "_"))
    stub.SentenceTransformer, stub.StaticModel = fail, type("StaticModel", (), {"from_pretrained": fail})  # type: ignore[attr-defined]
    stub.models = ModuleType("models")  # type: ignore[attr-defined]
    stub.models.list_models, stub.models.get_model = lambda module: ["a"], fail
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    with pytest.raises(InputError, match=r"\(incomplete metadata, file not fully covered .* words …\); ") as error:
        load_model(f"{family}:a", "image" if family == "torchvision" else "text")
    assert str(error.value).startswith(f"the encoder {family}:a")


def _download_network(name: str, build: Callable[[], None]) -> None:
    with external._hub_errors(name):
        build()


@pytest.mark.parametrize("download", [image_models._download, text_models._load, _download_network])
def test_attempts_of_a_download_are_not_reported(
    download: Callable[[str, Callable[[], None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    """huggingface_hub warns twice at each attempt; the error alone tells what is wrong."""

    def fail() -> None:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("no connection")

    with pytest.raises(InputError, match=r"\(no connection\)"):
        download("timm:a", fail)
    assert caplog.records == []


@pytest.mark.parametrize("name", ["", "."])
def test_encoder_that_is_a_folder(name: str) -> None:
    with pytest.raises(InputError, match=f"--encoder '{name}' names no file; --encoder is timm:NAME, torchvision:NAME"):
        load_model(name, "image")


# The cache


def test_cache_continues_after_a_kill(tmp_path: Path) -> None:
    digests = [bytes([k]) * DIGEST_BYTES for k in range(4)]
    vectors = torch.randn(4, 5)
    EmbeddingCache(tmp_path, "id", 5).add(digests[:2], vectors[:2])
    file = tmp_path / "embeddings" / "id.f32"
    file.write_bytes(file.read_bytes() + b"half a record")
    cache = EmbeddingCache(tmp_path, "id", 5)
    assert torch.equal(cache.get(digests[1]), vectors[1])  # type: ignore[arg-type]
    assert cache.get(digests[2]) is None
    cache.add(digests[2:], vectors[2:])
    for reader in (cache, EmbeddingCache(tmp_path, "id", 5)):
        for digest, vector in zip(digests, vectors, strict=True):
            assert torch.equal(reader.get(digest), vector)  # type: ignore[arg-type]
    file.unlink()
    assert cache.get(digests[0]) is None


def test_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "embeddings").write_text("a file, not a folder")
    cache = EmbeddingCache(tmp_path, "id", 5)
    cache.add([b"x" * DIGEST_BYTES], torch.zeros(1, 5))
    assert str(tmp_path) in cache.problem
    assert cache.get(b"x" * DIGEST_BYTES) is None


def test_every_image_is_embedded_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = [tmp_path / f"{k}.png" for k in range(4)]
    for k, file in enumerate(files):
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8)).save(file)
        if k == 3:
            file.write_bytes(files[0].read_bytes())  # a copy
    (tmp_path / "broken.png").write_bytes(b"no image")
    name, seen = write_resnet(tmp_path / "net.pth"), []
    encoder = ImageEmbedding.load(name, None)
    embed = encoder._load_model().embed
    object.__setattr__(encoder._model, "embed", lambda x, device: seen.append(len(x)) or embed(x, device))
    first = list(encoder.encode([files[0], tmp_path / "broken.png", files[1], files[3]]))
    assert seen == [2]
    assert isinstance(first[1], str)
    assert "is not an image" in first[1]
    assert torch.equal(first[0], first[3])  # type: ignore[arg-type]
    again = list(encoder_from_json(encoder.to_json(), Path("encoder.json")).encode(files))
    assert seen == [2, 1]  # the same model; only the third image is new
    assert torch.equal(again[0], first[0])  # type: ignore[arg-type]
    assert encoder.to_json()["encoder"] == name


def test_changed_weights_are_found(tmp_path: Path) -> None:
    name = write_resnet(tmp_path / "net.pth")
    config = ImageEmbedding.load(name, None).to_json()
    write_resnet(tmp_path / "net.pth", blocks=2)
    load_model.cache_clear()
    encoder = encoder_from_json(config, Path("encoder.json"))
    with pytest.raises(InputError, match="its weights or settings have changed"):
        list(encoder.encode([np.zeros((3, 8, 8), np.uint8)]))


def test_arrays_of_images(tmp_path: Path) -> None:
    """Embeddings of a data set of arrays equal those of single images, whatever the part."""
    data = load("digits")
    name = write_resnet(tmp_path / "net.pth")
    few = data.train.take(torch.arange(5))
    embedded = embed_images(
        type(data)(name="few", train=few, test=few.take(torch.tensor([4, 0]))), name, folder=None, device=CPU
    )
    assert tuple(embedded.train.x.shape) == (5, 32)
    assert embedded.test is not None
    assert torch.equal(embedded.test.x, embedded.train.x[[4, 0]])  # type: ignore[index]
    assert (embedded.encoder_config or {})["width"] == 32
    image = torch.from_numpy(decode_center(few.x[4].numpy(), 256, 224))[None]
    assert torch.allclose(load_model(name, "image").embed(image, CPU)[0], embedded.train.x[4], atol=1e-5)  # type: ignore[index]
    with pytest.raises(InputError, match="--encoder net is for images and texts, and few has none"):
        embed_images(embedded, "net", folder=None, device=CPU)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_networks_of_packages(package: str, torchvision: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """With random weights in place of downloaded ones: the embedding is the input of the last layer."""
    if package == "timm":
        import timm

        make = timm.create_model
        monkeypatch.setattr(timm, "create_model", lambda name, **more: make(name, **more | {"pretrained": False}))
    else:
        build = torchvision.models.get_model
        monkeypatch.setattr(torchvision.models, "get_model", lambda name, weights: build(name, weights=None))
    model = (image_models.load_timm if package == "timm" else image_models.load_torchvision)("resnet18")
    assert model.width == 512
    assert model.embed(torch.zeros(2, 3, 224, 224, dtype=torch.uint8), CPU).shape == (2, 512)
    with pytest.raises(InputError, match="unknown network"):
        (image_models.load_timm if package == "timm" else image_models.load_torchvision)("resnet81")
