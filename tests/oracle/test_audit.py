from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from oracle.audit import ABSENT, Entry, audit
from oracle.cli import main

WHOLE = {
    "model": {"w": torch.ones(2, 3), "b": torch.zeros(3)},
    "optimizer": {
        "state": {place: {"exp_avg": torch.zeros(shape)} for place, shape in ((0, (2, 3)), (1, (3,)))},
        "param_groups": [{"lr": 0.1, "params": [0, 1]}],
    },
    "scheduler": {"last_epoch": 3},
    "rng": {"torch": torch.get_rng_state(), "python": [3, [1], None], "numpy": ["MT19937", [1], 2, 0, 0.0]},
    "sampler": {"order": [1, 0]},
    "cursor": {"batch": 1},
    "step": 3,
}


def entries(path: Path, content: Any) -> dict[str, Entry]:
    torch.save(content, path)
    return {entry.part: entry for entry in audit(path).entries}


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in WHOLE.items() if key not in keys}


def test_a_whole_checkpoint_is_complete(tmp_path: Path) -> None:
    found = entries(tmp_path / "x.pt", WHOLE)
    assert list(found) == list(ABSENT) and not any(entry.lacking for entry in found.values())
    assert audit(tmp_path / "x.pt").exit_code == 0 and audit(tmp_path / "x.pt").safe == "yes"


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("model", "parameter"),
        ("optimizer", "optimizer"),
        ("scheduler", "scheduler"),
        ("rng", "rng"),
        ("sampler", "order"),
        ("cursor", "cursor"),
        ("step", "counter"),
    ],
)
def test_each_part_that_is_absent_is_named_with_what_follows(tmp_path: Path, key: str, part: str) -> None:
    found = entries(tmp_path / "x.pt", without(key))
    assert [name for name, entry in found.items() if entry.lacking] == [part]
    assert found[part].status == "absent" and found[part].says == ABSENT[part]
    assert audit(tmp_path / "x.pt").exit_code == 1


def test_a_generator_that_is_absent_is_named(tmp_path: Path) -> None:
    found = entries(tmp_path / "x.pt", {**WHOLE, "rng": {"torch": torch.get_rng_state()}})
    assert found["rng"].status == "partial" and "Python's random, numpy's" in found["rng"].says


def test_a_parameter_without_optimizer_state_is_named(tmp_path: Path) -> None:
    state = {"state": {0: WHOLE["optimizer"]["state"][0]}, "param_groups": WHOLE["optimizer"]["param_groups"]}
    found = entries(tmp_path / "x.pt", {**WHOLE, "optimizer": state})
    assert found["optimizer"].status == "partial" and "no state for 1 of 2 parameters" in found["optimizer"].says


def test_a_class_that_loading_would_import_is_named(tmp_path: Path) -> None:
    class Local:
        pass

    Local.__qualname__, Local.__module__ = "Path", "pathlib"  # something that pickle finds
    torch.save({**WHOLE, "args": argparse.Namespace(lr=1)}, tmp_path / "plain.pt")
    assert audit(tmp_path / "plain.pt").safe == "yes"
    torch.save({**WHOLE, "args": torch.optim.SGD([torch.ones(1)], lr=1)}, tmp_path / "class.pt")
    found = audit(tmp_path / "class.pt")
    assert found.safe == "imports" and found.foreign == {"class.pt": ("torch.optim.sgd.SGD",)}
    assert "imports and calls" in found.safety[0]


@pytest.mark.parametrize(("loader", "status"), [([], "partial"), ([{"position": 3}], "present")])
def test_lightnings_count_of_batches_is_no_place_in_the_data(tmp_path: Path, loader: list[Any], status: str) -> None:
    content = {
        "pytorch-lightning_version": "2.6.6",
        "state_dict": {"w": torch.ones(2)},
        "loops": {"fit_loop": {"state_dict": {"combined_loader": loader}, "epoch_progress": {"ready": 1}}},
    }
    assert entries(tmp_path / "x.ckpt", content)["cursor"].status == status


class Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, ("never",)


def test_a_payload_is_refused_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({**WHOLE, "x": Payload()}, "x.pt")
    assert main(["audit", "x.pt"]) == 1
    assert capsys.readouterr().out.startswith("REFUSED: loading it would run code")
    assert not Path("never").exists()


def test_a_changed_byte_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(WHOLE, tmp_path / "x.pt")
    content = bytearray((tmp_path / "x.pt").read_bytes())
    place = content.index(torch.ones(6).numpy().tobytes())
    content[place] ^= 1
    (tmp_path / "x.pt").write_bytes(content)
    assert main(["audit", str(tmp_path / "x.pt")]) == 3
    assert "the tensor 'model.w' does not fit" in capsys.readouterr().err


def test_its_json_has_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str], root: Path) -> None:
    torch.save(without("rng"), tmp_path / "x.pt")
    assert main(["audit", str(tmp_path / "x.pt"), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    schema = json.loads((root / "docs/checkpoints.schema.json").read_text())
    jsonschema.validate(content, {**schema, "$ref": "#/$defs/audit"})
    assert [entry["part"] for entry in content["parts"]] == list(ABSENT) and not content["complete"]


@pytest.mark.parametrize(("name", "code"), [("gone.pt", 2), ("notes.txt", 3)])
def test_what_cannot_be_audited_says_why(
    tmp_path: Path, name: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("text")
    assert main(["audit", str(tmp_path / name)]) == code
    assert name in capsys.readouterr().err
