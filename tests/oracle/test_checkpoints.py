from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import save_file

from oracle.cli import main


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a checkpoint, one with an element of it two ULP away, and one with another counter."""
    monkeypatch.chdir(tmp_path)
    weight = torch.ones(4, 3)
    torch.save({"model": {"w": weight}, "step": 3}, "a.pt")
    torch.save({"model": {"w": weight}, "step": 4}, "counter.pt")
    other = weight.clone()
    other.view(torch.int32)[2, 1] += 2
    torch.save({"model": {"w": other}, "step": 3}, "ulp.pt")
    save_file({"w": weight}, "a.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["a.pt", "a.pt"], 0),
        (["a.pt", "a.safetensors"], 0),
        (["a.pt", "ulp.pt"], 1),
        (["a.pt", "ulp.pt", "--policy", "ulp:2"], 0),
        (["a.pt", "ulp.pt", "--policy", "ulp:1"], 1),
        (["a.pt", "counter.pt", "--policy", "ulp:9"], 1),
        (["a.pt", "ulp.pt", "--policy", "none"], 2),
        (["a.pt", "gone.pt"], 2),
        (["a.pt", "cut.pt"], 3),
        (["a.pt", "payload.pt"], 3),
    ],
)
def test_exit_codes(files: Path, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "cut.pt").write_bytes((files / "a.pt").read_bytes()[:300])
    torch.save({"a": Payload()}, files / "payload.pt")
    assert main(["diff", *arguments]) == code
    assert not (files / "never").exists()


class Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, ("never",)


def test_the_report_names_the_tensor_its_worst_element_and_what_it_means(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "a.pt", "ulp.pt"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "DIFFERS in parameters: 1 tensor; first: w (differs)"
    assert "parameters: 1 differs; training goes on from other weights" in lines
    assert "    differs    1 of 12 elements (8.33 %), worst 2 ULP at (2, 1), relative L2 6.9e-08" in lines
    assert "    candidate  1.0000002" in lines and "counters: plain state identical" in lines


def test_a_long_report_is_shortened_and_says_how_to_see_all(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, add in (("x.pt", 0), ("y.pt", 1)):
        torch.save({f"t{number}": torch.ones(2) + add for number in range(9)}, name)
    main(["diff", "x.pt", "y.pt"])
    assert "  ... 5 more tensors: --all shows all" in capsys.readouterr().out
    main(["diff", "x.pt", "y.pt", "--all"])
    assert "t8" in capsys.readouterr().out


def test_the_json_agrees_with_its_schema(files: Path, capsys: pytest.CaptureFixture[str], root: Path) -> None:
    assert main(["diff", "a.pt", "ulp.pt", "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    schema = json.loads((root / "docs/checkpoints.schema.json").read_text())
    jsonschema.validate(content, {**schema, "$ref": "#/$defs/diff"})
    (outcome,) = content["parts"][0]["outcomes"]
    assert content["verdict"] == "diverged" and outcome["elements"]["worst"] == {
        "index": [2, 1], "reference": 1.0, "candidate": 1.0000002384185791, "ulp": 2,
    }  # fmt: skip


def test_a_hostile_name_reaches_no_terminal(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a\x1b[31m": torch.ones(1)}, "x.pt")
    assert main(["diff", "x.pt", "a.pt"]) == 3
    assert capsys.readouterr().err.rstrip("\n").isprintable()


def test_trust_runs_what_was_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": {"w": torch.ones(4, 3)}, "step": 3, "x": Payload()}, "payload.pt")
    assert main(["diff", "a.pt", "payload.pt"]) == 3
    assert "--trust" in capsys.readouterr().err
    main(["diff", "a.pt", "payload.pt", "--trust"])
    assert (files / "never").exists()


def test_a_checkpoint_and_a_recording_are_not_compared(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "run").mkdir()
    (files / "run/trace.db").write_bytes(b"")
    assert main(["diff", "a.pt", "run"]) == 3
    assert "a.pt is a checkpoint, run is a recording: compare two of one kind" in capsys.readouterr().err


def test_plain_state_alone_is_compared_and_says_so(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate in (("one.pt", 0.1), ("same.pt", 0.1), ("other.pt", 0.2)):
        torch.save({"lr": rate}, name)
    assert main(["diff", "one.pt", "same.pt"]) == 0
    assert capsys.readouterr().out.startswith("MATCH: all plain state; neither holds a tensor\n")
    assert main(["diff", "one.pt", "other.pt"]) == 1
    assert capsys.readouterr().out.startswith("DIFFERS in other: 1 value; first: lr\n")


@pytest.mark.parametrize(("other", "code"), [("a.pt", 0), ("ulp.pt", 1), ("cut.pt", 3)])
def test_a_reader_who_leaves_changes_no_exit_code(files: Path, other: str, code: int, root: Path) -> None:
    (files / "cut.pt").write_bytes((files / "a.pt").read_bytes()[:300])
    line = [sys.executable, "-c", "import sys; from oracle.cli import main; sys.exit(main())", "diff", "a.pt", other]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == code and (code == 3) == bool(said)
