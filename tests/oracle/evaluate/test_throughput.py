"""Throughput over ranks is told from what the baseline's ranks gain on the same machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oracle.environment import prepare
from oracle.evaluate.checks import throughput
from oracle.evaluate.evidence import NotRun
from oracle.evaluate.experiments import RANKS
from oracle.evaluate.experiments.timing import timed
from oracle.evaluate.schema import Quantity


class Timings:
    """Evidence of two timings: seconds an update of (baseline, candidate) with one rank and with several.

    between_ranks: where the candidate's ranks stand apart, or together, as the comparison of two ranks found it.
    """

    between_ranks: tuple[Any, ...] = ()
    verdict = "diverged"

    def __init__(self, alone: tuple[float, float], spread: tuple[float, float], noise: float = 0.01) -> None:
        self._contents = {
            "speed on one rank": self._timed(alone, noise),
            "speed on ranks": self._timed(spread, noise),
        }

    @staticmethod
    def _timed(seconds: tuple[float, float], noise: float) -> dict[str, Any]:
        pairs = []
        for index in range(30):
            sways = (1 + noise * (index % 5 - 2), 1 + noise * (index % 3 - 1))
            named = zip(("baseline", "candidate"), seconds, sways, strict=True)
            sides = {name: [one * sway] for name, one, sway in named}
            pairs.append({"process": index % 3, **sides})
        return {"refused": None, "block": 1, "pairs": pairs}

    def get(self, name: str) -> dict[str, Any]:
        return self._contents[name]

    def run(self, name: str) -> Any:
        return SimpleNamespace(result=SimpleNamespace(between_ranks=self.between_ranks, verdict=self.verdict))

    def quantity(self, name: str, value: float, unit: str, content: Any, **more: Any) -> Quantity:
        return Quantity(name=name, value=value, unit=unit, under="here", **more)


@pytest.mark.parametrize(
    ("spread", "noise", "status"),
    [
        ((1.1, 1.2), 0.01, "pass"),
        ((1.1, 2.4), 0.01, "fail"),  # two ranks take more than twice as long
        ((1.1, 1.9), 0.10, "cannot_tell"),
        ((2.4, 2.4), 0.01, "cannot_tell"),  # the machine, not the trainer
    ],
)
def test_throughput_rises_or_not(spread, noise, status):
    found = throughput.judge(Timings((1.0, 1.0), spread, noise))
    assert found.status == status
    baseline, candidate, efficiency = found.quantities
    assert baseline.value == pytest.approx(RANKS / spread[0])
    assert candidate.value == pytest.approx(RANKS / spread[1])
    assert efficiency.value == pytest.approx(spread[0] / spread[1])
    assert efficiency.low < efficiency.value < efficiency.high


def test_a_trainer_that_is_slow_everywhere_is_as_efficient():
    found = throughput.judge(Timings((1.0, 1.3), (1.1, 1.43)))
    assert found.status == "pass"
    assert found.quantities[2].value == pytest.approx(1.0)


def test_a_trainer_that_refuses_ranks_is_not_judged():
    timings = Timings((1.0, 1.0), (1.0, 1.0))
    timings.get("speed on ranks")["refused"] = "it trains in one process"
    with pytest.raises(NotRun, match="one process"):
        throughput.judge(timings)


@pytest.mark.parametrize(
    ("moment", "kind", "agree", "says"),
    [("update", "parameter", False, "each its own model"), ("batch", "batch_ids", True, "the same ones on each")],
)
def test_ranks_that_train_no_model_together_gain_nothing(moment, kind, agree, says):
    timings = Timings((1.0, 1.0), (1.1, 1.1))
    timings.between_ranks = (SimpleNamespace(moment=moment, kind=kind, agree=agree),)
    found = throughput.judge(timings)
    assert found.status == "fail" and says in found.says
    timings.verdict = "nondeterministic"
    assert throughput.judge(timings).status == "pass"


LAGGING = """
import itertools
import time

class Lagging:
    def train(self, job):
        model = job.model()
        optimizer = job.optimizer(model)
        for batch in itertools.islice(itertools.cycle(job.loader()), job.recipe.updates):
            job.loss(model, batch).backward()
            time.sleep(0.1 * job.rank)
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_turn_ends_when_the_slowest_rank_has_had_it(tmp_path):
    (tmp_path / "lagging.py").write_text(LAGGING)
    recipe = {"batch_size": 2, "parallel": {"ranks": 2}, "optimizer": {"name": "sgd", "lr": 0.1}}
    session = SimpleNamespace(
        trainer=f"{tmp_path / 'lagging.py'}:Lagging", place=prepare(), folder=tmp_path, left=60.0, until=None
    )
    found = timed(session, "regression", recipe, warmup=1, block=2, processes_each=1)
    assert found["refused"] is None
    assert all(pair["candidate"][0] >= 0.2 > pair["baseline"][0] for pair in found["pairs"])
