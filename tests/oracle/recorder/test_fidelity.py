"""What was written is held against what is live: equal, or the difference has a name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from oracle.recorder.capture import write_safetensors
from oracle.recorder.fidelity import compare


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Tied()


def relations(model, file, optimizers=(), average=None):
    return dict(compare([file], [model], list(optimizers), average or {}))


def saved(tmp_path, content):
    torch.save(content, tmp_path / "state.pt")
    return tmp_path / "state.pt"


def test_a_state_dict_is_identical(model, tmp_path):
    found = relations(model, saved(tmp_path, {"model": model.state_dict()}))
    assert set(found.values()) == {"identical"} and "buffer norm.running_mean" in found


def test_a_wrapper_in_front_of_the_names_does_not_matter(model, tmp_path):
    content = {f"module.{name}": value for name, value in model.state_dict().items()}
    assert set(relations(model, saved(tmp_path, content)).values()) == {"identical"}


@pytest.mark.parametrize("write", ["torch", "safetensors"])
def test_a_cast_is_named_with_its_type(model, tmp_path, write):
    cast = {name: value.bfloat16() for name, value in model.named_parameters()}
    if write == "torch":
        file = saved(tmp_path, cast)
    else:
        file = tmp_path / "model.safetensors"
        write_safetensors(file, {name: value.detach() for name, value in cast.items()})
    found = relations(model, file)
    assert found["parameter embedding.weight"] == "cast to bfloat16"
    assert found["parameter head.weight"] == "left out, tied to embedding.weight"


def test_averaged_weights_in_place_of_the_live_ones_are_named(model, tmp_path):
    average = {name: value.detach() * 0.5 for name, value in model.named_parameters()}
    assert relations(model, saved(tmp_path, average), average=average)["parameter norm.weight"] == "the averaged one"


def test_a_shard_is_a_part(model, tmp_path):
    content = dict(model.state_dict())
    content["embedding.weight"] = content["head.weight"] = content["embedding.weight"][2:4].clone()
    assert relations(model, saved(tmp_path, content))["parameter embedding.weight"] == "a part of it"


def test_another_value_and_none_are_told_apart(model, tmp_path):
    content = {"norm.weight": model.norm.weight + 1, "embedding.weight": model.embedding.weight}
    found = relations(model, saved(tmp_path, content))
    assert (found["parameter norm.weight"], found["parameter norm.bias"]) == ("another value", "absent")


def test_the_optimizers_state_is_held_against_its_own(model, tmp_path):
    optimizer = torch.optim.Adam(model.parameters())
    model.embedding.weight.grad = torch.ones_like(model.embedding.weight)
    optimizer.step()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    found = relations(model, saved(tmp_path, content), [optimizer])
    assert found["optimizer_state 0.exp_avg"] == "identical"
    content["optimizer"]["state"][0] = {**content["optimizer"]["state"][0], "exp_avg": torch.zeros(6, 4)}
    found = relations(model, saved(tmp_path, content), [optimizer])
    assert found["optimizer_state 0.exp_avg"] == "another value"


def test_a_file_that_holds_no_parameter_says_nothing(model, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"loss": 1}\n')
    assert relations(model, tmp_path / "log.jsonl") == {}
    assert relations(model, saved(tmp_path, {"step": torch.tensor(3)})) == {}


def test_a_file_that_is_damaged_says_nothing(model, tmp_path):
    file = saved(tmp_path, model.state_dict())
    file.write_bytes(file.read_bytes()[:-100])
    assert relations(model, file) == {}
