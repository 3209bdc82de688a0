from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from diffs.checkpoints.comparison import CheckpointComparison, PartComparison, compare
from diffs.checkpoints.formats import open_checkpoint

Saved = dict[str, Any]


def compared(folder: Path, left: Any, right: Any) -> CheckpointComparison:
    for name, content in (("left.pt", left), ("right.pt", right)):
        torch.save(content, folder / name)
    return compare(open_checkpoint(folder / "left.pt"), open_checkpoint(folder / "right.pt"))


def part(found: CheckpointComparison, name: str) -> PartComparison:
    return next(one for one in found.parts if one.part == name)


def test_a_checkpoint_matches_itself(tmp_path: Path, saved: Saved) -> None:
    found = compared(tmp_path, saved, saved)
    assert (found.verdict, found.reason, found.worst_ulp) == ("match", None, 0)
    assert found.tensors == len(saved["model"]) + 18 + 1 and all(one.same for one in found.parts)


def test_each_outcome_is_told_apart(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    left = {"same": weight, "differs": weight + 1, "dtype": weight + 2, "shape": weight + 3, "gone": weight + 4,
            "old": torch.arange(5.0), "head": weight}  # fmt: skip
    right = {"same": weight.clone(), "differs": weight + 1, "dtype": (weight + 2).double(), "shape": (weight + 3).t(),
             "new": torch.arange(5.0), "more": torch.zeros(1)}  # fmt: skip
    right["differs"] = right["differs"].clone()
    right["differs"][2, 1] = 0
    found = compared(tmp_path, left, right)
    outcomes = {one.name: one for one in part(found, "parameter").outcomes}
    assert {name: one.outcome for name, one in outcomes.items()} == {
        "differs": "differs",
        "dtype": "dtype",
        "shape": "shape",
        "gone": "missing",
        "old": "renamed",
        "more": "added",
        "head": "tied",
    }
    assert outcomes["old"].other == "new" and outcomes["head"].other == "same"
    assert (outcomes["dtype"].reference, outcomes["dtype"].candidate) == (("float32", (4, 3)), ("float64", (4, 3)))
    assert found.verdict == "diverged" and found.worst_ulp is None
    assert (part(found, "parameter").tensors, part(found, "parameter").identical) == (3, 1)


def test_plain_state_is_compared_by_what_it_means(tmp_path: Path, saved: Saved) -> None:
    other = {**saved, "epoch": 2, "scheduler": {**saved["scheduler"], "last_epoch": 7}, "args": {"lr": 1}}
    found = compared(tmp_path, {**saved, "args": {"lr": 1.0}}, other)
    assert [one.part for one in found.parts if not one.same] == ["scheduler", "counter", "arguments"]
    assert [(one.path, one.reference, one.candidate) for one in part(found, "counter").state] == [(("epoch",), 1, 2)]
    assert [one.kind for one in part(found, "arguments").state] == ["type"]


@pytest.mark.parametrize(("left", "right"), [(0.0, -0.0), (1, True), ("1", 1), ([1], [1, 2]), (float("nan"), 0.0)])
def test_values_that_python_calls_equal_are_told_apart(tmp_path: Path, saved: Saved, left: Any, right: Any) -> None:
    assert compared(tmp_path, {**saved, "config": {"a": left}}, {**saved, "config": {"a": right}}).verdict == "diverged"


def test_equal_nan_is_no_difference(tmp_path: Path, saved: Saved) -> None:
    both = {**saved, "config": {"a": float("nan")}}
    assert compared(tmp_path, both, both).verdict == "match"


def test_a_part_that_one_side_lacks_is_a_difference(tmp_path: Path, saved: Saved) -> None:
    found = compared(tmp_path, saved, {key: value for key, value in saved.items() if key != "scheduler"})
    assert found.verdict == "diverged" and part(found, "scheduler").sides == "reference"


def test_a_wrappers_prefix_is_a_difference_of_names_alone(tmp_path: Path, saved: Saved) -> None:
    other = {**saved, "model": {f"module.{name}": tensor for name, tensor in saved["model"].items()}}
    parameters = part(compared(tmp_path, saved, other), "parameter")
    assert not parameters.same and parameters.rule is not None and parameters.rule.on == "module."
    assert parameters.identical == parameters.tensors == len(saved["model"])


def test_nothing_in_common_is_no_match(tmp_path: Path, saved: Saved) -> None:
    from safetensors.torch import save_file

    save_file(saved["model"], tmp_path / "x.safetensors")
    torch.save(saved["optimizer"], tmp_path / "x.pt")
    found = compare(open_checkpoint(tmp_path / "x.safetensors"), open_checkpoint(tmp_path / "x.pt"))
    assert found.verdict == "not_comparable" and found.reason is not None


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        ({"lr": 0.1}, {"lr": 0.1}, "match"),
        ({"lr": 0.1}, {"lr": 0.2}, "diverged"),
        ({"lr": 0.1}, {"momentum": 0.1}, "not_comparable"),
        ({"lr": 0.1}, {"w": torch.ones(2)}, "not_comparable"),
        ({"w": torch.ones(2)}, {"w": torch.ones(2).bfloat16()}, "diverged"),
        ({"w": torch.ones(2)}, {"w": torch.ones(3)}, "diverged"),
        ({"w": torch.ones(2)}, {"v": torch.ones(2)}, "diverged"),  # renamed
        ({"w": torch.ones(2)}, {"v": torch.zeros(2)}, "not_comparable"),
    ],
)
def test_what_has_nothing_to_hold_against_is_not_comparable(
    tmp_path: Path, left: Any, right: Any, verdict: str
) -> None:
    found = compared(tmp_path, left, right)
    assert found.verdict == verdict and (found.reason is None) == (verdict != "not_comparable")
