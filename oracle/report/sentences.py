"""What a candidate does, in plain words, for every value of every knob.

Each entry continues "the candidate ...". A name in braces is one of the cause's facts. Where an entry has two
sentences, the second is used when a fact is lacking.
"""

from __future__ import annotations

from oracle.report import phrases
from oracle.result import Cause

KNOBS: dict[str, dict[str, tuple[str, ...]]] = {
    "accumulation.normalise": {
        "micro_mean": ("weighs every micro-batch the same: the mean of the micro-batches' means",),
        "unit_mean": (
            "weighs every unit of a window the same: the summed loss divided by the units of the whole window",
        ),
        "sum": (
            "adds up the means of {configured:micro-batch} and does not divide the sum",
            "adds up the micro-batches' means and does not divide",
        ),
        "twice": (
            "divides the loss by {configured} two times",
            "divides the loss by the number of micro-batches two times",
        ),
        "unit_mean_twice": (
            "divides the summed loss by the units of the whole window, and then by {configured} again",
            "divides the summed loss by the units of the whole window, and then by the number of micro-batches again",
        ),
    },
    "accumulation.units": {
        "task": ("counts units as the task does",),
        "labels": (
            "counts {candidate_units:label}, also those that a shifted loss never uses; the task {reference_units}",
            "counts every label that is not ignored, also those that a shifted loss never uses",
        ),
        "samples": (
            "counts {candidate_units:sample}; the task counts {reference_units:unit}",
            "counts samples, not the task's units",
        ),
    },
    "accumulation.sum": {
        "task": ("asks the task for the sum of its losses",),
        "weighed_means": ("multiplies a micro-batch's mean by its units in place of asking for the sum",),
    },
    "accumulation.divide": {
        "loss": ("divides the loss, before backward",),
        "gradient": ("divides the accumulated gradient, after backward",),
        "loss_reciprocal": ("multiplies the loss by the reciprocal of the divisor, before backward",),
        "gradient_reciprocal": (
            "multiplies the accumulated gradient by the reciprocal of the divisor, after backward",
        ),
    },
    "accumulation.tail_divisor": {
        "actual": (
            "divides the last window by the {actual:micro-batch} that it holds; {configured} are configured",
            "divides the last window of an epoch by the micro-batches that it holds",
        ),
        "configured": (
            "divides the last window by {configured}, the configured count; it holds {actual:micro-batch}",
            "divides the last window of an epoch by the configured count, not by the micro-batches that it holds",
        ),
    },
    "accumulation.tail": {
        "flush": ("makes an update of an epoch's incomplete last window",),
        "carry": ("carries an epoch's incomplete last window into the next epoch; the run's last one makes an update",),
        "carry_drop": ("carries an epoch's incomplete last window into the next epoch; the run's last one is dropped",),
        "drop": ("drops an epoch's incomplete last window",),
        "leak": (
            "makes no update of an epoch's incomplete last window, and adds its gradient to the next full window",
        ),
    },
    "accumulation.tail_count": {
        "batches": ("trains all micro-batches that are left for an epoch's last window",),
        "samples": (
            "trains in an epoch's last window as many micro-batches as samples are left over, and never those behind",
        ),
    },
    "accumulation.counted": {
        "window": ("counts units over the micro-batches that form the update",),
        "chunk": (
            "counts units over {configured:micro-batch} from each epoch's first on, although its windows cross epochs",
            "counts units over chunks of the epoch, although its windows cross epochs",
        ),
        "since_update": (
            "counts units since the last update, those of an epoch's last window that leaked into this one included",
        ),
    },
    "accumulation.cadence": {
        "window": ("makes one update for each window",),
        "micro": ("makes an update at each micro-batch, not once for each window",),
    },
    "gradient.clear": {
        "after_update": ("clears gradients after each update",),
        "before_backward": ("clears gradients before each backward: only a window's last micro-batch counts",),
        "never": ("never clears gradients: each update adds to those before it",),
    },
    "clip.moment": {
        "unscaled": ("clips once for each window, after unscaling",),
        "scaled": ("clips before unscaling: the threshold meets gradients multiplied by the loss scale",),
        "micro": ("clips at each micro-batch, before the window's gradient is complete",),
        "off": ("does not clip, although the recipe asks for it",),
        "local": ("clips on each rank what it accumulated itself, before the ranks are reduced",),
    },
    "clip.kind": {
        "norm": ("clips the norm of all gradients together",),
        "value": ("clips each gradient element by value",),
    },
    "clip.formula": {
        "guarded": ("divides the clip's threshold by the norm and 1e-06",),
        "exact": ("divides the clip's threshold by the norm alone",),
    },
    "clip.kernel": {
        "norms": ("clips by the norm of the parameters' norms",),
        "squares": ("clips by the root of the parameters' squared norms, which rounds otherwise",),
        "reciprocal": ("adds up squares in float64 and clips by a reciprocal of the norm, which rounds otherwise",),
        "float64": ("clips by a reciprocal of the norm, in float64, which rounds otherwise",),
    },
    "schedule.cadence": {
        "update": ("moves the learning rate at each update",),
        "micro": ("moves the learning rate at each micro-batch",),
        "epoch": ("moves the learning rate at each epoch",),
        "rank": (
            "moves the learning rate {ranks} times for each update, once for each rank",
            "moves the learning rate once for each rank at every update",
        ),
        "fraction": (
            "moves the learning rate at each micro-batch, {configured} of which make a step of the schedule",
            "moves the learning rate by a fraction of a step at each micro-batch",
        ),
    },
    "schedule.order": {
        "after_update": ("moves the learning rate after the update",),
        "before_update": ("moves the learning rate before the update: the schedule's first value is never used",),
    },
    "schedule.on_skip": {
        "hold": ("leaves the learning rate when the scaler skips an update",),
        "advance": ("moves the learning rate although the scaler skipped the update",),
    },
    "schedule.horizon": {
        "ceil": ("counts an epoch's incomplete last window as an update of the schedule",),
        "floor": (
            "plans the schedule over {candidate_updates:update}; with incomplete windows there are {reference_updates}",
            "plans the schedule without the epochs' incomplete last windows",
        ),
        "micro": (
            "plans the schedule over {candidate_updates:micro-batch}; there are {reference_updates:update}",
            "plans the schedule over micro-batches, as if each were an update",
        ),
        "unsharded": (
            (
                "plans the schedule over {candidate_updates:update}, as if one rank trained all samples; "
                "there are {reference_updates}"
            ),
            "plans the schedule as if one rank trained all samples",
        ),
    },
    "schedule.formula": {
        "progress": ("computes the schedule's decay as 1 - t/T",),
        "remaining": ("computes the schedule's decay as (T - t)/T",),
        "float32": ("computes and holds the learning rate in float32",),
        "fraction": ("computes the learning rate from an added up fraction of the run, held in float32",),
    },
    "schedule.stop": {
        "epochs": ("trains until its epochs are over",),
        "horizon": ("stops when the schedule's planned number of updates is reached, before its epochs are over",),
    },
    "optimizer.decay": {
        "decoupled": ("decays weights apart from the gradient",),
        "coupled": ("adds weight decay to the gradient",),
    },
    "optimizer.decay_set": {
        "all": ("decays every parameter",),
        "no_bias": ("does not decay biases",),
        "no_bias_norm": ("does not decay biases, nor the parameters of norm modules",),
        "no_bias_layer_norm": ("does not decay parameters called bias, nor those of LayerNorm modules",),
        "names": ("does not decay parameters that are named like a bias or a norm",),
        "matrices": ("decays only parameters of two or more dimensions",),
    },
    "optimizer.kernel": {
        "loop": ("updates parameters one by one",),
        "fused": ("updates parameters with the fused kernel, which rounds otherwise",),
        "steps": ("keeps steps in SGD's momentum, which rounds otherwise",),
        "averages": ("weighs Adam's moments as sums and corrects the second before its root, which rounds otherwise",),
    },
    "optimizer.epsilon": {
        "after_correction": ("adds epsilon to the root of the corrected second moment",),
        "before_correction": ("adds epsilon to the root of the second moment before its bias is corrected",),
    },
    "optimizer.velocity": {
        "gradient": ("keeps gradients in SGD's momentum",),
        "step": ("keeps steps in SGD's momentum, each with the rate that it came in with",),
    },
    "data.order": {
        "sequential": ("reads the samples in the data's own order",),
        "random_sampler": ("shuffles with torch's RandomSampler, from the global generator",),
        "seeded_epoch": ("shuffles each epoch with a generator of its own, seeded with seed + epoch",),
        "unseeded_epoch": ("shuffles each epoch with a generator of its own, seeded with the epoch alone",),
        "same_every_epoch": ("reads every epoch in the order of the first",),
        "python": ("shuffles each epoch with a generator of Python's, drawn from the one of the epoch before",),
    },
    "data.tail": {
        "keep": ("trains on the last incomplete batch",),
        "drop": ("drops the last incomplete batch",),
    },
    "data.shard": {
        "interleave": ("deals samples to the ranks in turn, wrapping around at the end",),
        "contiguous": ("gives each rank a contiguous part of the data",),
        "batches": ("deals batches to the ranks in turn, and fills up at the end with the first samples",),
        "replicate": ("gives every rank all of the data",),
    },
    "data.lookahead": {
        "none": ("fetches each batch when it is trained on",),
        "one": ("fetches each batch before the previous one is trained on",),
        "window": ("fetches all batches of a window before the first is trained on",),
        "window_one": ("fetches all batches of a window, and the one behind it, before the first is trained on",),
    },
    "rng.loader_draws": {
        "torch": ("draws the loader's seeds from the global generator",),
        "none": ("draws none of the loader's seeds from the global generator",),
        "twice": ("draws a seed at each epoch's end for a pass over the loader that never begins",),
    },
    "evaluate.mode": {
        "restored": ("evaluates in eval mode, and restores the mode it found",),
        "left_in_eval": ("leaves the model in eval mode after evaluation",),
        "stays_in_train": ("evaluates in train mode",),
    },
    "evaluate.rng": {
        "advances": ("lets evaluation advance the random state",),
        "preserved": ("restores the random state after evaluation",),
    },
    "evaluate.gradients": {
        "kept": ("keeps the accumulated gradients over an evaluation",),
        "cleared": ("clears the accumulated gradients at an evaluation",),
    },
    "evaluate.ranks": {
        "all": ("evaluates on every rank",),
        "first": ("evaluates on the first rank alone: the other ranks' random state does not advance",),
    },
    "model.mode": {
        "train": ("puts the model in train mode",),
        "as_given": ("leaves the model in the mode in which it was built",),
    },
    "scaler.unit": {
        "update": ("counts the scaler's growth in updates",),
        "micro": ("counts the scaler's growth in micro-batches",),
    },
    "precision.compute": {
        "as_asked": ("computes in the type that the recipe asks for",),
        "float32": ("computes in float32, not in the type that the recipe asks for",),
        "bfloat16": ("computes in bfloat16, not in the type that the recipe asks for",),
    },
    "precision.loss": {
        "inside_autocast": ("computes the loss under autocast",),
        "outside_autocast": ("computes the loss outside autocast",),
    },
    "reduce.scale": {
        "mean": ("averages gradients over the ranks",),
        "sum": (
            "adds up gradients over {ranks:rank}, without dividing",
            "adds up gradients over the ranks, without dividing",
        ),
    },
    "reduce.micros": {
        "all": ("reduces the whole window's gradient over the ranks",),
        "first": ("reduces a window's first micro-batch alone: what the others add stays on its rank",),
        "none": ("does not reduce gradients over the ranks: each keeps its own",),
    },
    "reduce.moment": {
        "window": ("reduces gradients once an update",),
        "micro": ("reduces gradients at each micro-batch, which rounds otherwise",),
    },
    "reduce.units": {
        "all": ("counts the units of all ranks",),
        "own": ("divides by each rank's own units: units on ranks that have few of them count more",),
        "all_averaged": (
            "divides by the units of all ranks, and again by {ranks}, the number of ranks",
            "divides by the units of all ranks, and again by the number of ranks",
        ),
    },
    "reduce.norm": {
        "whole": ("clips by the norm of the whole gradient",),
        "shard": ("clips each rank's shard by the shard's own norm",),
    },
    "reduce.buffers": {
        "broadcast": ("gives every rank the first one's buffers",),
        "local": ("leaves each rank its own buffers",),
    },
    "log.loss": {
        "window_mean": ("logs the mean loss of the window",),
        "last_micro": ("logs the loss of the window's last micro-batch",),
        "last_micro_divided": (
            "logs the loss of the window's last micro-batch divided by {configured}, the configured count",
            "logs the loss of the window's last micro-batch divided by the configured count",
        ),
        "window_sum": ("logs the sum of the window's losses",),
        "configured_mean": (
            "logs the sum of the window's losses divided by {configured}, the configured count",
            "logs the sum of the window's losses divided by the configured count",
        ),
        "divided": (
            "logs a loss divided by {configured} once too often",
            "logs a loss divided by the number of micro-batches once too often",
        ),
        "smoothed": ("logs an average over micro-batches that keeps 0.98 of what it had",),
        "epoch_mean": ("logs the mean loss over the samples since the epoch began",),
        "run_mean": ("logs the mean loss over all micro-batches since training began",),
    },
    "rng.ranks": {
        "shared": ("starts every rank from the same seed",),
        "offset": ("adds each rank's number to its seed",),
    },
    "log.ranks": {
        "own": ("logs the loss of its own rank",),
        "mean": ("logs the mean loss over the ranks",),
    },
    "log.digits": {
        "all": ("logs the loss as it was computed",),
        "four_decimals": ("logs the loss rounded to four decimals",),
    },
    "metric.aggregate": {
        "sample_mean": ("averages metrics over samples",),
        "batch_mean": ("averages metrics over batches, whatever they hold",),
    },
}

# Parts of a run that a resumed one may lack.
PARTS = {
    "accumulated_gradient": "the accumulated gradient",
    "counter": "the number of updates made",
    "cursor": "the position in the data",
    "ema": "the averaged parameters",
    "optimizer": "the optimizer's state",
    "order": "the order of the data",
    "parameter": "the parameters",
    "rng": "the random state",
    "scaler": "the scaler's state",
    "scheduler": "the scheduler's state",
}

# The parts that every run has: a resumed one that lacks all of them began anew.
NEEDED = {"counter", "cursor", "optimizer", "order", "parameter", "rng"}

# Numbers read from the candidate: what is said if both sides have one, the candidate alone, the reference alone.
HYPERPARAMETERS: dict[str, tuple[str, str, str]] = {
    "max_norm": (
        "clips gradients to a norm of {candidate}; the recipe asks for {reference}",
        "clips gradients to a norm of {candidate}; the recipe does not ask for clipping",
        "does not clip the norm of gradients; the recipe asks for {reference}",
    ),
    "max_value": (
        "clips gradient elements to {candidate}; the recipe asks for {reference}",
        "clips gradient elements to {candidate}; the recipe does not ask for clipping",
        "does not clip gradient elements; the recipe asks for {reference}",
    ),
}
_ANY_HYPERPARAMETER = (
    "uses {name} = {candidate}; the reference uses {reference}",
    "uses {name} = {candidate}; the reference has none",
    "has no {name}; the reference uses {reference}",
)


def sentence(cause: Cause) -> str:
    """What the candidate does, as one clause: "the candidate divides ..."."""
    return f"the candidate {_clause(cause)}"


def _clause(cause: Cause) -> str:
    group, _, name = cause.knob.partition(".")
    if group == "hyperparameter":
        return _hyperparameter(name, cause)
    if cause.knob == "resume.missing":
        parts = [PARTS.get(part, part) for part in str(cause.candidate or "").split(",") if part]
        if set(str(cause.candidate).split(",")) >= NEEDED:
            return "restores nothing of what was saved"
        return f"does not restore {phrases.listing(parts)}" if parts else "restores everything"
    facts = {key: phrases.Count(fact) if isinstance(fact, int) else fact for key, fact in cause.facts.items()}
    for template in KNOBS.get(cause.knob, {}).get(cause.candidate, ()):
        try:
            return template.format_map(facts)
        except KeyError:
            continue
    return f"has {cause.knob} = {phrases.value(cause.candidate)}; the reference has {phrases.value(cause.reference)}"


def _hyperparameter(name: str, cause: Cause) -> str:
    parameters = phrases.few(cause.facts.get("parameters", ()))
    if name == "optimized":
        verb = "optimizes" if cause.candidate else "does not optimize"
        return f"{verb} {parameters or 'a parameter'}; the reference {'does not' if cause.candidate else 'does'}"
    both, only_candidate, only_reference = HYPERPARAMETERS.get(name, _ANY_HYPERPARAMETER)
    template = only_candidate if cause.reference is None else only_reference if cause.candidate is None else both
    words = {"reference": phrases.value(cause.reference), "candidate": phrases.value(cause.candidate)}
    return template.format_map({"name": name, **words}) + (f" ({parameters})" if parameters else "")
