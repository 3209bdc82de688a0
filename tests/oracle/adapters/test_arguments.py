"""Arguments of an adapter: what its trainer cannot take is refused by name; no framework is needed for most of it."""

from __future__ import annotations

import pytest

from oracle.adapters.arguments import check, told
from oracle.errors import TrainerError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nonsense": 1}, "has no argument 'nonsense'"),
        ({"Accelerater.cpu": True}, "did you mean 'Accelerator.ARGUMENT'"),
        ({"float16.on_gpu": True}, "did you mean 'float16.on_cpu'"),
        ({"float16.on_cpu": "yes"}, "must be true or false, found 'yes'"),
        ({"environ.ACCELERATE_MIXED_PRECISION": 2}, "must be a text"),
    ],
)
def test_what_it_cannot_take_is_refused(arguments, words):
    with pytest.raises(TrainerError, match=words):
        check("accelerate", arguments)


def test_what_it_can_take_passes():
    check("accelerate", {"float16.on_cpu": True, "environ.ACCELERATE_MIXED_PRECISION": "bf16"})


def test_an_argument_that_the_installed_version_lacks_is_refused():
    pytest.importorskip("accelerate")
    check("accelerate", {"Accelerator.step_scheduler_with_optimizer": False})
    with pytest.raises(TrainerError, match="Accelerator of accelerate has no argument 'stepp'"):
        check("accelerate", {"Accelerator.stepp": False})


def test_arguments_are_told_by_their_class():
    assert told("A", {"A.one": 1, "AB.two": 2, "A.three": 3}) == {"one": 1, "three": 3}
