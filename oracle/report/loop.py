"""The plain loop of a script: one recipe under one meaning, as a function of a few lines of PyTorch.

Everything that a knob decides is worked out here and written as an expression; the templates put the lines in order.
What they cannot write is refused with the reason, so that no script claims something else than it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from diffs.trace import Trace
from oracle.errors import OracleError
from oracle.replays import Reading
from reference_loop.operations import COURSES
from reference_loop.optimizers import DEFAULTS
from reference_loop.plan import planned_updates
from reference_loop.recipe import Recipe, ScalerOptions
from reference_loop.schedules import FORMULAS
from reference_loop.semantics import Semantics


class NoScript(OracleError):
    """No script can be written, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One meaning of the run: recipe and semantics, with the optimizer's arguments as its trace has them.

    hyper: for each parameter that requires grad, the optimizer's arguments and `optimized`; the learning rate only
        where it is the parameter's own.
    """

    recipe: Recipe
    semantics: Semantics
    hyper: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, reading: Reading, trace: Trace) -> Side:
        """The side that a reference run under a reading recorded."""
        hyper: dict[str, dict[str, Any]] = {}
        for row in trace.rows_at(("start", "hyperparameter")):
            parameter, _, key = row.address.name.rpartition(".")
            if parameter:  # the clip's threshold has none
                hyper.setdefault(parameter, {})[key] = row.content
        for name, value in reading.overrides.items():
            if name.endswith(".lr"):
                hyper[name.removesuffix(".lr")]["lr"] = value
        return cls(recipe=reading.recipe, semantics=reading.semantics, hyper=hyper)


def loop(side: Side, samples: int, name: str, doc: str) -> str:
    """A loop under one meaning, as a function that returns what every update takes and leaves."""
    recipe, s = side.recipe, side.semantics
    _refuse(recipe, s)
    facts = facts_of(side, samples)
    micro = template("micro").render(facts).rstrip("\n")
    update = template("update").render(facts).rstrip("\n")
    return template("loop").render(facts, name=name, doc=doc, micro_step=micro, update_step=update).rstrip("\n")


def _refuse(recipe: Recipe, s: Semantics) -> None:
    """Refuse what the templates do not write.

    Raises:
        NoScript: names it.
    """
    units, whole = s.accumulation.normalise.startswith("unit"), s.accumulation.tail == "flush"
    scaled, by_micro = _dtype(recipe, s) == "float16", s.accumulation.cadence == "micro"
    outside = recipe.precision.dtype != "float32" and s.precision.loss != "inside_autocast"
    refused = {
        "accumulation.tail_count = samples": s.accumulation.tail_count != "batches",
        f"accumulation.counted = {s.accumulation.counted}": s.accumulation.counted != "window",
        "accumulation.sum = weighed_means": units and s.accumulation.sum != "task",
        "clip.formula = exact": recipe.clip is not None and s.clip.formula != "guarded",
        f"clip.kernel = {s.clip.kernel}": recipe.clip is not None and s.clip.kernel != "norms",
        "schedule.cadence = fraction": s.schedule.cadence == "fraction",
        f"schedule.formula = {s.schedule.formula}": s.schedule.formula not in FORMULAS,
        f"optimizer.kernel = {s.optimizer.kernel}": s.optimizer.kernel not in ("loop", "fused"),
        "optimizer.epsilon = before_correction": s.optimizer.epsilon != "after_correction",
        "optimizer.velocity = step": s.optimizer.velocity != "gradient",
        "data.order = python": s.data.order == "python",
        "rng.loader_draws = twice": s.rng.loader_draws == "twice",
        f"log.loss = {s.log.loss}": recipe.log is not None and s.log.loss in COURSES,
        "accumulation.cadence = micro beside windows that are left over": by_micro and not whole,
        "units of windows that are left over": units and not whole,
        "units with an update at each micro-batch": units and by_micro,
        "units with a schedule that moves at each micro-batch": units and s.schedule.cadence == "micro",
        "a scaler with a schedule that moves at each micro-batch": scaled and s.schedule.cadence == "micro",
        "scaler.unit = micro": scaled and s.scaler.unit == "micro",
        "precision.loss = outside_autocast": outside,
        "a dropped window beside gradients that are never cleared": s.accumulation.tail == "drop"
        and s.gradient.clear == "never",
        "a running mean of the parameters": recipe.ema is not None,
        "loading in other processes": recipe.workers > 0,
    }
    for reason, applies in refused.items():
        if applies:
            raise NoScript(f"no plain loop is written for {reason}")


def facts_of(side: Side, samples: int) -> dict[str, Any]:
    """What the templates of the loop need."""
    recipe, s, k = side.recipe, side.semantics, side.recipe.accumulation
    held, divisors, total = _window(side), _divisors(side), planned_updates(recipe, s, samples)
    if s.schedule.stop == "horizon" and recipe.updates is None:
        last: int | None = total
    else:
        last = recipe.updates
    by_gradient, reciprocal = s.accumulation.divide.startswith("gradient"), s.accumulation.divide.endswith("reciprocal")
    division = "".join(f" * (1.0 / {number})" if reciprocal else f" / {number}" for number in divisors)
    scheduled = recipe.schedule is not None
    dtype = _dtype(recipe, s)
    return {
        "recipe": recipe,
        "k": k,
        "optimizer": _optimizer(side),
        "own_decay": _own_decay(side),
        "schedule": _schedule(recipe, s, total),
        "scaler": scaler_options(recipe) if dtype == "float16" else None,
        "autocast": None if dtype == "float32" else dtype,
        "order": s.data.order,
        "batch_size": recipe.batch_size,
        "loading": _loading(recipe, s),
        "counts": last is not None or recipe.evaluate is not None,
        "last_update": last,
        "epochs": "itertools.count()" if recipe.epochs is None else f"range({recipe.epochs})",
        "train_mode": s.model.mode == "train",
        "by_units": s.accumulation.normalise.startswith("unit"),
        "units": _units(s.accumulation.units),
        "carries": s.accumulation.tail.startswith("carry") and k > 1,
        "held": held if "held" in divisors else None,
        "steps": _steps(side),
        "reduction": "sum" if s.accumulation.normalise.startswith("unit") else "mean",
        "objective": "loss" if by_gradient else f"loss{division}",
        "gradient_division": division if by_gradient else "",
        "clear": s.gradient.clear,
        "clip": clip_call(recipe, s, "torch.nn.utils.", "model.parameters()"),
        "clip_moment": s.clip.moment,
        "update_schedule": s.schedule.order if scheduled and s.schedule.cadence != "epoch" else None,
        "holds": s.schedule.on_skip == "hold",
        "micro_schedule": scheduled and s.schedule.cadence == "micro",
        "epoch_schedule": scheduled and s.schedule.cadence == "epoch",
        "drops": s.accumulation.tail == "drop" and k > 1,
        "evaluate": recipe.evaluate
        and {
            "every": recipe.evaluate.every,
            "mode": s.evaluate.mode,
            "preserves": s.evaluate.rng == "preserved",
            "clears": s.evaluate.gradients == "cleared",
        },
    }


def _window(side: Side) -> str:
    """How many micro-batches a window holds, as an expression."""
    k, recipe = side.recipe.accumulation, side.recipe
    if side.semantics.accumulation.tail == "flush":
        return f"min({k}, len(loader) - index // {k} * {k})"
    if side.semantics.accumulation.tail == "carry" and recipe.epochs is not None:
        return f"min({k}, {recipe.epochs} * len(loader) - micro // {k} * {k})"
    return str(k)


def _divisors(side: Side) -> list[str]:
    """What a loss is divided by, one number after another; a division by 1 is left out."""
    k, s = str(side.recipe.accumulation), side.semantics.accumulation
    units = s.normalise.startswith("unit")
    short = side.recipe.accumulation > 1 and not _window(side).isdigit()
    micros = k if s.tail_divisor == "configured" or not short else "len(window)" if units else "held"
    found = {
        "sum": [],
        "micro_mean": [micros],
        "twice": [micros, micros],
        "unit_mean": ["units"],
        "unit_mean_twice": ["units", micros],
    }[s.normalise]
    return [number for number in found if number != "1"]


def _steps(side: Side) -> str:
    """Whether a micro-batch is followed by an update, as an expression; "" for always."""
    k, s = side.recipe.accumulation, side.semantics.accumulation
    if k == 1 or s.cadence == "micro":
        return ""
    if s.tail == "flush":
        return f"(index + 1) % {k} == 0 or index + 1 == len(loader)"
    if s.tail == "carry" and side.recipe.epochs is not None:
        return f"(micro + 1) % {k} == 0 or micro + 1 == {side.recipe.epochs} * len(loader)"
    if s.tail.startswith("carry"):
        return f"(micro + 1) % {k} == 0"
    return f"(index + 1) % {k} == 0"


def _units(which: str) -> str:
    return {
        "task": "(task.units(batch) if task.units else len(next(iter(batch.values()))))",
        "labels": 'int((batch["labels"] != -100).sum())',
        "samples": "len(next(iter(batch.values())))",
    }[which]


def _optimizer(side: Side) -> str:
    """The optimizer's construction. Parameters with other arguments are groups of their own."""
    recipe, s = side.recipe, side.semantics
    name = recipe.optimizer.name
    kind = {"sgd": "SGD", "adam": "Adam", "adamw": "Adam"}[name]
    if kind == "Adam" and s.optimizer.decay == "decoupled":
        kind = "AdamW"
    groups: dict[str, list[str]] = {}
    for parameter, hyper in side.hyper.items():
        if hyper.get("optimized", True):
            groups.setdefault(_arguments(kind.lower(), hyper, bare=_own_decay(side) is not None), []).append(parameter)
    kernel = "fused=True" if s.optimizer.kernel == "fused" else ""
    common = ", ".join(filter(None, (f"lr={recipe.optimizer.lr!r}", kernel)))
    own_rates = any("lr" in hyper for hyper in side.hyper.values())
    if len(groups) == 1 and not own_rates and sum(map(len, groups.values())) == len(side.hyper):
        return f"torch.optim.{kind}(model.parameters(), {', '.join(filter(None, (common, *groups)))})"
    listed = ", ".join(
        f"dict(params=[model.get_parameter(name) for name in {names!r}]{f', {arguments}' if arguments else ''})"
        for arguments, names in groups.items()
    )
    return f"torch.optim.{kind}([{listed}], {common})"


def _arguments(kind: str, hyper: Mapping[str, Any], *, bare: bool) -> str:
    """The arguments of one group that are not torch's own defaults; weight decay is left out where the loop does it."""
    stated = {key: tuple(value) if isinstance(value, list) else value for key, value in hyper.items()}
    if bare:
        stated["weight_decay"] = 0.0
    return ", ".join(
        f"{key}={stated[key]!r}" for key, usual in DEFAULTS[kind].items() if key in stated and stated[key] != usual
    )


def _own_decay(side: Side) -> float | None:
    """The weight decay that the loop applies by hand, since SGD in torch has no decoupled one."""
    if side.recipe.optimizer.name != "sgd" or side.semantics.optimizer.decay != "decoupled":
        return None
    values = {hyper.get("weight_decay", 0.0) for hyper in side.hyper.values()}
    if len(values) > 1:
        raise NoScript("no plain loop is written for decoupled decay of some parameters by SGD")
    return values.pop() or None


def _schedule(recipe: Recipe, s: Semantics, total: int) -> str:
    """The learning rate's factor as an expression of t; "" where there is no schedule."""
    if recipe.schedule is None:
        return ""
    warmup = recipe.schedule.warmup
    decay = max(1, total - warmup)
    gone = f"(t - {warmup})" if warmup else "t"
    left = f"1 - {gone} / {decay}" if s.schedule.formula == "progress" else f"({total} - t) / {decay}"
    after = {
        "constant": "1.0",
        "linear": f"max(0.0, {left})",
        "cosine": f"0.5 * (1 + math.cos(math.pi * ({gone} / {decay})))",
    }[recipe.schedule.name]
    return f"t / {warmup} if t < {warmup} else {after}" if warmup else after


def scaler_options(recipe: Recipe) -> str:
    options = vars(recipe.scaler or ScalerOptions())
    return "".join(f", {name}={value!r}" for name, value in options.items())


def _loading(recipe: Recipe, s: Semantics) -> str:
    drops = ", drop_last=True" if s.data.tail == "drop" else ""
    return drops + (", generator=torch.Generator()" if s.rng.loader_draws == "none" else "")


def clip_call(recipe: Recipe, s: Semantics, module: str, parameters: str) -> str:
    """The call that limits the gradients; "" for none."""
    if recipe.clip is None or recipe.clip.threshold == math.inf:
        return ""
    return f"{module}clip_grad_{s.clip.kind}_({parameters}, {recipe.clip.threshold!r})"


def _dtype(recipe: Recipe, s: Semantics) -> str:
    asked = recipe.precision.dtype
    return asked if s.precision.compute == "as_asked" or asked == "float32" else s.precision.compute


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )


def template(name: str) -> jinja2.Template:
    return _templates().get_template(f"{name}.py.jinja")
