"""Upgrades: what changes between two versions, and where along a row of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diffs.verdict import Policy
from oracle.bisection import changes
from oracle.cli import main
from oracle.environment import Environment
from oracle.report.upgrades import upgrade_lines
from oracle.result import At, Cause, Compared, Result, Site, Unexplained
from oracle.upgrade import Side, Step, Upgrade, _changes, of_script, worst

RESULT = Result(
    command="check", verdict="match", policy="noise", passed=True, reference={}, candidate={},
    compared=Compared(updates=4, addresses=10), rerun="",
)  # fmt: skip


def cause(knob: str, value: str, status: str = "confirmed", effect: str = "semantic") -> Cause:
    return Cause(
        knob=knob, reference="textbook", candidate=value, status=status, effect=effect,  # type: ignore[arg-type]
        at=At(update=1, moment="consume"),
    )  # fmt: skip


def side(name: str, *causes: Cause) -> Side:
    verdict = "diverged" if causes else "match"
    return Side(requirements=(name,), result=replace(RESULT, causes=causes, verdict=verdict))  # type: ignore[arg-type]


def test_a_decision_that_comes_goes_or_changes() -> None:
    old, new = side("a", cause("x", "one"), cause("y", "same")), side("b", cause("x", "two"), cause("y", "same"))
    assert [(c.knob, c.old, c.new, c.confirmed) for c in _changes(old, new)] == [("x", "one", "two", True)]
    assert [(c.old, c.new) for c in _changes(side("a"), new)] == [("textbook", "two"), ("textbook", "same")]
    gone = list(_changes(old, side("b", cause("y", "same", status="suggested"))))
    assert [(c.knob, c.old, c.new, c.confirmed) for c in gone] == [("x", "one", "textbook", True)]
    assert list(_changes(old, old)) == []


def test_a_side_with_what_no_knob_explains_is_not_understood() -> None:
    known = side("a", cause("x", "one"))
    site = Site(update=0, micro=-1, moment="consume", kind="gradient", name="w", rank=0)
    assert known.understood
    assert not replace(known, result=replace(known.result, unexplained=(Unexplained(site=site),))).understood
    assert not replace(known, result=replace(known.result, verdict="not_comparable")).understood


def schema(root: Path) -> dict[str, Any]:
    return json.loads((root / "docs/recordings.schema.json").read_text())


def test_the_report_names_what_changes(root: Path) -> None:
    old, new = side("p==1"), side("p==2", cause("x", "one"))
    step = Step(reference="p==1", candidate="p==2", verdict="diverged", changes=tuple(_changes(old, new)))
    found = Upgrade(sides=(old, new), steps=(step,), policy="noise", passed=False, between=("p==1.5",))
    text = list(upgrade_lines(found))
    assert text[:2] == ["p==1 -> p==2: training changes", "  x: textbook -> one, semantic"]
    assert "not run, because nothing changes around them: p==1.5" in text
    jsonschema.validate(json.loads(json.dumps(found.to_dict())), schema(root))
    assert (
        found.verdict == "diverged" and json.loads(json.dumps(found.to_dict()))["steps"][0]["changes"][0]["knob"] == "x"
    )


def test_a_script_under_versions_of_which_one_fails(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Environment(python=sys.executable, layer=None, holds={}, versions={"xxhash": "1"}, seconds=0)
    monkeypatch.setattr("oracle.upgrade.environment.prepare", lambda *asked, **how: here)
    source = (root / "tests/scripts/plain.py").read_text()
    count = tmp_path / "count"
    fails = f"import pathlib\ncount = pathlib.Path({str(count)!r})\ncount.write_text(str(int(count.read_text()) + 1))\n"
    death = "            optimizer.step()\n            assert count.read_text() != '3'\n"
    (tmp_path / "s.py").write_text(fails + source.replace("            optimizer.step()\n", death))
    count.write_text("0")
    content, printed = of_script(
        [sys.executable, str(tmp_path / "s.py"), str(tmp_path / "s.pt")], [("a==1",), ("a==2",), ("a==3",)], (), None,
        Policy.parse("exact"), lambda words: None,
    )  # fmt: skip
    assert [step["verdict"] for step in content["steps"]] == ["match", "not_comparable"]
    assert content["steps"][1]["reason"] == "a==3: the command ended with exit code 1"
    assert printed[-1] == "  NOT COMPARABLE: a==3: the command ended with exit code 1"
    jsonschema.validate(json.loads(json.dumps(content)), schema(root))


def test_the_worst_of_a_chain() -> None:
    assert worst(["match", "rounding", "match"]) == "rounding"
    assert worst(["diverged", "not_comparable"]) == "not_comparable"
    assert worst([]) == "not_comparable"


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("aaaabbbbbbba", [4, 11]),
        ("aaaaaaaaaaab", [11]),
        ("abbbbbbbbbbb", [1]),
        ("aaaaaaaa", []),
        ("ab", [1]),
        ("abc", [1, 2]),
    ],
)
def test_bisection(row: str, found: list[int]) -> None:
    looked: list[int] = []

    def look(position: int) -> str:
        looked.append(position)
        return row[position]

    assert changes(len(row), look) == found
    assert len(looked) == len(set(looked)) <= len(row)


def test_a_long_row_is_not_looked_at_whole() -> None:
    looked: list[int] = []
    row = "a" * 37 + "b" * 27
    assert changes(len(row), lambda position: (looked.append(position), row[position])[1]) == [37]
    assert len(looked) <= 16


def test_a_policy_that_has_no_meaning_here_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["upgrade", "regression", "--trainer", "transformers", "--reference", "a==1", "--candidate", "a==2"]
    assert main([*command, "--policy", "ulp:3"]) == 2
    assert "noise or exact" in capsys.readouterr().err


@pytest.mark.trainers
@pytest.mark.timeout(900)
def test_the_last_window_s_divisor_between_two_versions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "oracle", "upgrade", "ragged_tail", "--trainer", "transformers"]
    versions = ["--reference", "transformers==4.54.0", "--candidate", "transformers==4.57.6"]
    done = subprocess.run([*command, *versions, "--json", str(tmp_path / "u.json")], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    (step,) = json.loads((tmp_path / "u.json").read_text())["steps"]
    assert step["verdict"] == "diverged"
    assert [(c["knob"], c["old"], c["new"], c["confirmed"]) for c in step["changes"]] == [
        ("accumulation.tail_divisor", "configured", "actual", True)
    ]
