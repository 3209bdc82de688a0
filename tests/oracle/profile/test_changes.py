"""What was asked for and what was seen, row by row."""

from __future__ import annotations

from oracle.profile.changes import changes, shrunk
from oracle.profile.facts import Facts
from oracle.profile.look import Seen
from oracle.profile.probes import Probe

PROBE = Probe("t", {"batch_size": 4, "accumulation": 2}, ())


def seen(gap=None, compute="as_asked", order="sequential", asked="float32", **facts):
    return Seen(
        asked={"precision.compute": asked, "data.order": "sequential"},
        values={"precision.compute": compute, "data.order": order},
        facts=Facts(**{"batch_size": 4, "accumulation": 2, "devices": ("cpu",), **facts}),
        gap=gap,
    )


def changed(one):
    return {(c.subject, c.asked, c.seen) for c in changes({"p": one}, {"p": PROBE}) if c.changed}


def test_a_run_as_asked_changes_nothing():
    assert changed(seen()) == set()


def test_each_change_is_a_row():
    assert changed(seen(batch_size=2)) == {("batch size", "4", "2")}
    assert changed(seen(accumulation=1)) == {("accumulation", "2", "1")}
    assert changed(seen(asked="float16", compute="float32")) == {("precision", "float16", "float32")}
    assert changed(seen(order="seeded_epoch")) == {("sampler", "sequential", "seeded_epoch")}
    assert changed(seen(devices=("cpu", "meta"))) == {("device", "cpu", "cpu, meta")}
    settings = {"matmul_precision": ("highest", "high")}
    assert changed(seen(settings=settings)) == {("backend", "matmul_precision = highest", "matmul_precision = high")}


def test_of_a_run_that_nothing_explains_only_its_record_is_told():
    one = seen(gap="update 0", asked="float16", compute="float32", order="seeded_epoch", batch_size=2)
    assert changed(one) == {("batch size", "4", "2")}


def test_what_is_the_same_is_one_row_for_all_probes():
    rows = list(changes({"p": seen(), "q": seen()}, {"p": PROBE, "q": PROBE}))
    assert {row.subject: row.probes for row in rows}["batch size"] == ("p", "q")
    assert len(rows) == 6


def test_a_batch_without_memory_ends_the_run_or_shrinks():
    assert shrunk(4, Facts(), "RuntimeError", None, "p").seen == "it ends: RuntimeError"
    assert shrunk(4, Facts(batch_size=2), None, "X=1", "p").seen == "2"
