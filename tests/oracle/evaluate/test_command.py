"""`oracle evaluate` and `oracle archive` as commands: what they refuse, before anything is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.cli import main
from oracle.cli.evaluations import _folder
from oracle.diff import kind_of
from oracle.evaluate import archive


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer", "accelerat", "--scenario", "research"], "did you mean 'accelerate'"),
        (["--trainer", "accelerate", "--scenario", "reserch"], "did you mean 'research'"),
        (["--trainer", "accelerate", "--scenario", "research", "--dimensions", "speed"], "no dimension 'speed'"),
        (["--trainer", "accelerate", "--scenario", "research", "--observations", "gone.toml"], "gone.toml"),
        (["--trainer", "accelerate", "--trainer", "accelerate", "--scenario", "research", "--archive", "a.zip"],
         "one --trainer"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_each_of_several_trainers_has_a_folder() -> None:
    output = Path("record")
    assert _folder(output, "accelerate", 1) == output
    assert _folder(output, "some/file.py:InHouse", 2) == output / "file-InHouse"


def test_what_is_no_archive_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archive", "verify", str(tmp_path)]) == 2
    assert "is no archive" in capsys.readouterr().err


def test_diff_knows_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / archive.EVALUATION).write_text('{"evaluation": 1}')
    assert kind_of(tmp_path).name == "evaluation"
    assert kind_of(tmp_path / archive.EVALUATION).name == "evaluation"
