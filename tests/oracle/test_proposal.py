"""`oracle init`: what a recording says becomes the recipe, what it does not say is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from oracle import proposal, recording
from oracle.cli import main
from oracle.errors import OracleError
from oracle.proposal import _schedule, propose, to_fill_in, write
from oracle.recorder.session import Options
from oracle.tasks import load_task
from reference_loop.recipe import load
from reference_loop.schedules import factor

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, betas=(0.8, 0.99), weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: t / 2 if t < 2 else 1 - (t - 2) / 4)
data = torch.randn(8, 4)
for epoch in range(3):
    for number in range(4):
        x = data[2 * number : 2 * number + 2]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean() / 2
        loss.backward()
        if number % 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("proposal")
    (place / "script.py").write_text(SCRIPT)
    command = (sys.executable, str(place / "script.py"))
    recording.record(command, Options(folder=str(place / "recording"), command=command))
    return place


def test_a_recipe_is_what_was_recorded(folder: Path, tmp_path: Path) -> None:
    found = propose(folder / "recording")
    assert found.unknown == ()
    task, file = write(found, tmp_path)
    recipe = load(file, [])
    assert (recipe.epochs, recipe.batch_size, recipe.accumulation, recipe.shuffle) == (3, 2, 2, False)
    assert recipe.optimizer.name == "adamw" and recipe.optimizer.lr == pytest.approx(0.02)
    assert recipe.optimizer.arguments() == {"lr": 0.02, "betas": (0.8, 0.99), "weight_decay": 0}
    assert (recipe.schedule.name, recipe.schedule.warmup) == ("linear", 2)  # type: ignore[union-attr]
    assert recipe.clip.max_norm == 0.5 and recipe.precision.dtype == "bfloat16"  # type: ignore[union-attr]
    lines = dict(to_fill_in(task))
    assert len(lines) == 3 and "input [4] float32" in "".join(lines.values())
    loaded = load_task(str(task))
    for number, function in zip(lines, (loaded.model, loaded.train_data), strict=False):
        with pytest.raises(LookupError, match=lines[number][:20]):
            function()
    assert "0.weight  [3, 4]  float32" in task.read_text()


def test_what_a_recipe_cannot_say_is_named(folder: Path, tmp_path: Path) -> None:
    other = SCRIPT.replace(
        "AdamW(model.parameters(), lr=0.02, betas=(0.8, 0.99), weight_decay=0.0)",
        "Adagrad(model.parameters(), lr=0.02)",
    ).replace("data[2 * number", "torch.randn(8, 4)[2 * number")
    other = other.replace("1 - (t - 2) / 4", "0.9 ** t")
    (tmp_path / "other.py").write_text(other)
    command = (sys.executable, str(tmp_path / "other.py"))
    recording.record(command, Options(folder=str(tmp_path / "recording"), command=command))
    told = " ".join(propose(tmp_path / "recording").unknown)
    assert "shuffle, epochs" in told and "the script Adagrad" in told and "no schedule of a recipe" in told


def test_the_command_writes_both_files_once(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["init", "-o", str(tmp_path / "new"), str(folder / "recording")]
    assert main(asked) == 0
    told = capsys.readouterr().out
    assert f"{tmp_path}/new/task.py: to fill in" in told and "line " in told
    assert {file.name for file in (tmp_path / "new").iterdir()} == {proposal.TASK, proposal.RECIPE}
    assert main(asked) == 2 and "there already" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "warmup"), [("linear", 0), ("linear", 3), ("cosine", 2), ("constant", 2)])
def test_schedules_are_read_from_rates(name: str, warmup: int) -> None:
    rates = [0.3 * factor(name, warmup, t, 10) for t in range(10)]
    schedule, lr = _schedule(rates)
    assert schedule == {"name": name, **({"warmup": warmup} if warmup else {})} and lr == pytest.approx(0.3)
    assert _schedule([0.1] * 4) == (None, 0.1)
    assert _schedule([0.1, 0.2, 0.1]) == (None, None)


def test_a_recording_without_an_update_is_refused(tmp_path: Path, root: Path) -> None:
    command = (sys.executable, str(root / "tests/scripts/unstepped.py"), str(tmp_path / "s.pt"))
    recording.record(command, Options(folder=str(tmp_path / "recording"), command=command))
    with pytest.raises(OracleError, match="no update"):
        propose(tmp_path / "recording")
