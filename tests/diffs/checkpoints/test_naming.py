from __future__ import annotations

from typing import Any

import torch

from diffs.checkpoints.naming import is_optimizer, names
from diffs.checkpoints.stored import Stored


def lazily(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Stored.of(value)
    if isinstance(value, dict):
        return {key: lazily(item) for key, item in value.items()}
    return [lazily(item) for item in value] if isinstance(value, list) else value


def trained(groups: int = 1, named: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's tensors, and its optimizer's state after an update."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    named_parameters = list(model.named_parameters())
    if groups == 2:
        kept = [p for n, p in named_parameters if "bias" not in n and p.ndim > 1]
        free = [p for n, p in named_parameters if "bias" in n or p.ndim == 1]
        optimizer = torch.optim.Adam([{"params": kept}, {"params": free, "weight_decay": 0.1}])
    else:
        optimizer = torch.optim.Adam(named_parameters if named else model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return lazily(model.state_dict()), lazily(optimizer.state_dict())


EXPECTED = {0: "0.weight", 1: "0.bias", 2: "1.weight", 3: "1.bias", 4: "2.weight", 5: "2.bias"}


def test_names_that_the_optimizer_kept_are_taken() -> None:
    _, saved = trained(named=True)
    assert is_optimizer(saved) and names(saved, {}, ordered=False) == EXPECTED


def test_the_order_of_the_models_table_gives_the_names_past_its_buffers() -> None:
    model, saved = trained()
    assert names(saved, model, ordered=True) == EXPECTED


def test_without_an_order_shapes_that_occur_twice_leave_the_names_open() -> None:
    model, saved = trained()
    assert names(saved, model, ordered=False) is None


def test_shapes_that_occur_once_give_the_names_in_any_order() -> None:
    saved = {
        "state": {0: {"exp_avg": Stored.of(torch.zeros(2))}, 1: {"exp_avg": Stored.of(torch.zeros(3))}},
        "param_groups": [{"params": [0, 1]}],
    }
    model = {"long": Stored.of(torch.zeros(3)), "short": Stored.of(torch.zeros(2))}
    assert names(saved, model, ordered=False) == {0: "short", 1: "long"}


def test_one_shape_that_does_not_fit_leaves_the_names_open() -> None:
    model, saved = trained()
    model["2.weight"] = Stored.of(torch.zeros(4, 4))
    assert names(saved, model, ordered=True) is None


def test_groups_of_no_known_rule_leave_the_names_open() -> None:
    model, saved = trained()
    group = saved["param_groups"][0]
    saved["param_groups"] = [{**group, "params": [0, 1, 2]}, {**group, "params": [3, 4, 5]}]
    assert names(saved, model, ordered=True) is None
