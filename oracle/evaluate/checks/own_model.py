"""A model of one's own: its loss, and the parameters after an update, are what they are by hand."""

from __future__ import annotations

from oracle.evaluate import hand
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence

ABOUT = About(dimension="functional", step=2, needs=("closed form",))

CLOSE = 1e-4
"""Relative: float32 arithmetic over 16 samples is far closer, and every known fault further off."""


def judge(evidence: Evidence) -> Found:
    """Local: from the samples, parameters, gradient and rate that the trainer itself had at each update."""
    run = evidence.run("closed form")
    if run.refused:
        return Found(status="fail", says=f"it does not train the closed-form task: {run.refused}")
    parameters, gradients = run.tensors("parameter"), run.tensors("gradient")
    rates = {update: values[0] for update, values in run.candidate["rates"] if len(values) == 1}
    ids = {(update, micro): samples for update, micro, samples in run.candidate["ids"]}
    compared, wrong = 0, []
    for update in sorted(gradients):
        before, after = hand.flat(parameters.get(update - 1, {})), hand.flat(parameters.get(update, {}))
        taken = hand.flat(gradients[update])
        if before is None or after is None or taken is None or update not in rates:
            continue
        moved = [w - rates[update] * g for w, g in zip(before, taken, strict=True)]
        if not hand.apart(after, moved) <= CLOSE:
            wrong.append(f"the parameters after update {update} are not those before it less rate times gradient")
        for at, micro, value in run.candidate["losses"]:
            samples = ids.get((at, micro))
            if at == update and samples and not abs(value - hand.loss(before, samples)) <= CLOSE * max(1.0, value):
                wrong.append(f"the loss of micro-batch {micro} of update {update} is {value}, "
                             f"by hand {hand.loss(before, samples):.8g}")  # fmt: skip
        compared += 1
    details = {"updates": compared, "allowance": CLOSE}
    if wrong:
        return Found(status="fail", says=wrong[0], details={**details, "all": wrong})
    if not compared:
        return Found(status="cannot_tell", says="no update was recorded with its parameters and gradients")
    return Found(status="pass", says=f"losses and parameters of {compared} updates are those by hand", details=details)
