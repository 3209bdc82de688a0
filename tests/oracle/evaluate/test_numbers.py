"""Intervals, and what they may be said to prove."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from oracle.evaluate.experiments import timing
from oracle.evaluate.experiments.timing import close, overhead
from oracle.evaluate.numbers import Interval, mean, median, slope


def test_an_interval_that_holds_the_limit_proves_nothing() -> None:
    assert Interval(0.1, 0.05, 0.12, 9).against(0.15) is True
    assert Interval(0.3, 0.25, 0.35, 9).against(0.15) is False
    assert Interval(0.15, 0.1, 0.2, 9).against(0.15) is None
    assert Interval(float("nan"), float("nan"), float("nan"), 9).against(0.15) is None


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    draw = random.Random(1)
    held = 0
    for _ in range(400):
        found = median([draw.gauss(0, 1) for _ in range(25)])
        held += found.low <= 0 <= found.high
    assert held >= 0.93 * 400


def test_the_interval_of_a_mean_is_students() -> None:
    found = mean([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.low, found.high) == pytest.approx((3 - 2.776 * 0.7071, 3 + 2.776 * 0.7071), abs=1e-3)
    assert mean([2.0, 2.0]).low == mean([2.0, 2.0]).high == 2.0


def test_one_jump_is_no_slope() -> None:
    jumped = [(float(x), 0.0 if x < 10 else 1000.0) for x in range(30)]
    assert slope(jumped) < 60
    assert slope([(float(x), 3.0 * x) for x in range(20)]) == pytest.approx(3.0)


def pairs(ratio: float, noise: float) -> list[dict[str, list[float]]]:
    draw = random.Random(2)
    return [
        {
            "process": 0,
            "baseline": [load := draw.uniform(1, 3), load],
            "candidate": [load * ratio * draw.gauss(1, noise), load],
        }
        for _ in range(30)
    ]


def test_load_that_meets_both_sides_does_not_move_the_overhead() -> None:
    found = overhead(pairs(1.3, 0.02), 0)
    assert 0.25 < found.low <= found.value <= found.high < 0.35 and close(found)
    assert not close(overhead(pairs(1.3, 0.4), 0))


def of_processes(*ratios: float) -> list[dict]:
    """Pairs of one process after another, in each of which the candidate takes so many times the baseline's second."""
    return [
        {"process": process, "baseline": [1.0], "candidate": [ratio + 0.001 * index]}
        for process, ratio in enumerate(ratios)
        for index in range(8)
    ]


def test_one_process_of_three_widens_the_interval_and_one_of_seven_does_not() -> None:
    assert overhead(of_processes(1.0, 1.0, 1.3), 0).high > 0.25
    assert overhead(of_processes(1.0, 1.0, 1.3, 1.0, 1.0, 1.0, 1.0), 0).high < 0.05
    assert overhead(of_processes(1.0, 1.3, 1.3, 1.3, 1.3, 1.0, 1.0), 0).high > 0.25


@pytest.mark.parametrize(("ratios", "processes"), [((1.0, 1.02, 1.0), 3), ((1.0, 1.3, 1.0, 1.0, 1.0, 1.0, 1.0), 7)])
def test_more_processes_are_timed_where_they_lie_apart(monkeypatch, tmp_path, ratios, processes) -> None:
    turns = of_processes(*ratios)
    taken = []

    def turned(session, spec, process, of):
        taken.append(process)
        return {}, [pair for pair in turns if pair["process"] == process]

    monkeypatch.setattr(timing, "_turns", turned)
    session = SimpleNamespace(place=SimpleNamespace(digest="x"), until=None)
    found = timing.timed(session, "regression", {"batch_size": 2}, warmup=1, block=1, processes_each=3)
    assert len(taken) == processes and len(found["pairs"]) == 8 * processes
