"""Jobs that adapters train in this process, and the reference to compare them with."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle.job import Interrupted, Job
from oracle.recorder.probes import Recorder
from oracle.tasks import fixtures, load_task
from oracle.trainers import load_trainer
from reference_loop import recipe as recipes
from reference_loop.interpreter import run
from reference_loop.plan import plan
from reference_loop.semantics import Semantics
from reference_loop.state import State


class Watched(Job):
    """A job that keeps its model, and what it was told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ids: list[list[int]] = []
        self.logged: list[tuple[str, float]] = []
        self.metrics: list[dict[str, float]] = []

    def model(self) -> torch.nn.Module:
        self.trained = super().model()
        return self.trained

    def loss(self, model: Any, batch: Any, reduction: Any = "mean") -> torch.Tensor:
        if torch.is_grad_enabled():
            self.ids.append(batch["id"].tolist())
        return super().loss(model, batch, reduction)

    def log(self, name: str, value: Any) -> None:
        self.logged.append((name, float(value)))
        super().log(name, value)

    def evaluated(self, metrics: Any) -> None:
        self.metrics.append(dict(metrics))
        super().evaluated(metrics)

    def parameters(self) -> dict[str, torch.Tensor]:
        """A copy of the model's parameters, by name."""
        return {name: parameter.detach().clone() for name, parameter in self.trained.named_parameters()}


Train = Callable[..., Watched]


@pytest.fixture
def recipe_named() -> Callable[..., recipes.Recipe]:
    """A recipe of the fixtures, by its name, changed by `--set` texts."""
    folder = fixtures()
    assert folder is not None
    return lambda name, *sets: recipes.load(folder / "recipes" / f"{name}.toml", sets)


@pytest.fixture(autouse=True)
def no_accelerator_is_left() -> Iterator[None]:
    """A process is meant to have one Accelerator: its state lives in class attributes and environment variables."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    if importlib.util.find_spec("accelerate") is None:
        return
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train a task with an adapter as a recipe asks; returns the job."""
    runs = iter(range(1000))

    def train(
        trainer: str,
        task: str,
        recipe: recipes.Recipe,
        keep: list[Watched] | None = None,
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Watched:
        workdir = tmp_path / f"run-{next(runs)}"
        workdir.mkdir()
        job = Watched(load_task(task), recipe, workdir=workdir, **kwargs)
        if keep is not None:
            keep.append(job)
        load_trainer(trainer, arguments).train(job)
        return job

    return train


@pytest.fixture
def interrupted(train: Train) -> Callable[..., Watched]:
    """Train until some updates are complete, then stop as a cut does; returns the job."""

    def interrupted(trainer: str, task: str, recipe: recipes.Recipe, cut: int) -> Watched:
        jobs: list[Watched] = []
        recorder = Recorder(lambda address, value: None, lambda: None)

        def stop(updates: int) -> None:
            if updates == cut:
                raise Interrupted

        recorder.on_update = stop
        with recorder, pytest.raises(Interrupted):
            train(trainer, task, recipe, recorder=recorder, keep=jobs)
        return jobs[0]

    return interrupted


@pytest.fixture
def reference() -> Callable[..., dict[str, torch.Tensor]]:
    """Train a task with the reference loop under changed knobs; returns its parameters, by name."""

    def reference(task: str, recipe: recipes.Recipe, knobs: dict[str, str], **hyper: Any) -> dict[str, torch.Tensor]:
        semantics = Semantics.of(recipe)
        for name, value in knobs.items():
            semantics = semantics.with_(name, value)
        loaded = load_task(task)
        names = [name for name, _ in loaded.model().named_parameters()]
        overrides = {f"{name}.{key}": value for name in names for key, value in hyper.items()}
        state = State(loaded, recipe, drop_last=semantics.data.tail == "drop", overrides=overrides)
        run(plan(recipe, semantics, len(loaded.train_data())), state, lambda address, value: None)
        return {name: parameter.detach() for name, parameter in state.parameters.items()}

    return reference
