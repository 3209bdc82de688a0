"""The JSON of a result: stable, complete, and written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import typing
from pathlib import Path

import jsonschema
import pytest

import oracle.result
from oracle.errors import OutputError
from oracle.result import Compared, FirstDivergence, Result, ResultError, write_text

TABLES = [kind for kind in vars(oracle.result).values() if dataclasses.is_dataclass(kind)]


@pytest.fixture(scope="module")
def schema(root: Path) -> dict:
    return json.loads((root / "docs/result.schema.json").read_text())


def test_every_sample_fits_the_schema_and_comes_back_equal(samples: dict[str, Result], schema: dict) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    for name, result in samples.items():
        if name != "nan":  # NaN is not equal to itself
            assert Result.from_json(result.to_json()) == result
        jsonschema.validate(json.loads(result.to_json()), schema)


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
def test_the_schema_has_every_field_and_no_other(kind: type, schema: dict, root: Path) -> None:
    fields = {item.name for item in dataclasses.fields(kind)}
    if kind is oracle.result.At:
        assert set(schema["$defs"]["Cause"]["properties"]["at"]["properties"]) == fields
        return
    described = schema["$defs"][kind.__name__]
    assert set(described["properties"]) == fields
    assert set(described["required"]) <= fields
    prose = (root / "docs/result.md").read_text()
    assert [name for name in fields if f"`{name}`" not in prose] == []


def test_verdicts_of_schema_and_code_are_the_same(schema: dict) -> None:
    assert schema["$defs"]["Result"]["properties"]["verdict"]["enum"] == list(typing.get_args(oracle.result.Verdict))


def test_the_schema_refuses_a_field_it_does_not_know(samples: dict[str, Result], schema: dict) -> None:
    plain = samples["match"].to_dict() | {"surprise": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plain, schema)


def test_nan_and_infinities_survive_in_valid_json(samples: dict[str, Result]) -> None:
    place = FirstDivergence(
        update=0,
        micro=0,
        moment="forward",
        kind="loss",
        name="",
        reference=math.nan,
        candidate=-math.inf,
        max_abs=math.inf,
    )
    text = dataclasses.replace(samples["match"], first_divergence=place).to_json()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(text, parse_constant=refuse)
    back = Result.from_json(text).first_divergence
    assert back is not None
    assert math.isnan(back.reference)
    assert (back.candidate, back.max_abs) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "a result of schema 1 was expected, found 2"),
        ({"verdict": "fine"}, "result.verdict: one of match, rounding, .* was expected, found 'fine'"),
        ({"surprise": 1}, "result: unknown: surprise"),
        ({"passed": "yes"}, "result.passed: bool was expected, found 'yes'"),
        ({"compared": {"updates": 1}}, "result.compared: missing: addresses"),
        ({"compared": []}, r"result.compared: a table was expected, found \[\]"),
        ({"causes": [{"knob": "x"}]}, r"result.causes\[0\]: missing: at, candidate"),
    ],
)
def test_what_is_no_result_is_refused_with_the_place(samples: dict[str, Result], change: dict, message: str) -> None:
    with pytest.raises(ResultError, match=message):
        Result.from_dict(samples["match"].to_dict() | change)


@pytest.mark.parametrize("text", ["", "[]", "null", "{"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ResultError, match="was expected, found"):
        Result.from_json(text)


def test_a_field_with_a_default_may_be_absent(samples: dict[str, Result]) -> None:
    plain = samples["match"].to_dict()
    del plain["notes"]
    assert Result.from_dict(plain) == samples["match"]


@pytest.mark.parametrize(
    ("verdict", "passed", "code"),
    [
        ("match", True, 0),
        ("match", False, 1),
        ("rounding", True, 0),
        ("rounding", False, 1),
        ("diverged", False, 1),
        ("diverged", True, 0),
        ("nondeterministic", False, 3),
        ("not_comparable", True, 3),
    ],
)
def test_exit_codes(samples: dict[str, Result], verdict: oracle.result.Verdict, passed: bool, code: int) -> None:
    assert dataclasses.replace(samples["match"], verdict=verdict, passed=passed).exit_code == code


def test_a_written_result_reads_back(samples: dict[str, Result], tmp_path: Path) -> None:
    samples["diverged"].write(tmp_path / "result.json")
    assert Result.read(tmp_path / "result.json") == samples["diverged"]
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_failed_write_leaves_what_stood_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "result.json").write_text("before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"result\.json: No space left on device"):
        write_text(tmp_path / "result.json", "after")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("result.json", "before")]


def test_a_missing_folder_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*no/result.json: No such file or directory"):
        write_text(tmp_path / "no" / "result.json", "")


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through")
    assert os.read(reader, 20) == b"through"
    assert pipe.is_fifo()
    os.close(reader)


def test_a_result_does_not_change(samples: dict[str, Result]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        samples["match"].compared = Compared(updates=0, addresses=0)  # type: ignore[misc]
