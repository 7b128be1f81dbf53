"""What fits into memory: that of the processor, and that of the card samples are moved to."""

from pathlib import Path

import pytest
import torch

from metalabelnet.data import ReadOptions, load
from metalabelnet.data.disk_tensor import DiskTensor
from metalabelnet.data.memory_limit import GIB, room_for_samples
from metalabelnet.train import prepare as prepare_module
from metalabelnet.train.prepare import _free_on


def test_room_is_what_is_given_or_half_of_what_is_free() -> None:
    assert room_for_samples(1.5) == 1.5 * GIB
    assert room_for_samples(1.5, card=1000) == 1.5 * GIB
    assert room_for_samples(None, card=1000) == 500
    assert 0 < room_for_samples(None) == pytest.approx(room_for_samples(None, card=1 << 60), rel=0.5)


def test_samples_that_a_card_has_no_room_for_stay_on_disk(tmp_path: Path) -> None:
    rows = "".join(f"{k}.5,{'ab'[k % 2]},{int(k < 8)}\n" for k in range(40))
    (tmp_path / "t.csv").write_text(f"v,label,ok\n{rows}")
    for card, kind in ((None, torch.Tensor), (40 * 4 * 2, torch.Tensor), (40 * 4 * 2 - 1, DiskTensor)):
        how = ReadOptions(clean_column="ok", card=card)
        assert isinstance(load(str(tmp_path / "t.csv"), tmp_path, read_options=how).train.x, kind)


def test_a_card_is_asked_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module.torch.cuda, "mem_get_info", lambda device: (device.index, 99))
    assert _free_on(torch.device("cuda:7")) == 7
    assert _free_on(torch.device("cpu")) is None
