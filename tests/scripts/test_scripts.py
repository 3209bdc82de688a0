"""This folder's scripts, recorded as they are: undisturbed, repeatable; a changed line is found in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from diffs.trace import open_trace
from diffs.verdict import Policy
from oracle import environment, recording
from oracle.diff import Request, diff
from oracle.recorder.session import Options

HERE = Path(__file__).parent
slow, trainers = pytest.mark.slow, pytest.mark.trainers
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


@dataclass(frozen=True)
class Case:
    """A script. words: its arguments after the output. before: what of the interpreter's comes before it."""

    script: str
    words: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()

    def command(self, script: Path, output: Path) -> tuple[str, ...]:
        """The command that runs it, or an edited copy of it."""
        return (sys.executable, *self.before, str(script), str(output), *self.words)


CASES = {
    "plain": Case("plain"),
    "gan": Case("gan"),
    "lbfgs": Case("lbfgs"),
    "compiled, eager": Case("compiled", ("eager",)),
    "compiled, aot_eager": Case("compiled", ("aot_eager",)),
    "compiled, inductor": Case("compiled", ("inductor",)),
    "checkpointing": Case("checkpointing", ("non-reentrant",)),
    "checkpointing, reentrant": Case("checkpointing", ("reentrant",)),
    "frozen": Case("frozen"),
    "scaled": Case("scaled"),
    "unstepped": Case("unstepped"),
    "accelerated": Case("accelerated"),
    "torchrun": Case("ranks", before=TORCHRUN),
    "torchrun, sharded": Case("sharded", before=TORCHRUN),
    "transformers 4.54.0": Case("with_transformers", requirements=("transformers==4.54.0",)),
    "transformers 5": Case("with_transformers", requirements=("transformers==5.24.0",)),
}
QUICK = {"plain", "gan"}


def marked(name: str, *values: Any) -> Any:
    """A parameter set that runs where its script belongs."""
    marks = [trainers] if CASES[name].requirements else [] if name in QUICK else [slow]
    return pytest.param(name, *values, marks=marks)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders with the recordings made so far, by case: several tests compare with one."""
    return {}


def recorded(case: Case, script: Path, folder: Path) -> recording.Recording:
    """Record a script into `folder`/trace; its final state goes to `folder`/state.pt."""
    folder.mkdir(parents=True, exist_ok=True)
    command = case.command(script, folder / "state.pt")
    where = environment.prepare(case.requirements) if case.requirements else None
    found = recording.record(command, Options(folder=str(folder / "trace"), command=command), where)
    assert found.exit_code == 0
    return found


def original(name: str, originals: dict[str, Path], factory: pytest.TempPathFactory) -> Path:
    """The recording of a case, made when it is first asked for."""
    if name not in originals:
        originals[name] = factory.mktemp("original")
        recorded(CASES[name], HERE / f"{CASES[name].script}.py", originals[name])
    return originals[name]


def compared(reference: Path, candidate: Path) -> dict[str, Any]:
    """What `oracle diff` says of two recordings."""
    request = Request(reference=reference / "trace", candidate=candidate / "trace", policy=Policy.parse("exact"))
    return diff(request).content


def tensors(state: Any, name: str = "") -> dict[str, torch.Tensor]:
    """The tensors of nested dicts by their path."""
    if isinstance(state, torch.Tensor):
        return {name: state}
    return {path: tensor for key, part in state.items() for path, tensor in tensors(part, f"{name}.{key}").items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_a_recorded_script_is_undisturbed_and_repeats_itself(
    name: str, originals: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = CASES[name]
    first = original(name, originals, tmp_path_factory)
    where = environment.prepare(case.requirements) if case.requirements else None
    variables = {} if where is None or where.layer is None else {"PYTHONPATH": str(where.layer)}
    script = HERE / f"{case.script}.py"
    done = subprocess.run(
        case.command(script, tmp_path / "alone.pt"), env={**os.environ, **variables},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    alone, ours = (tensors(torch.load(file)) for file in (tmp_path / "alone.pt", first / "state.pt"))
    assert alone.keys() == ours.keys() and all(torch.equal(alone[one], ours[one]) for one in alone)
    recorded(case, script, tmp_path)
    content = compared(first, tmp_path)
    assert content["verdict"] == "match", content["first_divergence"]
    assert content["compared"]["addresses"] > 30


EDITS = [
    ("plain", "lr=0.01", "lr=0.02", (0, -1, "consume", "learning_rate")),
    ("gan", "torch.zeros(4, 1)", "torch.full((4, 1), 0.1)", (0, 0, "backward", "objective")),
    ("gan", "lr=0.002", "lr=0.003", (1, -1, "consume", "learning_rate")),
    ("gan", "    of_critic.zero", "    start == 8 or of_critic.zero", (4, 0, "backward", "gradient")),
    ("lbfgs", "lr=0.5", "lr=0.25", (0, -1, "consume", "learning_rate")),
    ("lbfgs", "weight_decay = 0.0", "weight_decay = 0.1", (0, 0, "backward", "objective")),
    ("lbfgs", "lr=0.5, max_iter=4)\nweight_decay = 0.0", "lr=0.1, max_iter=4)\nweight_decay = 0.1",
     (0, 0, "backward", "objective")),
    ("lbfgs", "torch.randn(16, 1)\noptimizer = torch.optim.LBFGS(model.parameters(), lr=0.5",
     "torch.randn(16, 1)\nx += 1\noptimizer = torch.optim.LBFGS(model.parameters(), lr=0.1", (0, 0, "batch", "input")),
    ("lbfgs", "    optimizer.zero_grad()", "    pass", (0, 1, "backward", "gradient")),
    ("lbfgs", "max_iter=4", "max_iter=3", (-1, -1, "start", "hyperparameter")),
    ("compiled, eager", "momentum=0.9", "momentum=0.8", (-1, -1, "start", "hyperparameter")),
    ("compiled, inductor", "torch.nn.GELU()", "torch.nn.SiLU()", (0, 0, "backward", "objective")),
    ("checkpointing", "Dropout(0.2)", "Dropout(0.1)", (0, 0, "backward", "objective")),
    ("checkpointing, reentrant", "=reentrant)", "=True, preserve_rng_state=False)", (0, 0, "backward", "gradient")),
    ("frozen", "number == 3", "number == 4", (2, -1, "schedule", "learning_rate")),
    ("frozen", '"lr": 0.05', '"lr": 0.02', (2, -1, "schedule", "learning_rate")),
    ("scaled", "growth_interval=2", "growth_interval=3", (1, -1, "update", "scaler")),
    ("scaled", "    scaler.unscale_(optimizer)\n", "", (0, -1, "consume", "gradient")),
    ("unstepped", "x.sum(1", "x.mean(1", (0, 0, "backward", "objective")),
    ("accelerated", "backward(loss)", "backward(loss * 2)", (0, 0, "backward", "objective")),
    ("accelerated", "total_iters=6", "total_iters=5", (0, -1, "schedule", "learning_rate")),
    ("torchrun", "set_epoch(epoch)", "set_epoch(0)", (4, 0, "batch", "input")),
    ("torchrun", "mse_loss(model(x), y)", "mse_loss((1 + rank) * model(x), y)", (0, 0, "backward", "objective")),
    ("transformers 4.54.0", "max_grad_norm=1.0", "max_grad_norm=0.1", (-1, -1, "start", "hyperparameter")),
    ("transformers 4.54.0", "Dropout(0.1)", "Dropout(0.2)", (0, 0, "forward", "loss")),
]  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "old", "new", "at"), [marked(*edit) for edit in EDITS])
def test_a_changed_line_is_found_in_its_place(
    name: str, old: str, new: str, at: tuple[int, int, str, str], originals: dict[str, Path], tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    source = (HERE / f"{CASES[name].script}.py").read_text()
    assert source.count(old) == 1
    (tmp_path / "edited.py").write_text(source.replace(old, new))
    recorded(CASES[name], tmp_path / "edited.py", tmp_path)
    content = compared(original(name, originals, tmp_path_factory), tmp_path)
    assert content["verdict"] == "diverged"
    site = content["site"]
    assert (site["update"], site["micro"], site["moment"], site["kind"]) == at
    assert site["rank"] == (1 if "rank)" in new else 0)


@slow
def test_workers_of_a_loader_change_nothing(originals: dict[str, Path], tmp_path: Path,
                                            tmp_path_factory: pytest.TempPathFactory) -> None:  # fmt: skip
    first = original("plain", originals, tmp_path_factory)
    source = (HERE / "plain.py").read_text()
    for number, more in enumerate((", num_workers=2", ", num_workers=2, persistent_workers=True")):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "edited.py").write_text(source.replace("shuffle=True", f"shuffle=True{more}"))
        recorded(CASES["plain"], place / "edited.py", place)
        content = compared(first, place)
        assert [path.name for path in (place / "trace").glob("trace*")] == ["trace.db"]
        if number == 0:
            assert content["verdict"] == "match"
        else:  # one iterator serves both epochs, which draws one seed for its workers and not two
            assert content["first_divergence"]["update"] == 3


@slow
def test_compiled_models_are_recorded_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "oracle", "record", "-o", str(tmp_path / "trace"), "--",
         *CASES["compiled, eager"].command(HERE / "compiled.py", tmp_path / "state.pt")],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr


@slow
def test_parameters_keep_their_names(originals: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("compiled, eager", "checkpointing, reentrant"):
        folder = original(name, originals, tmp_path_factory)
        with open_trace(folder / "trace") as trace:
            seen = {row.address.name for row in trace.rows_at(("update", "parameter"))}
        assert seen == set(torch.load(folder / "state.pt"))


@slow
def test_several_ranks_are_compared_by_rank(originals: dict[str, Path],
                                            tmp_path_factory: pytest.TempPathFactory) -> None:  # fmt: skip
    folder = original("torchrun", originals, tmp_path_factory)
    content = compared(folder, folder)
    assert content["ranks"] == [0, 1] and content["verdict"] == "match"
