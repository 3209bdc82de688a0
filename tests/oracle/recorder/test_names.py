"""Which parameter of a wrapped model is which of the task's."""

from __future__ import annotations

import pytest

from oracle.recorder.names import bare, match


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0.weight", "0.weight"),
        ("module.0.weight", "0.weight"),
        ("module._orig_mod.module.0.weight", "0.weight"),
        ("0._checkpoint_wrapped_module.weight", "0.weight"),
        ("_fsdp_wrapped_module.0._fsdp_wrapped_module.weight", "0.weight"),
        ("encoder.module.weight", "encoder.module.weight"),  # the user's own name
        ("modules.weight", "modules.weight"),
    ],
)
def test_wrappers_prefixes_are_no_part_of_a_name(name: str, expected: str) -> None:
    assert bare(name) == expected


@pytest.mark.parametrize(
    ("names", "known", "expected"),
    [
        (["0.weight", "1.weight"], ["0.weight", "1.weight"], ["0.weight", "1.weight"]),
        (["net.0.weight", "net.1.weight"], ["0.weight", "1.weight"], ["0.weight", "1.weight"]),
        (["0.weight"], ["inner.0.weight", "inner.1.weight"], ["inner.0.weight"]),
        (["module.0.weight"], ["module.0.weight"], ["module.0.weight"]),
        (["other"], ["0.weight"], ["other"]),
        # Two copies of the model: neither is more the task's than the other.
        (["a.weight", "b.weight"], ["weight"], ["a.weight", "b.weight"]),
        # A part that fits two places is not guessed.
        (["weight"], ["0.weight", "1.weight"], ["weight"]),
    ],
)
def test_a_copys_names_are_matched_where_there_is_one_way(
    names: list[str], known: list[str], expected: list[str]
) -> None:
    assert list(match(names, known).values()) == expected
