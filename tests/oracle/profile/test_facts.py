"""What a recorded run shows, and what a trainer changes in a model's config."""

from __future__ import annotations

from pathlib import Path

import torch

from diffs.digest import available
from diffs.trace import open_trace
from oracle.job import Job
from oracle.profile.facts import Facts, facts
from oracle.recorder.trace import TraceWriter
from reference_loop.moments import Address
from reference_loop.recipe import Recipe
from reference_loop.task import Task


def recorded(folder: Path, rows, **manifest):
    writer = TraceWriter(str(folder), 0, available()[0])
    for address, value in rows:
        writer.put(Address(*address), value)
    writer.commit()
    writer.close({"flags": {"threads": 1}, "flags_before": {"threads": 1}, **manifest})
    return facts(open_trace(folder))


def micro(update, micro, ids):
    yield (update, micro, "batch", "batch_ids", "id"), ids
    yield (update, micro, "backward", "objective", ""), torch.tensor(1.0)


def test_sizes_are_those_of_batches_that_a_backward_followed(tmp_path):
    rows = [
        ((0, 0, "batch", "batch_ids", "id"), [0, 1, 2, 3]),  # a first try, for which there was no memory
        ((0, 0, "batch", "batch_ids", "id#2"), [0, 1]),
        ((0, 0, "backward", "objective", ""), torch.tensor(1.0)),
        *micro(0, 1, [2, 3]),
        *micro(1, 0, [4]),
    ]
    found = recorded(tmp_path, rows, devices=["cpu"])
    assert (found.batch_size, found.accumulation, found.devices, found.settings) == (2, 2, ("cpu",), {})


def test_settings_that_the_trainer_changed_are_shown(tmp_path):
    found = recorded(
        tmp_path,
        micro(0, 0, [0]),
        flags={"threads": 2, "hash_seed": None},
        flags_before={"threads": 1, "hash_seed": None},
        reconfigured={"use_cache": [True, False]},
    )
    assert found.settings == {"threads": ("1", "2"), "model.config.use_cache": ("true", "false")}


def test_a_run_without_training_shows_nothing(tmp_path):
    found = recorded(tmp_path, [((-1, -1, "start", "parameter", "w"), torch.zeros(1))])
    assert found == Facts()


class Config:
    def __init__(self):
        self.use_cache, self.width, self.parts = True, 8, [1]


def build():
    model = torch.nn.Linear(1, 1)
    model.config = Config()
    return model


def test_a_job_knows_what_was_changed_in_the_model_s_config(tmp_path):
    task = Task(name="t", model=build, train_data=lambda: [{"x": torch.zeros(1)}], loss=lambda *_: None)
    job = Job(task, Recipe(), workdir=tmp_path)
    assert job.reconfigured == {}
    model = job.model()
    assert job.reconfigured == {}
    model.config.use_cache = False
    model.config.parts = [2]  # no plain value
    assert job.reconfigured == {"use_cache": [True, False]}
