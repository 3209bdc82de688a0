"""The accumulated gradients are those that a window's samples give by hand."""

from __future__ import annotations

from oracle.evaluate import hand, unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="semantic", step=3, needs=("closed form", "profile"))

CLOSE = 1e-4
"""Relative to the largest element."""


def judge(evidence: Evidence) -> Found:
    """What the first updates take, against the recipe's windows at the trainer's own parameters."""
    run = evidence.run("closed form")
    if run.refused:
        return Found(status="fail", says=f"it does not train the closed-form task: {run.refused}")
    windows = hand.windows(run.content["recipe"])
    parameters, gradients = run.tensors("parameter"), run.tensors("gradient")
    compared, wrong = 0, []
    for update in sorted(gradients):
        before, taken = hand.flat(parameters.get(update - 1, {})), hand.flat(gradients[update])
        if before is None or taken is None or update >= len(windows):
            continue
        compared += 1
        expected = hand.gradient(before, windows[update])
        if not hand.apart(taken, expected) <= CLOSE:
            ratio = sum(a * b for a, b in zip(taken, expected, strict=True)) / sum(b * b for b in expected)
            wrong.append({"update": update, "taken": taken, "by_hand": expected, "ratio": ratio,
                          "micro_batches": len(windows[update])})  # fmt: skip
    if not compared:
        return Found(status="cannot_tell", says="no gradient was recorded with its parameters")
    if not wrong:
        return Found(status="pass", says=f"the accumulated gradients of {compared} updates are those by hand")
    names = tuple(one for one in unset.of(evidence, run)
                  if one.name.startswith(("accumulation.", "clip.", "gradient.", "hyperparameter.max",
                                          "data.")))  # fmt: skip
    first = wrong[0]
    says = (
        f"update {first['update']}, of {first['micro_batches']} micro-batches, takes {first['ratio']:.4g} times "
        "the gradient by hand"
    )
    why = unset.words(names)
    return Found(status="fail", says=says + (f": {why}" if why else ""), unset=names, details={"wrong": wrong})
