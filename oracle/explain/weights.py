"""Whether the textbook's loop itself weighs short micro-batches too much on a task."""

from __future__ import annotations

from diffs.captured import read_tensors
from diffs.tensor import compare
from oracle.replays import Reading, ReplayFailed, Replays

NOTICEABLE = 1e-4  # relative L2 of the gradient; float32 rounding is about a thousand times smaller


def uneven_weights(replays: Replays, reading: Reading) -> str | None:
    """A sentence if the mean of micro means and the mean over all units differ beyond rounding; None otherwise."""
    normalise = reading.semantics.accumulation.normalise
    if reading.recipe.accumulation == 1 or normalise not in ("micro_mean", "unit_mean"):
        return None
    other = "unit_mean" if normalise == "micro_mean" else "micro_mean"
    capture = {"moments": [[0, "consume", "gradient"]]}
    runs = replays.run(
        reading, reading.with_knob("accumulation.normalise", other), through=0, capture=capture
    )  # fmt: skip
    if any(isinstance(run, ReplayFailed) for run in runs):
        return None
    ours, theirs = (read_tensors(run.folder) for run in runs)  # type: ignore[union-attr]
    worst = max((compare(ours[a], theirs[a]).relative_l2 for a in ours if a in theirs), default=0.0)
    if not worst > NOTICEABLE:
        return None
    weighs = "every micro-batch the same: units in short ones count more" if other == "unit_mean" else "all units alike"
    return (
        "on this task the mean of micro means and the mean over all units differ, "
        f"by {worst:.2g} of the gradient's norm at update 0; the reference weighs {weighs}"
    )
