from __future__ import annotations

from typing import Any

import pytest
import torch

from diffs.first import Comparison, Rules, compare, differences, first
from reference_loop.moments import Address

CHANGES = {("consume", "hyperparameter"): ("start", "hyperparameter")}


def run(updates: int = 3, **changed: Any) -> list[tuple[Address, Any]]:
    """A small run: a loss and a gradient for each of two micro-batches, a weight after each update.

    changed: `loss_u_m`, `gradient_u` or `weight_u` -> another value.
    """
    rows: list[tuple[Address, Any]] = [(Address(-1, -1, "start", "parameter", "w"), torch.zeros(3))]
    for u in range(updates):
        for m in range(2):
            loss = changed.get(f"loss_{u}_{m}", 1.0 / (u + m + 1))
            rows.append((Address(u, m, "forward", "loss", ""), torch.tensor(loss)))
        rows.append((Address(u, -1, "consume", "gradient", "w"), torch.full((3,), changed.get(f"gradient_{u}", 0.5))))
        rows.append((Address(u, -1, "update", "parameter", "w"), torch.full((3,), changed.get(f"weight_{u}", 1.0 * u))))
    rows.append((Address(updates - 1, -1, "end", "count", "updates"), updates))
    rows.append((Address(updates - 1, -1, "end", "parameter", "w"), torch.full((3,), changed.get("end", 9.0))))
    return rows


def where(found: Any) -> list[tuple[int, str, str]]:
    return [(difference.address.update, difference.address.moment, difference.address.kind) for difference in found]


def test_equal_runs_do_not_differ(record) -> None:
    with record(run()) as a, record(run()) as b:
        assert first(a, b) is None
        assert compare(a, b) == Comparison(updates=3, addresses=15, differing=0, first=None, latent=(), unmatched=())


def test_the_first_decisive_difference_is_first(record) -> None:
    with record(run()) as a, record(run(loss_0_1=7.0, gradient_1=0.25, weight_1=5.0, weight_2=5.0)) as b:
        found = first(a, b)
        assert found is not None and found.decisive
        assert found.address == (1, -1, "consume", "gradient", "w", 0)
        assert found.reference is not None and found.candidate is not None
        assert where(differences(a, b)) == [
            (0, "forward", "loss"), (1, "consume", "gradient"), (1, "update", "parameter"), (2, "update", "parameter"),
        ]  # fmt: skip
        assert where(differences(a, b, decisive_only=True))[0] == (1, "consume", "gradient")
        assert first(a, b, through_update=0) is None
        summary = compare(a, b)
        assert (summary.differing, where(summary.latent)) == (3, [(0, "forward", "loss")])
        assert summary.first == found


def test_a_witness_alone_is_latent(record) -> None:
    with record(run()) as a, record(run(loss_1_0=7.0, loss_2_0=7.0)) as b:
        summary = compare(a, b)
        assert summary.first is None and where(summary.latent) == [(1, "forward", "loss")]


def test_the_end_comes_after_every_update_of_the_longer_run(record) -> None:
    with record(run(3)) as a, record(run(5)) as b:
        found = where(differences(a, b, decisive_only=True))
        assert found[0] == (3, "consume", "gradient")
        assert [moment for _, moment, _ in found[-4:]] == ["end"] * 4


def test_fewer_updates_are_a_difference_at_the_first_address_that_is_missing(record) -> None:
    with record(run(3)) as a, record(run(2)) as b:
        found = first(a, b)
        assert found is not None and found.candidate is None and found.address[:4] == (2, -1, "consume", "gradient")


def test_a_bounded_comparison_leaves_the_end_out(record) -> None:
    with record(run(3)) as a, record(run(5)) as b:
        assert first(a, b, through_update=2) is None
        assert compare(a, b, through_update=2).updates == 3


def test_rows_that_one_side_alone_may_have_are_listed(record) -> None:
    extra = [
        (Address(0, -1, "update", "ema", "w"), torch.ones(1)),
        (Address(1, -1, "update", "ema", "w"), torch.ones(1)),
        (Address(0, -1, "update", "rng", "numpy"), "ab"),
        (Address(0, -1, "update", "buffer", "mean"), torch.ones(1)),
    ]
    with record(run()) as a, record(run() + extra) as b:
        summary = compare(a, b, Rules(optional=frozenset({"ema"})))
        assert summary.first is None and summary.unmatched_rows == 4
        assert [(group.side, group.first.kind, group.rows) for group in summary.unmatched] == [
            ("candidate", "buffer", 1), ("candidate", "ema", 2), ("candidate", "rng", 1),
        ]  # fmt: skip
        assert [group.side for group in compare(b, a).unmatched] == ["reference"] * 3


def test_a_missing_row_of_a_kind_that_both_record_is_a_difference(record) -> None:
    extra = [(Address(1, -1, "update", "parameter", "bias"), torch.ones(1))]
    with record(run()) as a, record(run() + extra) as b:
        found = first(a, b)
        assert found is not None and found.reference is None and found.address == extra[0][0]
        assert first(a, b, Rules(optional=frozenset({"parameter"}))) is None


def metrics(*values: Any) -> list[tuple[Address, Any]]:
    return [(Address(u, -1, "log", "metric", "loss"), value) for u, value in enumerate(values)]


@pytest.mark.parametrize(
    ("reference", "candidate", "equal"),
    [
        (0.5, 0.5000004, True),
        (0.5, 0.500001, False),
        (1, 1.0000005, True),
        (float("nan"), float("nan"), True),
        (float("nan"), 0.5, False),
        (float("inf"), float("inf"), True),
        (float("inf"), float("-inf"), False),
        (float("inf"), 1e308, False),
        (0.0, -0.0, True),
        (0.0, 1e-30, False),
        ("0.5", "0.5000001", False),
        (True, 1, False),
        (torch.tensor(0.5), torch.tensor(0.50000006), True),
        (torch.tensor(0.5), torch.tensor(0.50000006, dtype=torch.float64), True),
    ],
)
def test_decimals_are_compared_as_decimals(record, reference: Any, candidate: Any, equal: bool) -> None:
    rules = Rules(decimals=frozenset({("log", "metric")}))
    with record(metrics(reference)) as a, record(metrics(candidate)) as b:
        assert (first(a, b, rules) is None) is equal


def test_without_a_rule_numbers_are_compared_exactly(record) -> None:
    with record(metrics(0.5)) as a, record(metrics(0.5000000000000001)) as b:
        assert first(a, b) is not None


def hyper(moment: str, update: int, value: Any, name: str = "w.weight_decay") -> tuple[Address, Any]:
    return Address(update, -1, moment, "hyperparameter", name), value


@pytest.mark.parametrize(
    ("reference", "candidate", "expected"),
    [
        # The same change, written by both; written by one where nothing changed.
        ([hyper("start", -1, 0), hyper("consume", 2, 0.1)], [hyper("start", -1, 0), hyper("consume", 2, 0.1)], []),
        ([hyper("start", -1, 0)], [hyper("start", -1, 0.0), hyper("consume", 1, 0.0)], []),
        # A change on one side, then back.
        ([hyper("start", -1, 0)], [hyper("start", -1, 0), hyper("consume", 1, 0.1), hyper("consume", 2, 0)], [1]),
        # One side changes later than the other.
        (
            [hyper("start", -1, 0), hyper("consume", 1, 0.1)],
            [hyper("start", -1, 0), hyper("consume", 2, 0.1)],
            [1],
        ),
        # What one side never wrote before is listed, not judged; what held since an earlier change is.
        ([], [hyper("consume", 1, 1.0, "max_norm")], []),
        ([hyper("consume", 0, None, "max_norm")], [hyper("consume", 1, 1.0, "max_norm")], [1]),
        ([hyper("consume", 0, None, "max_norm")], [], []),
    ],
)
def test_what_is_recorded_on_change_is_compared_with_what_held(record, reference, candidate, expected) -> None:
    rules = Rules(changes=CHANGES)
    with record(run() + reference) as a, record(run() + candidate) as b:
        assert [difference.address.update for difference in differences(a, b, rules)] == expected
        assert [difference.address.update for difference in differences(b, a, rules)] == expected
        for difference in differences(a, b, rules):
            assert difference.reference is not None and difference.candidate is not None
            assert difference.reference.content != difference.candidate.content


def test_nothing_in_common_is_seen_in_the_counts(record) -> None:
    with record([]) as a, record(run()) as b:
        assert compare(a, b).addresses == 0 and compare(a, b).updates == 0
