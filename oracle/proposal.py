"""`oracle init`: what a recording saw of a script, as a recipe, and a task file to be filled in.

A trace holds digests and numbers, no code: how a model is built, where data comes from and what a loss is made of are
the lines that remain to be written, and each of them says what it must give.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffs.trace import Row, Trace, open_trace
from oracle.errors import OracleError, OutputError
from oracle.result import write_text
from reference_loop.optimizers import DEFAULTS
from reference_loop.recipe import from_dict
from reference_loop.schedules import SCHEDULES, factor

KNOWN = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}
WARMUPS = 1000  # updates of warm-up that are looked for
TASK, RECIPE = "task.py", "recipe.toml"
FILL_IN, ASKED = "raise LookupError(", "to be filled in: "


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What is proposed.

    recipe: as `reference_loop.recipe.from_dict` takes it. unknown: what the recording does not say, in sentences.
    parameters, inputs: (name, shape, dtype) of the model's parameters, and of what it is called with.
    source: the recording.
    """

    recipe: dict[str, Any]
    unknown: tuple[str, ...]
    parameters: tuple[tuple[str, tuple[int, ...], str], ...]
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    source: str


def propose(folder: Path) -> Proposal:
    """Read a recording of a script.

    Raises:
        NotComparable: there is no trace. OracleError: nothing was trained in it.
    """
    with open_trace(folder) as trace:
        if not trace.has(("consume", "learning_rate")):
            raise OracleError(f"{folder} has no update: record a script that takes at least one step of an optimizer")
        unknown: list[str] = []
        inputs = _forms(trace, ("batch", "input"))
        recipe: dict[str, Any] = {
            **_length(trace, unknown),
            "batch_size": max((shape[0] for _, shape, _ in inputs if shape), default=1),
            "accumulation": _accumulation(trace),
        }
        if not any(shape for _, shape, _ in inputs):
            unknown.append("batch_size: the model is given no tensor with a first dimension")
        recipe |= _tables(trace, unknown)
        from_dict(recipe)
        return Proposal(
            recipe=recipe,
            unknown=tuple(unknown),
            parameters=_forms(trace, ("start", "parameter")),
            inputs=inputs,
            source=str(folder),
        )


def check_free(folder: Path) -> tuple[Path, Path]:
    """The two files of a folder, which is made, and in which neither is yet.

    Raises:
        OracleError: one of them is there already. OutputError: the folder cannot be made.
    """
    files = folder / TASK, folder / RECIPE
    for file in files:
        if file.exists():
            raise OracleError(f"{file} is there already: choose another folder with -o, or move it away")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {folder}: {error.strerror}: choose another folder with -o") from error
    return files


def write(found: Proposal, folder: Path) -> tuple[Path, Path]:
    """Write the task file and the recipe into a folder; returns both.

    Raises:
        OracleError, OutputError: as `check_free`, or they cannot be written.
    """
    files = check_free(folder)
    write_text(files[0], task_text(found))
    write_text(files[1], recipe_text(found))
    return files


def to_fill_in(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, what it must give) of a proposed task file."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if FILL_IN in line:
            yield number, json.loads(line.partition(FILL_IN)[2].rstrip().removesuffix(")")).removeprefix(ASKED)


def recipe_text(found: Proposal) -> str:
    """The recipe as TOML; what is not known is a comment at its top."""
    tables = {key: value for key, value in found.recipe.items() if isinstance(value, Mapping)}
    lines = [f"# Proposed by `oracle init` from {found.source}.", *(f"# Not known: {one}." for one in found.unknown)]
    lines += [f"{key} = {_toml(value)}" for key, value in found.recipe.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def task_text(found: Proposal) -> str:
    """The task file, with a line to fill in for each thing that no recording holds."""
    names = [name for name, _, _ in found.inputs] or ["x"]
    shown = ", ".join(f"{name} {list(shape[1:])} {dtype}" for name, shape, dtype in found.inputs) or "tensors by name"
    given = ", ".join(f"{name}=batch[{name!r}]" for name in names)
    sizes = "\n".join(f"    {name}  {list(shape)}  {dtype}" for name, shape, dtype in found.parameters)
    said = {
        "model": "return the model, untrained: its parameters are those listed above",
        "data": f"return a list or Dataset of dicts, each one sample: {shown}, and what the loss needs",
        "loss": f"return the loss of one batch, e.g. cross_entropy(model({given}), ..., reduction=reduction)",
    }
    asked = {key: json.dumps(ASKED + value, ensure_ascii=False) for key, value in said.items()}
    return TEMPLATE.format(source=found.source, sizes=sizes, **asked)


TEMPLATE = '''\
"""Proposed by `oracle init` from {source}; the lines that raise are to be filled in.

Parameters of the recorded model, with shape and dtype:

{sizes}
"""

from reference_loop.task import Task


def model():
    """A new model."""
    raise LookupError({model})


def train_data():
    """The samples."""
    raise LookupError({data})


def loss(model, batch, reduction):
    """The loss of one batch, a scalar; reduction is "mean" or "sum"."""
    raise LookupError({loss})


task = Task(name="recorded", model=model, train_data=train_data, loss=loss)
'''


# What a trace tells


def _length(trace: Trace, unknown: list[str]) -> dict[str, Any]:
    """`epochs` and `shuffle` where batches come again in the same order, else `updates`."""
    order: dict[tuple[int, int], list[bytes]] = {}
    for row in trace.processes[min(trace.processes)].rows_at(("batch", "input")):
        order.setdefault((row.address.update, row.address.micro), []).append(row.digest)
    batches = [tuple(digests) for _, digests in sorted(order.items())]
    for length in range(1, len(batches) // 2 + 1):
        if len(batches) % length == 0 and batches == batches[:length] * (len(batches) // length):
            return {"epochs": len(batches) // length, "shuffle": False}
    unknown.append("shuffle, epochs: no batch order repeats itself, so the length is given in updates")
    return {"updates": len(_rates(trace)), "shuffle": False}


def _accumulation(trace: Trace) -> int:
    """The most frequent number of micro-batches of an update."""
    micros: dict[int, set[int]] = {}
    for row in trace.processes[min(trace.processes)].rows_at(("backward", "objective")):
        micros.setdefault(row.address.update, set()).add(row.address.micro)
    sizes = Counter(map(len, micros.values()))
    return sizes.most_common(1)[0][0] if sizes else 1


def _tables(trace: Trace, unknown: list[str]) -> dict[str, Any]:
    """`optimizer`, `schedule`, `clip`, `precision`, `scaler`."""
    found: dict[str, Any] = {}
    rates = _rates(trace)
    found["optimizer"], name = _optimizer(trace, unknown)
    schedule, lr = _schedule(rates)
    if lr is None:
        unknown.append(f"schedule: no schedule of a recipe gives the learning rates {_few(rates)}")
        lr = rates[0] if rates else DEFAULTS[name]["lr"]
    elif schedule is not None:
        found["schedule"] = schedule
    found["optimizer"]["lr"] = lr
    asked = {row.address.name: row.content for row in trace.rows_at(("start", "hyperparameter"))}
    clip = {key: asked[key] for key in ("max_norm", "max_value") if asked.get(key) is not None}
    if clip:
        found["clip"] = dict([next(iter(clip.items()))])
    if (dtype := trace.manifest.get("autocast")) in ("bfloat16", "float16"):
        found["precision"] = {"dtype": dtype}
    scaler = {row.address.name: row.content for row in trace.rows_at(("start", "scaler"))}
    if "scale" in scaler and dtype == "float16":
        keys = ("growth_factor", "backoff_factor", "growth_interval")
        found["scaler"] = {"init_scale": scaler["scale"], **{key: scaler[key] for key in keys if key in scaler}}
    elif "scale" in scaler:
        unknown.append("scaler: a gradient scaler was used, which a recipe has for float16 alone")
    return found


def _optimizer(trace: Trace, unknown: list[str]) -> tuple[dict[str, Any], str]:
    """The table without the rate, and the algorithm's name."""
    classes = trace.manifest.get("optimizers", [])
    name = next((KNOWN[one] for one in classes if one in KNOWN), None)
    if name is None or len(classes) > 1:
        named = ", ".join(classes) or "none that a probe saw"
        unknown.append(f"optimizer: a recipe has one of sgd, adam and adamw, the script {named}")
    name = name or "sgd"
    stated: dict[str, list[Any]] = {}
    for row in trace.rows_at(("start", "hyperparameter")):
        parameter, _, argument = row.address.name.rpartition(".")
        if parameter and argument in DEFAULTS[name]:
            stated.setdefault(argument, []).append(row.content)
    table: dict[str, Any] = {"name": name}
    for argument, values in stated.items():
        if any(value != values[0] for value in values):
            unknown.append(f"optimizer.{argument}: parameters have several values of it, the recipe one")
        default = DEFAULTS[name][argument]
        if values[0] != (list(default) if isinstance(default, tuple) else default):
            table[argument] = values[0]
    return table, name


def _rates(trace: Trace) -> list[float]:
    """The first parameter's learning rate at each update."""
    rows: dict[str, dict[int, float]] = {}
    for row in trace.rows_at(("consume", "learning_rate")):
        rows.setdefault(row.address.name, {})[row.address.update] = float(row.content)
    first = next(iter(rows.values()), {})
    return [first[update] for update in sorted(first)]


def _schedule(rates: list[float]) -> tuple[dict[str, Any] | None, float | None]:
    """The schedule that gives these rates and the rate that it multiplies; (None, None): none does."""
    if not rates:
        return None, None
    if all(rate == rates[0] for rate in rates):
        return None, rates[0]
    total = len(rates)
    for warmup in range(min(total, WARMUPS)):
        for name in SCHEDULES:
            factors = [factor(name, warmup, t, total) for t in range(total)]
            base = max(rates) if warmup == 0 else next((r / f for r, f in zip(rates, factors, strict=True) if f), 0.0)
            if base and all(abs(rate - base * one) <= 1e-6 * base for rate, one in zip(rates, factors, strict=True)):
                return {"name": name, **({"warmup": warmup} if warmup else {})}, float(f"{base:.12g}")
    return None, None


def _forms(trace: Trace, place: tuple[str, str]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """(name, largest shape, dtype) of the tensors at a place, each name once."""
    found: dict[str, Row] = {}
    for row in trace.processes[min(trace.processes)].rows_at(place):
        name = row.address.name.partition("#")[0]
        if row.shape is not None and (name not in found or row.shape > (found[name].shape or ())):
            found[name] = row
    return tuple((name, row.shape or (), row.dtype or "") for name, row in found.items())


def _few(rates: list[float]) -> str:
    shown = ", ".join(f"{rate:.6g}" for rate in rates[:4])
    return shown + (f"... ({len(rates)})" if len(rates) > 4 else "")


def _toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)
