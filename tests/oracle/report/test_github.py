"""In a job of GitHub Actions a result is announced, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.report import github
from oracle.result import Result


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's summary, in a job whose checkout is `tmp_path`."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path / "summary.md"


def test_what_fails_is_annotated_and_summarised(
    samples: dict[str, Result], summary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    github.announce(samples["golden_code"])
    said = capsys.readouterr()
    assert said.out == ""  # which may be JSON
    (line,) = said.err.splitlines()
    assert line.startswith("::error file=goldens/tail.golden.json,title=oracle golden%3A DIVERGED from goldens/tail")
    assert "update 1%2C consume%3A gradients%3A the code moved::DIVERGED from" in line
    assert "%0AChanged decisions:%0A  accumulation.tail_divisor: actual -> configured, semantic%0A" in line
    assert summary.read_text().startswith("### DIVERGED from goldens/tail.golden.json at update 1")


def test_what_passes_is_only_summarised(
    samples: dict[str, Result], summary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    github.announce(samples["match"])
    github.announce(samples["rounding"])
    assert capsys.readouterr().err == ""
    assert summary.read_text().count("### ") == 2


@pytest.mark.parametrize("value", [None, "false", ""])
def test_elsewhere_nothing_is_said(
    samples: dict[str, Result], summary: Path, monkeypatch: pytest.MonkeyPatch, capsys, value: str | None
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS")
    if value is not None:
        monkeypatch.setenv("GITHUB_ACTIONS", value)
    github.announce(samples["diverged"])
    assert capsys.readouterr().err == "" and not summary.exists()


def test_a_summary_that_cannot_be_written_changes_nothing(
    samples: dict[str, Result], summary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary / "no" / "folder"))
    github.announce(samples["match"])
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    github.announce(samples["match"])
    assert list(summary.parent.iterdir()) == []


def test_a_file_of_the_checkout_is_named_below_it_and_every_mark_is_escaped(summary: Path) -> None:
    file = str(summary.parent / "src" / "a,b.py")
    assert github.annotation("a: b", "50%\r\nof it", file=file, line=3) == (
        "::error file=src/a%2Cb.py,line=3,title=a%3A b::50%25%0D%0Aof it"
    )
    assert github.annotation("t", "m", file="/elsewhere/a.py") == "::error file=/elsewhere/a.py,title=t::m"
    assert github.annotation("t", "m") == "::error title=t::m"
