"""A server whose forks train, and trainers that are interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffs.verdict import Policy
from oracle.check import Request
from oracle.replays import Server
from oracle.resume import cuts
from oracle.resume.command import resume
from reference_loop.recipe import from_dict

RECIPE = {"updates": 4, "batch_size": 2, "accumulation": 2, "shuffle": True, "checkpoint": {"every": 1}}

TRAINERS = '''
import json
import os
import signal

import torch


class Whole:
    """Saves after each update, aside and renamed, and resumes from the last one."""

    name = "whole"

    def train(self, job):
        model = self.model = job.model()
        optimizer = job.optimizer(model)
        done, skip, began = 0, 0, None
        saved = self.load(job)
        if saved:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            done, skip, began = saved["done"], saved["skip"], saved["began"]
        while done < job.recipe.updates:
            if began is not None:
                torch.set_rng_state(began)
            began = torch.get_rng_state()
            for index, batch in enumerate(job.loader()):
                if index < skip:
                    continue
                if saved:
                    torch.set_rng_state(saved["torch"])
                    saved = None
                (job.loss(model, batch) / job.recipe.accumulation).backward()
                if (index + 1) % job.recipe.accumulation:
                    continue
                optimizer.step()
                optimizer.zero_grad()
                done += 1
                content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done,
                           "skip": index + 1, "began": began, "torch": torch.get_rng_state()}
                self.save(job, content)
                if done == job.recipe.updates:
                    return
            skip, began = 0, None
            if saved:
                torch.set_rng_state(saved["torch"])
                saved = None

    def save(self, job, content):
        torch.save(content, job.workdir / "last.writing")
        os.replace(job.workdir / "last.writing", job.workdir / "last.pt")

    def load(self, job):
        if job.resume_from is None or not (job.resume_from / "last.pt").exists():
            return None
        return torch.load(job.resume_from / "last.pt", weights_only=True)


class InPlace(Whole):
    """Writes over the last save."""

    def save(self, job, content):
        torch.save(content, job.workdir / "last.pt")


class TwoFiles(Whole):
    """Writes the model, then the rest, over the last ones: a death between the two mixes two updates."""

    def save(self, job, content):
        for name, part in (("model", content.pop("model")), ("rest", content)):
            torch.save(part, job.workdir / "writing")
            os.replace(job.workdir / "writing", job.workdir / name)

    def load(self, job):
        if job.resume_from is None or not (job.resume_from / "rest").exists():
            return None
        rest = torch.load(job.resume_from / "rest", weights_only=True)
        return {**rest, "model": torch.load(job.resume_from / "model", weights_only=True)}


class Carries(Whole):
    """Trains on when a save fails."""

    def save(self, job, content):
        try:
            super().save(job, content)
        except (OSError, RuntimeError):
            pass


class SavesOnTerm(Whole):
    """Ends at the next update after SIGTERM, once it has saved."""

    def train(self, job):
        self.asked = False
        signal.signal(signal.SIGTERM, self.ask)
        super().train(job)

    def ask(self, *_):
        self.asked = True

    def save(self, job, content):
        super().save(job, content)
        if self.asked:
            raise SystemExit(0)


class EndsLater(SavesOnTerm):
    """Ends one update later, as if nothing was wrong."""

    def train(self, job):
        try:
            super().train(job)
        except SystemExit:
            pass

    def save(self, job, content):
        asked, self.asked = self.asked, False
        Whole.save(self, job, content)
        if getattr(self, "last", False):
            raise SystemExit(0)
        self.last = asked or self.asked


class Anew(Whole):
    """Never looks at what was saved."""

    def load(self, job):
        return None


class SavesNowhere(Anew):
    """Never saves either."""

    def save(self, job, content):
        pass


class Evaluates(Whole):
    """Evaluates after the third update."""

    def save(self, job, content):
        if content["done"] == 3:
            job.evaluate(self.model)
        super().save(job, content)


class Deaf(Whole):
    """Ignores SIGTERM."""

    def train(self, job):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().train(job)


class Disturbs(Whole):
    """Draws a random number whenever it saves."""

    def train(self, job):
        self.every = job.recipe.checkpoint
        super().train(job)

    def save(self, job, content):
        if self.every:
            torch.rand(1)
            content["torch"] = torch.get_rng_state()
            super().save(job, content)


class Half(Whole):
    """Saves half of the precision."""

    def save(self, job, content):
        content["model"] = {name: value.bfloat16() for name, value in content["model"].items()}
        super().save(job, content)
'''


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def trainers(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("trainers") / "trainers.py"
    file.write_text(TRAINERS)
    return file


@pytest.fixture
def interrupt(server, trainers):
    """Interrupt and resume one of the trainers; returns the result."""

    def run(name, cut, death="exception", *, task="ragged_tail", recipe=None, **more):
        chains = None if cut == "all" else [cuts.parse(cut, death)]
        request = Request(
            task=task,
            trainer=f"{trainers}:{name}",
            recipe=from_dict({**RECIPE, **(recipe or {})}),
            policy=Policy.parse("exact"),
        )
        return resume(request, chains, server=server, death=death, **more)

    return run
