"""Whether the textbook's loop itself weighs short micro-batches too much on a task."""

from __future__ import annotations

from diffs.captured import read_tensors
from diffs.tensor import compare
from oracle.replays import Reading, Replay, ReplayFailed, Replays

NOTICEABLE = 1e-4  # relative L2 of the gradient; float32 rounding is about a thousand times smaller


def uneven_weights(replays: Replays, reading: Reading, reference: Replay) -> str | None:
    """A sentence if the mean of micro means and the mean over all units differ beyond rounding; None otherwise."""
    normalise = reading.semantics.accumulation.normalise
    if reading.recipe.accumulation == 1 or normalise not in ("micro_mean", "unit_mean"):
        return None
    if len({counts["task"] for counts in reference.units.values()}) == 1:  # every micro-batch weighs the same
        return None
    other = "unit_mean" if normalise == "micro_mean" else "micro_mean"
    capture = {"moments": [[0, "consume", "gradient"]]}
    (run,) = replays.run(reading.with_knob("accumulation.normalise", other), through=0, capture=capture)
    if isinstance(run, ReplayFailed):
        return None
    ours, theirs = read_tensors(reference.folder), read_tensors(run.folder)
    worst = max((compare(ours[a], theirs[a]).relative_l2 for a in theirs if a in ours), default=0.0)
    if not worst > NOTICEABLE:
        return None
    weighs = "every micro-batch the same: units in short ones count more" if other == "unit_mean" else "all units alike"
    return (
        "on this task the mean of micro means and the mean over all units differ, "
        f"by {worst:.2g} of the gradient's norm at update 0; the reference weighs {weighs}"
    )
