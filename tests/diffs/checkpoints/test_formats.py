"""Every format, as its framework lays it out, and any one of them against another."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from diffs.checkpoints.comparison import compare
from diffs.checkpoints.formats import open_checkpoint
from diffs.checkpoints.stored import Damaged, Stored, Unsafe
from diffs.verdict import NotComparable

Saved = dict[str, Any]


def write_weights(folder: Path, saved: Saved) -> Path:
    save_file(saved["model"], folder / "model.safetensors")
    return folder / "model.safetensors"


def write_shards(folder: Path, saved: Saved, suffix: str = "safetensors") -> Path:
    names = list(saved["model"])
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    files = [f"{stem}-0000{part}-of-00002.{suffix}" for part in (1, 2)]
    for file, chosen in zip(files, (names[::2], names[1::2]), strict=True):
        tensors = {name: saved["model"][name] for name in chosen}
        save_file(tensors, folder / file) if suffix == "safetensors" else torch.save(tensors, folder / file)
    weight_map = {name: files[place % 2] for place, name in enumerate(names)}
    index = folder / f"{stem}.{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def write_bin_shards(folder: Path, saved: Saved) -> Path:
    write_shards(folder, saved, "bin")
    return folder


def write_torch(folder: Path, saved: Saved) -> Path:
    torch.save(saved, folder / "last.pt")
    return folder / "last.pt"


def write_trainer(folder: Path, saved: Saved) -> Path:
    torch.save(saved["model"], folder / "pytorch_model.bin")
    torch.save(saved["optimizer"], folder / "optimizer.pt")
    torch.save(saved["scheduler"], folder / "scheduler.pt")
    generators = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": saved["rng"]["torch"]}
    torch.save(generators, folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 2, "epoch": 1.0, "log_history": []}))
    (folder / "config.json").write_text("{}")
    return folder


def write_accelerate(folder: Path, saved: Saved) -> Path:
    write_weights(folder, saved)
    torch.save(saved["optimizer"], folder / "optimizer.bin")
    torch.save(saved["scheduler"], folder / "scheduler.bin")
    states = {"step": 0, "random_state": random.getstate(), "torch_manual_seed": saved["rng"]["torch"]}
    torch.save(states, folder / "random_states_0.pkl")
    return folder


def write_lightning(folder: Path, saved: Saved) -> Path:
    content = {
        "epoch": 1,
        "global_step": 2,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": {f"net.{name}": tensor for name, tensor in saved["model"].items()},
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {},
        "optimizer_states": [saved["optimizer"]],
        "lr_schedulers": [saved["scheduler"]],
    }
    torch.save(content, folder / "last.ckpt")
    return folder / "last.ckpt"


def write_distributed(folder: Path, saved: Saved) -> Path:
    import torch.distributed.checkpoint as dcp

    names = [name for name in saved["model"] if "running" not in name and "batches" not in name]
    state = {names[key]: dict(value) for key, value in saved["optimizer"]["state"].items()}
    groups = [{**group, "params": names} for group in saved["optimizer"]["param_groups"]]
    content = {"model": dict(saved["model"]), "optimizer": {"state": state, "param_groups": groups}, "step": 2}
    dcp.save(content, checkpoint_id=str(folder), no_dist=True)
    return folder


def write_adapter(folder: Path, saved: Saved) -> Path:
    save_file(saved["model"], folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    return folder


def write_zero(folder: Path, saved: Saved, stage: int = 2, ranks: int = 2) -> Path:
    """A ZeRO checkpoint of several ranks: a flat vector, cut into as many parts, or each parameter cut so."""
    tag = folder / "global_step2"
    tag.mkdir()
    (folder / "latest").write_text("global_step2")
    buffers = [name for name in saved["model"] if "running" in name or "batches" in name]
    names = [name for name in saved["model"] if name not in buffers]
    flats = {"master": [saved["model"][name] for name in names]}
    for key in ("exp_avg", "exp_avg_sq"):
        flats[key] = [saved["optimizer"]["state"][place][key] for place in range(len(names))]
    parts = {key: zero_parts(tensors, stage, ranks) for key, tensors in flats.items()}
    lr = saved["optimizer"]["param_groups"][0]["lr"]
    master = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    for rank in range(ranks):
        state = {key: parts[key][rank] for key in ("exp_avg", "exp_avg_sq")} | {"step": torch.tensor(2.0)}
        base = {"state": {0: state}, "param_groups": [{"lr": lr, "params": [0]}]}
        content = {
            "zero_stage": stage,
            "partition_count": ranks,
            master: [parts["master"][rank]],
            "optimizer_state_dict" if stage == 3 else "base_optimizer_state": base,
        }
        torch.save({"optimizer_state_dict": content}, tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    model = {
        "module": saved["model"] if stage < 3 else {name: saved["model"][name] for name in buffers},
        "buffer_names": buffers,
        "param_shapes": [{name: saved["model"][name].shape for name in names}],
        "shared_params": {},
        "global_steps": 2,
    }
    name = "mp_rank_00_model_states.pt"
    torch.save(model, tag / (name if stage < 3 else f"zero_pp_rank_0_{name}"))
    return folder


def zero_parts(tensors: list[torch.Tensor], stage: int, ranks: int) -> list[torch.Tensor]:
    """What each rank has of some tensors: a part of all of them together, or in stage 3 a part of each."""
    if stage < 3:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        return [part.clone() for part in torch.cat([flat, torch.zeros(-len(flat) % (2 * ranks))]).chunk(ranks)]
    shares = [math.ceil(tensor.numel() / ranks) for tensor in tensors]
    padded = [torch.zeros(share * ranks) for share in shares]
    for whole, tensor in zip(padded, tensors, strict=True):
        whole[: tensor.numel()] = tensor.reshape(-1)
    return [
        torch.cat([whole[rank * share : (rank + 1) * share] for whole, share in zip(padded, shares, strict=True)])
        for rank in range(ranks)
    ]


WRITERS: dict[str, Callable[[Path, Saved], Path]] = {
    "safetensors": write_weights,
    "sharded weights": write_shards,
    "bin shards": write_bin_shards,
    "torch.save": write_torch,
    "transformers.Trainer": write_trainer,
    "Accelerate save_state": write_accelerate,
    "Lightning": write_lightning,
    "torch.distributed.checkpoint": write_distributed,
    "PEFT adapter": write_adapter,
    "DeepSpeed": write_zero,
}


def made(folder: Path, name: str, saved: Saved) -> Path:
    folder.mkdir(parents=True)
    return WRITERS[name](folder, saved)


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_is_recognised_and_holds_the_weights(tmp_path: Path, saved: Saved, name: str) -> None:
    checkpoint = open_checkpoint(made(tmp_path / "x", name, saved))
    assert checkpoint.format == (name if name != "bin shards" else "sharded weights")
    weights = {key.removeprefix("net."): tensor for key, tensor in checkpoint.parts["parameter"].tensors.items()}
    assert weights.keys() == saved["model"].keys()
    assert all(torch.equal(weights[key].tensor(), tensor) for key, tensor in saved["model"].items())


@pytest.mark.parametrize("one", WRITERS)
@pytest.mark.parametrize("other", WRITERS)
def test_any_format_agrees_with_any_other(tmp_path: Path, saved: Saved, one: str, other: str) -> None:
    left, right = made(tmp_path / "l", one, saved), made(tmp_path / "r", other, saved)
    assert compare(open_checkpoint(left), open_checkpoint(right)).verdict == "match"


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("other", ["safetensors", "torch.save"])
def test_one_bit_of_one_weight_is_found_in_any_format(tmp_path: Path, saved: Saved, name: str, other: str) -> None:
    left = made(tmp_path / "l", other, saved)
    saved["model"]["2.weight"].view(torch.int32)[1, 5] ^= 1
    found = compare(open_checkpoint(left), open_checkpoint(made(tmp_path / "r", name, saved)))
    (outcome,) = [outcome for part in found.parts for outcome in part.outcomes if outcome.decisive]
    assert (found.verdict, outcome.name, outcome.outcome) == ("diverged", "2.weight", "differs")
    assert outcome.difference is not None and outcome.difference.worst is not None
    assert (outcome.difference.worst.index, outcome.difference.worst.ulp, found.worst_ulp) == ((1, 5), 1, 1)


STATEFUL = ["torch.save", "transformers.Trainer", "Accelerate save_state", "Lightning", "torch.distributed.checkpoint"]


@pytest.mark.parametrize("name", [*STATEFUL, "DeepSpeed"])
def test_optimizer_state_has_the_names_of_its_parameters(tmp_path: Path, saved: Saved, name: str) -> None:
    part = open_checkpoint(made(tmp_path / "x", name, saved)).parts["optimizer"]
    names = {key.removeprefix("net."): tensor for key, tensor in part.tensors.items()}
    if name == "Accelerate save_state":  # a safetensors file has lost the order of the model's table
        assert part.by_index
    else:
        assert torch.equal(names["2.weight.exp_avg"].tensor(), saved["optimizer"]["state"][4]["exp_avg"])


@pytest.mark.parametrize("name", STATEFUL)
def test_a_change_of_optimizer_state_is_found(tmp_path: Path, saved: Saved, name: str) -> None:
    left = made(tmp_path / "l", "torch.save", saved)
    saved["optimizer"]["state"][4]["exp_avg"][0, 0] += 1
    found = compare(open_checkpoint(left), open_checkpoint(made(tmp_path / "r", name, saved)))
    assert [part.part for part in found.parts if not part.same] == ["optimizer"]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_parts_are_put_together(tmp_path: Path, saved: Saved, stage: int, ranks: int) -> None:
    checkpoint = open_checkpoint(write_zero(tmp_path, saved, stage, ranks))
    for name, tensor in saved["model"].items():
        assert torch.equal(checkpoint.parts["parameter"].tensors[name].tensor(), tensor), name
    assert torch.equal(
        checkpoint.parts["optimizer"].tensors["2.bias.exp_avg_sq"].tensor(),
        saved["optimizer"]["state"][5]["exp_avg_sq"],
    )


def test_a_rank_that_is_missing_is_said(tmp_path: Path, saved: Saved) -> None:
    write_zero(tmp_path, saved)
    (tmp_path / "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(Damaged, match="of 1 ranks, 2 wrote it"):
        open_checkpoint(tmp_path)


def test_the_real_accelerate_writes_what_is_read(tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(model(torch.ones(1, 3)).sum())
    optimizer.step()
    accelerator.save_state(str(tmp_path / "x"))
    checkpoint = open_checkpoint(tmp_path / "x")
    assert checkpoint.format == "Accelerate save_state"
    assert set(checkpoint.parts) >= {"parameter", "optimizer", "rng", "counter"}
    assert torch.equal(checkpoint.parts["parameter"].tensors["weight"].tensor(), model.weight.detach())
    average = checkpoint.parts["optimizer"].tensors["weight.exp_avg"].tensor()
    assert torch.equal(average, optimizer.state[model.weight]["exp_avg"])


def test_the_reference_loops_own_checkpoints_are_read(tmp_path: Path) -> None:
    content = {
        "parameter": {"w": torch.ones(2)},
        "optimizer": {"w": {"exp_avg": torch.zeros(2)}},
        "scheduler": 3,
        "scaler": None,
        "rng": {"torch": torch.get_rng_state(), "python": [3, [1, 2], None]},
        "order": {"epoch": [1, 0], "first": [0, 1]},
        "cursor": (1, 0),
        "counter": {"updates": 4, "micros": 8},
        "accumulated_gradient": {},
        "ema": {},
    }
    (tmp_path / "x").mkdir()
    torch.save(content, tmp_path / "x/state.pt")
    checkpoint = open_checkpoint(tmp_path / "x")
    assert checkpoint.format == "reference loop"
    assert set(checkpoint.parts) == {"parameter", "optimizer", "scheduler", "rng", "order", "cursor", "counter"}
    assert checkpoint.parts["cursor"].plain == {"epoch": 1, "batch": 0}


@pytest.mark.parametrize("shard", ["../secret", "/etc/passwd", "a/b", "..", "a\\b", ""])
def test_an_index_that_points_out_of_its_folder_is_refused(tmp_path: Path, shard: str) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "secret")
    (tmp_path / "x").mkdir()
    index = tmp_path / "x/model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(Damaged, match="must be a file beside its index"):
        open_checkpoint(index)


def test_a_shard_that_is_missing_or_lacks_a_tensor_is_named(tmp_path: Path, saved: Saved) -> None:
    index = write_shards(tmp_path, saved)
    content = json.loads(index.read_text())
    content["weight_map"]["0.weight"] = content["weight_map"]["0.bias"]
    index.write_text(json.dumps(content))
    with pytest.raises(Damaged, match=r"looks for '0\.weight' in .* which lacks it"):
        open_checkpoint(index)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(Damaged, match="not there"):
        open_checkpoint(tmp_path)


def test_a_chunk_outside_its_folder_or_file_is_refused(tmp_path: Path, saved: Saved) -> None:
    folder = write_distributed(tmp_path, saved)
    table = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(table.replace(b"__0_0.distcp", b"../../secret"))
    with pytest.raises(Damaged, match="must be a file of its own folder"):
        open_checkpoint(folder)
    (folder / ".metadata").write_bytes(table)
    os.truncate(folder / "__0_0.distcp", 5000)
    with pytest.raises(Damaged, match="ends at byte 5,000, inside"):
        open_checkpoint(folder)


def test_latest_that_points_out_of_its_folder_is_refused(tmp_path: Path, saved: Saved) -> None:
    write_zero(tmp_path, saved)
    (tmp_path / "latest").write_text("../global_step2")
    with pytest.raises(Damaged, match="must be a folder beside it"):
        open_checkpoint(tmp_path)


class Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, ("never",)


@pytest.mark.parametrize(
    "file", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "pytorch_model.bin"]
)
def test_a_payload_in_any_file_is_refused_and_trust_is_the_only_way(
    tmp_path: Path, saved: Saved, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = made(tmp_path / "x", "transformers.Trainer", saved)
    torch.save({"a": torch.ones(1), "b": Payload()}, folder / file)
    with pytest.raises(Unsafe, match=file):
        open_checkpoint(folder)
    assert not (tmp_path / "never").exists()
    open_checkpoint(folder, trust=True)
    assert (tmp_path / "never").exists()


def test_what_is_no_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(NotComparable, match=r"it holds notes\.txt"):
        open_checkpoint(tmp_path)
    with pytest.raises(Damaged, match="is no safetensors"):
        open_checkpoint(tmp_path / "notes.txt")
    with pytest.raises(Damaged, match="is empty"):
        (tmp_path / "empty").write_bytes(b"")
        open_checkpoint(tmp_path / "empty")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Damaged, match="no regular file"):
        open_checkpoint(tmp_path / "pipe")


def test_a_folder_with_the_right_names_and_the_wrong_content_is_refused(tmp_path: Path, saved: Saved) -> None:
    folder = made(tmp_path / "x", "Lightning", saved)
    torch.save({"pytorch-lightning_version": "2", "state_dict": 3, "optimizer_states": 4, "lr_schedulers": 5}, folder)
    with pytest.raises(Damaged, match="not laid out as it should be"):
        open_checkpoint(folder)
    empty = Stored.at(torch.float32, (0, 1 << 62, 1 << 62), [])
    with pytest.raises(Damaged, match="without elements"):
        empty.tensor()
