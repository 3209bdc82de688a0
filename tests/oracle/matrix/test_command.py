"""The matrix goes on where it was, comes to the same on Ray, and names what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oracle import environment
from oracle.cli import frame
from oracle.errors import EnvironmentRefused
from oracle.matrix.__main__ import chosen, matrix
from oracle.matrix.recipes import VARIANTS
from oracle.releases import RELEASES
from oracle.tasks import list_tasks

SLICE = (
    "--trainer", "accelerate", "--trainer", "skorch", "--task", "decoder", "--task", "regression",
    "--recipe", "own", "--recipe", "clip",
)  # fmt: skip


def run(*words: str) -> int:
    return frame.main(words, matrix, "matrix")


def test_every_release_meets_every_task_and_recipe() -> None:
    cells = chosen()
    assert len(cells) == len(set(cells)) == len(RELEASES) * len(list_tasks()) * len(VARIANTS)
    assert len(chosen(["transformers 5.24.0"], ["tokens"], ["own", "clip"])) == 2
    assert {one.requirements for one in chosen(["transformers"])} == {
        r for name, r in RELEASES if name == "transformers"
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trainer", "kerras"], "did you mean 'keras'"),
        (["--task", "token"], "did you mean 'tokens'"),
        (["--recipe", "clips"], "did you mean 'clip'"),
    ],
)
def test_an_unknown_name_is_refused(words: list[str], said: str, tmp_path: Path, capsys) -> None:
    assert run(str(tmp_path / "page"), "--kept", str(tmp_path / "kept"), *words) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_that_cannot_be_installed_is_said_loudly(tmp_path: Path, capsys, monkeypatch) -> None:
    def refuse(requirements, **options):
        raise EnvironmentRefused("pip cannot build the layer")

    monkeypatch.setattr(environment, "prepare", refuse)
    words = ["--trainer", "keras", "--task", "tokens", "--recipe", "own"]
    assert run(str(tmp_path), "--kept", str(tmp_path / "kept"), *words) == 0
    assert "ABSENT keras 3.15.1: pip cannot build the layer" in capsys.readouterr().out
    assert "| keras 3.15.1 | `own` | **absent** |" in (tmp_path / "matrix.md").read_text()
    assert list((tmp_path / "kept").iterdir()) == []  # the next run tries again


@pytest.mark.trainers
def test_a_slice_goes_on_where_it_was_and_names_what_is_wrong(tmp_path: Path, capsys) -> None:
    page, kept = tmp_path / "page", tmp_path / "kept"
    assert run(str(page), "--kept", str(kept), *SLICE) == 0
    first = (page / "matrix.md").read_text()
    assert "8 cells, 8 to be run" in capsys.readouterr().out
    assert "| accelerate | `own` | match | match |" in first
    assert "| skorch 1.4.0 | `clip` | explained: `clip.moment = off` | explained: `clip.moment = off` |" in first
    assert "| skorch 1.4.0 | `own` | explained: `clip.moment = off or " in first

    assert run(str(page), "--kept", str(kept), *SLICE) == 0
    assert "8 cells, 0 to be run" in capsys.readouterr().out
    assert (page / "matrix.md").read_text() == first

    gone, stale, *_ = sorted(kept.iterdir())
    gone.unlink()
    stale.write_text(json.dumps({**json.loads(stale.read_text()), "key": "of another version"}))
    assert run(str(page), "--kept", str(kept), *SLICE) == 0
    assert "8 cells, 2 to be run" in capsys.readouterr().out
    assert (page / "matrix.md").read_text() == first


@pytest.mark.trainers
def test_a_slice_comes_to_the_same_on_ray(tmp_path: Path, root: Path) -> None:
    try:
        layer = environment.prepare(["ray==2.60.0"]).layer
    except EnvironmentRefused as error:
        pytest.skip(f"ray is not installed: {error}")
    words = ["--trainer", "accelerate", "--task", "decoder", "--task", "ragged_tail", "--recipe", "own"]
    assert run(str(tmp_path / "here"), "--kept", str(tmp_path / "kept"), *words) == 0
    path = os.pathsep.join(filter(None, [str(layer or ""), str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "oracle.matrix", str(tmp_path / "ray"), "--kept", str(tmp_path / "on_ray"), *words]
    done = subprocess.run(
        [*command, "--cluster", "ray"], cwd=root, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 cells, 2 to be run" in done.stdout
    assert (tmp_path / "ray" / "matrix.md").read_text() == (tmp_path / "here" / "matrix.md").read_text()
