"""A plain PyTorch script that shows one cause without this project.

It holds the task's own source, a loop by hand under the reference's meaning, the trainer's call, and the loop again
with the trainer's meaning. A reader need believe nothing of ours: it imports torch and the trainer alone.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle import trainers
from oracle.report import sources
from oracle.report.loop import NoScript, Side, clip_call, facts_of, loop, scaler_options, template
from reference_loop.plan import planned_updates, updates_per_epoch
from reference_loop.recipe import Recipe, Table


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a script is about.

    task: the task's file. trainer: as it was asked for. versions: of the candidate's environment.
    title: what the trainer does, as one sentence.
    besides: what it does otherwise, too, a clause each.
    plain, marked: without and with the cause. asked: what the trainer was asked for.
    samples: of the training data. threads: of torch.
    """

    task: Path
    trainer: str
    versions: Mapping[str, str]
    title: str
    besides: tuple[str, ...] = ()
    plain: Side
    marked: Side
    asked: Side
    samples: int
    threads: int = 1


def script(case: Case) -> str:
    """The script's source.

    Raises:
        NoScript: something in it cannot be written as a plain loop.
    """
    task = sources.inlined(case.task, replaced=("reference_loop.task",))
    call, trainer_file = _trainer(case, task)
    plain = loop(case.plain, case.samples, "plain_loop", "The loop by hand, as it is meant.")
    marked = loop(case.marked, case.samples, "marked_loop", "The same loop, deciding as the trainer decides.")
    if plain.splitlines()[2:] == marked.splitlines()[2:]:
        raise NoScript("the two meanings train alike: what differs is not training")
    plain, marked = _marked(plain, marked)
    body = task.body + (trainer_file.body if trainer_file else "")
    numpy = "numpy" in task.modules | (trainer_file.modules if trainer_file else set())
    text = template("script").render(
        title=case.title,
        besides=case.besides,
        needs="torch" if trainers.is_file(case.trainer) else f"torch and {case.trainer}",
        install=" ".join(_requirements(case)),
        threads=case.threads,
        seed=case.asked.recipe.seed,
        task=task.body,
        trainer_file=trainer_file.body if trainer_file else "",
        numpy=numpy,
        same_order="SameOrder(" in plain + marked,
        expected=plain,
        observed=marked,
        trainer=call,
        imports=_imports(call + plain + marked + body, case, numpy),
    )
    return _tidy(text)


def _requirements(case: Case) -> Iterator[str]:
    names = ["torch"] if trainers.is_file(case.trainer) else ["torch", case.trainer]
    for name in names:
        version = case.versions.get(name, "").partition("+")[0]
        yield f"{name}=={version}" if version else name


def _imports(body: str, case: Case, numpy: bool) -> list[str]:
    """Import statements for the modules that the script's own lines use."""
    always = ["contextlib", "random", "types"]
    used = [name for name in ("functools", "inspect", "itertools", "math", "pathlib", "tempfile") if f"{name}." in body]
    public = [] if trainers.is_file(case.trainer) else [case.trainer]
    if "accelerate.utils." in body:
        public.append("accelerate.utils")
    others = [*(["numpy"] if numpy else []), "torch", *public]
    hooks = "from torch.optim.optimizer import register_optimizer_step_post_hook"
    return [*(f"import {name}" for name in sorted({*always, *used})), "", *(f"import {name}" for name in others), hooks]


def _marked(plain: str, marked: str) -> tuple[str, str]:
    """Both loops with a mark at every line that the other lacks."""
    sides = plain.splitlines(), marked.splitlines()
    lines = [list(side) for side in sides]
    matcher = difflib.SequenceMatcher(None, sides[0][2:], sides[1][2:], autojunk=False)
    for tag, *places in matcher.get_opcodes():
        if tag != "equal":
            for side, (start, end) in zip(lines, (places[:2], places[2:]), strict=True):
                for index in range(start + 2, end + 2):
                    side[index] += "  # <-"
    return "\n".join(lines[0]), "\n".join(lines[1])


# The trainer


def _trainer(case: Case, task: sources.Inlined) -> tuple[str, sources.Inlined | None]:
    """The function that trains by the trainer, and the trainer's own file where it has one."""
    facts = {**facts_of(case.asked, case.samples), "k": case.asked.recipe.accumulation}
    if trainers.is_file(case.trainer):
        return _in_house(case, task, facts)
    if case.trainer not in PUBLIC:
        raise NoScript(f"no script is written for trainer {case.trainer!r}; it is for {', '.join(PUBLIC)} and files")
    return template(case.trainer).render(facts, **PUBLIC[case.trainer](case)).rstrip("\n"), None


def _in_house(case: Case, task: sources.Inlined, facts: dict[str, Any]) -> tuple[str, sources.Inlined]:
    path, _, name = case.trainer.rpartition(":")
    file = sources.inlined(Path(path))
    if file.names & (task.names | OWN_NAMES):  # one namespace cannot hold both
        file = sources.imported(Path(path), name)
    recipe, uses = case.asked.recipe, sources.attributes(Path(path))
    call = template("inhouse").render(
        facts,
        trainer_class=name,
        uses=uses,
        evaluates=bool(uses & {"eval_data", "eval_loader", "evaluate"}),
        recipe_code=_recipe(recipe),
        total=planned_updates(recipe, case.asked.semantics, case.samples),
        per_epoch=updates_per_epoch(recipe, case.asked.semantics, case.samples),
        scaler_arguments=scaler_options(recipe) if recipe.precision.dtype == "float16" else ", enabled=False",
    )
    return call.rstrip("\n"), file


OWN_NAMES = frozenset(
    {"Task", "SEED", "TRAINED", "start_generators", "new_model", "new_data", "recorded", "SameOrder", "plain_loop",
     "marked_loop", "with_trainer", "bits", "first_difference", "show", "Job", "task"}
)  # fmt: skip
"""What the script defines itself."""


def _recipe(recipe: Recipe) -> str:
    """A recipe's fields as attributes of a namespace, a line each; absent tables are None."""
    lines = []
    for name, value in vars(recipe).items():
        if isinstance(value, Table):
            inner = ", ".join(f"{key}={_literal(held)}" for key, held in vars(value).items())
            lines.append(f"        {name}=types.SimpleNamespace({inner}),")
        elif name != "accept":
            lines.append(f"        {name}={_literal(value)},")
    return "\n".join(["types.SimpleNamespace(", *lines, "    )"])


def _literal(value: Any) -> str:
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _accelerate(case: Case) -> dict[str, Any]:
    recipe = case.asked.recipe
    return {
        "mixed": {"float32": None, "bfloat16": "bf16", "float16": "fp16"}[recipe.precision.dtype],
        "scaler_options": scaler_options(recipe).removeprefix(", ") if recipe.scaler else "",
        "clip_call": clip_call(recipe, case.asked.semantics, "", "model.parameters()"),
    }


def _transformers(case: Case) -> dict[str, Any]:
    """The arguments as the adapter states them."""
    from oracle.adapters.transformers import by_arguments, optimizer_arguments, schedule_arguments

    recipe = case.asked.recipe
    arguments = {
        "seed": "SEED",
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.accumulation,
        "dataloader_drop_last": recipe.drop_last,
        **({"max_steps": recipe.updates} if recipe.updates is not None else {"num_train_epochs": recipe.epochs}),
        **({"max_grad_norm": recipe.clip.max_norm} if recipe.clip else {}),
        **({{"bfloat16": "bf16", "float16": "fp16"}[recipe.precision.dtype]: True}
           if recipe.precision.dtype != "float32" else {}),
        **optimizer_arguments(recipe.optimizer),
        **schedule_arguments(recipe.schedule),
    }  # fmt: skip
    written = {name: value if value == "SEED" else _literal(value) for name, value in arguments.items()}
    return {"arguments": written, "own_optimizer": not by_arguments(recipe.optimizer)}


PUBLIC: dict[str, Callable[[Case], dict[str, Any]]] = {"accelerate": _accelerate, "transformers": _transformers}
"""Public trainers that a template calls, with what it needs beside the loop's facts."""


def _tidy(text: str) -> str:
    """Never more than two empty lines; none at the end of a line."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.strip() or lines[-2:] != ["", ""]:
            lines.append(line.rstrip())
    source = "\n".join(lines).rstrip("\n") + "\n"
    try:
        compile(source, "script", "exec")
    except SyntaxError as error:
        raise NoScript(f"the task's and the trainer's text do not make one script: {error}") from error
    return source
