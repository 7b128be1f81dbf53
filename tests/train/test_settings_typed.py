"""A method's settings from text: words, numbers, and a number for which a word may stand."""

import pytest

from metalabelnet.errors import InputError
from metalabelnet.train.settings import make_settings, recipe


def test_text_is_taken_as_it_is() -> None:
    assert make_settings("forward", {"transition": "T.npy"}).transition == "T.npy"
    assert make_settings("forward", {}).transition == "anchor"


def test_a_number_or_a_word() -> None:
    assert make_settings("co-teaching", {"noise_rate": "auto"}).noise_rate == "auto"
    assert make_settings("co-teaching", {"noise_rate": "0.4"}).noise_rate == 0.4
    assert make_settings("co-teaching", {"noise_rate": 0}).noise_rate == 0.0
    with pytest.raises(InputError, match="noise_rate=high: give a number or auto"):
        make_settings("co-teaching", {"noise_rate": "high"})
    with pytest.raises(InputError, match="0 or more"):
        make_settings("co-teaching", {"noise_rate": "-0.1"})
    with pytest.raises(InputError, match="share in"):
        make_settings("co-teaching", {"noise_rate": "40"})


def test_the_others_are_as_before() -> None:
    assert make_settings("bootstrap", {"kind": "hard", "hard_beta": "0.5"}).hard_beta == 0.5
    assert make_settings("gce", {"truncated": "true"}).truncated is True
    with pytest.raises(InputError, match="did you mean 'soft'"):
        make_settings("bootstrap", {"kind": "sofd"})
    with pytest.raises(InputError, match="give true or false"):
        make_settings("gce", {"truncated": "1"})
    with pytest.raises(InputError, match=r"q=x: give a number$"):
        make_settings("gce", {"q": "x"})


@pytest.mark.parametrize(
    ("data", "changes", "warmup", "drops"),
    [
        ("digits", {}, 11, (10, 20)),
        ("digits", {"epochs": 8}, 3, (3, 5)),
        ("digits", {"epochs": 8, "warmup": 5}, 5, (3, 5)),
        ("digits", {"epochs": 2}, 1, (1, 1)),
        ("cifar10", {"epochs": 120}, 44, (40, 80)),
        ("cifar10", {"epochs": 30, "lr_milestones": (7,)}, 11, (7,)),
    ],
)
def test_warm_up_and_drops_follow_the_epochs(data: str, changes: dict, warmup: int, drops: tuple[int, ...]) -> None:
    run = recipe(data, **changes)
    assert (run.warmup, run.lr_milestones) == (warmup, drops)
