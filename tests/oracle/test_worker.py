"""One run in a process of its own: how a trainer ends is a result, and nothing of ours is in its way."""

from __future__ import annotations

import json
import sqlite3

import pytest

from oracle import processes
from oracle.worker import capture
from reference_loop.moments import Address
from reference_loop.recipe import from_dict, to_dict
from reference_loop.semantics import Semantics

TASK = """
import torch
from reference_loop.task import Task

def data():
    return [{"id": torch.tensor(i), "x": torch.full((2,), float(i))} for i in range(8)]

def loss(model, batch, reduction):
    return getattr(model(batch["x"]).square(), reduction)()

task = Task(name="toy", model=lambda: torch.nn.Linear(2, 1), train_data=data, loss=loss)
"""

TRAINERS = """
import json, sys
import neighbour
import torch

class Loop:
    def train(self, job):
        model = job.model()
        optimizer = job.optimizer(model)
        for number, batch in enumerate(job.loader()):
            job.loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            self.after(number)

    def after(self, number):
        pass

class Raises(Loop):
    def after(self, number):
        if number == 1:
            raise ValueError("step one is cursed")

class Leaves(Loop):
    def after(self, number):
        sys.exit(7)

class Swallows(Loop):
    def after(self, number):
        try:
            raise KeyboardInterrupt
        except Exception:
            pass

class Tells:
    def train(self, job):
        modules = {}
        for name in ("tasks", "job", "worker"):
            try:
                __import__(name)
                modules[name] = True
            except ModuleNotFoundError:
                modules[name] = False
        flags = [torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()]
        print(json.dumps({"path": sys.path, "modules": modules, "flags": flags, "neighbour": neighbour.__name__}))

class BadLoss:
    def train(self, job):
        object.__setattr__(job.task, "loss", lambda model, batch, reduction: torch.ones(3))
        job.loss(job.model(), next(iter(job.loader())))
"""

CASES = {
    "Loop": {"capture": {"moments": [[1, "consume", "gradient"]]}, "budget_bytes": 1 << 20},
    "Again": {"trainer": "Loop"},
    "Cut": {"trainer": "Loop", "cut": 2},
    "Raises": {},
    "Leaves": {},
    "Swallows": {},
    "Tells": {},
    "BadLoss": {},
    "Typo": {"trainer": "Lop"},
}


@pytest.fixture(scope="module")
def endings(tmp_path_factory):
    """How each of the cases ended, and its folder; they run a few at a time."""
    place = tmp_path_factory.mktemp("worker")
    (place / "task.py").write_text(TASK)
    (place / "trainers.py").write_text(TRAINERS)
    (place / "neighbour.py").write_text("")
    recipe = from_dict({"optimizer": {"name": "adamw"}})
    shared = {"task": str(place / "task.py"), "recipe": to_dict(recipe), "semantics": Semantics.of(recipe).flat()}
    found = {}
    names = list(CASES)
    for start in range(0, len(names), 3):
        runs = {}
        for name in names[start : start + 3]:
            case = {"trainer": name, "digest": None, **CASES[name]}
            case["trainer"] = f"{place / 'trainers.py'}:{case['trainer']}"
            runs[name] = processes.start({**shared, **case, "folder": place / name, "workdir": place / name / "work"})
        for name, run in runs.items():
            found[name] = run.wait(60), run.folder
    return found


def rows(folder):
    with sqlite3.connect(folder / "trace.db") as trace:
        query = 'SELECT "update", micro, moment, kind, name, digest FROM trace ORDER BY ordinal'
        return trace.execute(query).fetchall()


def test_a_run_that_ends_leaves_trace_manifest_and_outcome(endings):
    ending, folder = endings["Loop"]
    assert (ending.status, ending.detail, ending.exit_code) == ("completed", "", 0)
    assert (ending.outcome["updates"], ending.outcome["batches"]) == (4, 4)
    assert set(ending.outcome["seconds"]) == {"start", "import", "train"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"] and manifest["trainer"].endswith(":Loop")
    assert manifest["versions"].keys() >= {"python", "torch"}
    assert manifest["flags"]["threads"] == 1 and manifest["flags"]["hash_seed"] == "0"
    assert rows(folder)[-1][2] == "end"
    assert list((folder / "tensors").glob("*.safetensors"))
    assert not list(folder.glob("*.tmp"))


def test_the_same_run_twice_is_equal_bit_for_bit(endings):
    assert rows(endings["Loop"][1]) == rows(endings["Again"][1])


def test_a_cut_ends_after_that_many_updates(endings):
    ending, folder = endings["Cut"]
    assert (ending.status, ending.outcome["interrupted"], ending.outcome["updates"]) == ("completed", True, 2)
    whole = rows(endings["Loop"][1])
    assert [row for row in rows(folder) if row[2] == "update"] == [r for r in whole if r[2] == "update" and r[0] < 2]
    assert "end" not in {row[2] for row in rows(folder)}


def test_an_exception_is_a_result_with_its_traceback(endings):
    ending, folder = endings["Raises"]
    assert (ending.status, ending.detail) == ("raised", "ValueError: step one is cursed")
    assert ending.outcome["updates"] == 2
    assert "in after" in ending.outcome["error"]["traceback"]
    assert "oracle/worker.py" not in ending.outcome["error"]["traceback"]
    assert ending.last_words.endswith("ValueError: step one is cursed")
    assert rows(folder)


def test_an_exit_is_an_exception(endings):
    ending, _ = endings["Leaves"]
    assert (ending.status, ending.detail, ending.exit_code) == ("raised", "SystemExit: 7", 1)


def test_an_interrupt_that_the_trainer_raises_is_an_exception(endings):
    assert endings["Swallows"][0].detail.startswith("KeyboardInterrupt")


def test_our_modules_shadow_nothing_and_neighbours_are_found(endings, root):
    ending, folder = endings["Tells"]
    assert ending.status == "completed"
    told = json.loads((folder / "stdout.txt").read_text())
    assert told["modules"] == {"tasks": False, "job": False, "worker": False}
    assert told["neighbour"] == "neighbour"
    assert str(root / "oracle") not in told["path"] and str(root) not in told["path"]
    assert told["flags"] == [1, True]


def test_a_loss_that_is_no_scalar_is_a_usage_error(endings):
    ending, _ = endings["BadLoss"]
    assert ending.status == "usage"
    assert "task 'toy': loss must return a scalar tensor, found shape (3,)" in ending.detail


def test_an_unknown_class_names_the_near_one(endings):
    ending, _ = endings["Typo"]
    assert ending.status == "usage"
    assert "has no class 'Lop': did you mean 'Loop'? known: BadLoss, Leaves, Loop" in ending.detail


def test_capture_takes_a_kind_or_every_kind():
    gradient = Address(1, -1, "consume", "gradient", "w")
    assert capture(None) is None
    assert capture("all")(gradient)
    wanted = capture({"moments": [[1, "consume", "gradient"], [2, "update", None]]})
    assert wanted(gradient)
    assert not wanted(gradient._replace(kind="learning_rate"))
    assert wanted(Address(2, -1, "update", "buffer", "b"))
    assert not wanted(gradient._replace(update=0))
