"""What a bug report adds to a report in Markdown: versions, the smallest recipe, numbers, and a script."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from oracle.report import phrases
from oracle.report.phrases import Count
from oracle.result import FirstDivergence, Reproduction, Result

UNSTATED: Mapping[str, Any] = {
    "accept": [],
    "semantics": {},
    "precision": {"dtype": "float32"},
    "parallel": {"ranks": 1},
    "workers": 0,
    "drop_last": False,
}
"""What a recipe need not state."""


def sections(result: Result) -> Iterator[str]:
    """The lines of the added sections; none where nothing diverged."""
    if result.verdict != "diverged":
        return
    if found := result.reproduction:
        yield from _recipe(found, result)
        if found.numbers:
            yield from _numbers(found.numbers)
    yield from _versions(result)
    if found:
        yield from _script(found)


def _recipe(found: Reproduction, result: Result) -> Iterator[str]:
    yield from ("", "#### Smallest recipe", "")
    if found.reruns:
        yield f"The smallest that {Count(found.reruns):check} found to show `{found.cause}`:"
    else:
        yield f"Not made smaller (`--reruns 0`, or nothing to leave out). It shows `{found.cause}`:"
    yield ""
    yield from fenced(toml(found.recipe), "toml")
    yield from ("", "Saved as smallest.toml:", "")
    yield from fenced([_command(result)])


def _command(result: Result) -> str:
    """The command that checks the smallest recipe."""
    candidate, reference = result.candidate, result.reference
    words = ["oracle", "check", str(reference.get("task")), "--trainer", str(candidate.get("trainer"))]
    for name, value in (candidate.get("arguments") or {}).items():
        words += ["--argument", f"{name}={_literal(value)}"]
    for requirement in candidate.get("requirements") or ():
        words += ["--with", requirement]
    if candidate.get("python"):
        words += ["--python", candidate["python"]]
    return shlex.join([*words, "--recipe", "smallest.toml"])


def _numbers(numbers: tuple[FirstDivergence, ...]) -> Iterator[str]:
    first = numbers[0]
    yield from ("", "#### Numbers", "")
    when = phrases.moment(first.update, first.micro, first.moment, first.rank)
    yield f"With it, at {when}, the element of each value that differs most, in ULP:"
    yield ""
    yield "| value | element | reference | candidate | candidate / reference | ULP | differing |"
    yield "|---|---|---|---|---|---|---|"
    for one in numbers:
        element = f"({', '.join(map(str, one.index))})" if one.index else ""
        sides = [phrases.value(side, one.dtype) for side in (one.reference, one.candidate)]
        if one.missing is not None:
            sides[0 if one.missing == "reference" else 1] = "lacks it"
        ulp = "" if one.ulp is None else f"{Count(one.ulp)}"
        count = f"{one.differing} of {one.total}" if one.total else ""
        cells = [phrases.kind(one.kind, one.name), element, *sides, _ratio(one), ulp, count]
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _ratio(one: FirstDivergence) -> str:
    sides = (one.reference, one.candidate)
    plain = all(isinstance(side, int | float) and not isinstance(side, bool) and math.isfinite(side) for side in sides)
    return phrases.rounded(one.candidate / one.reference) if plain and one.reference else ""


def _versions(result: Result) -> Iterator[str]:
    versions = dict(result.candidate.get("versions") or {})
    if not versions:
        return
    yield from ("", "#### Versions", "")
    yield ", ".join(f"{name} {version}" for name, version in versions.items())
    if "device" in result.reference:
        yield from ("", f"Ran on {result.reference['device']}, {Count(result.reference.get('threads', 1)):thread}.")


def _script(found: Reproduction) -> Iterator[str]:
    yield from ("", "#### Without the oracle", "")
    if found.script is None:
        yield f"No script: {found.reason}."
        return
    yield "This script holds a loop by hand, the trainer, and the loop with the trainer's decision. It printed:"
    yield ""
    yield from fenced((found.output or "").strip("\n").splitlines())
    yield from ("", "<details><summary>script.py</summary>", "")
    yield from fenced(found.script.rstrip("\n").splitlines(), "python")
    yield from ("", "</details>")


def toml(recipe: Mapping[str, Any]) -> list[str]:
    """A recipe's dict as lines of a TOML file, without what need not be stated."""
    stated = {name: value for name, value in recipe.items() if UNSTATED.get(name, ...) != value}
    lines = [f"{name} = {_literal(value)}" for name, value in stated.items() if not isinstance(value, Mapping)]
    for name, table in stated.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_literal(value)}" for key, value in table.items())]
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _literal(key)


def _literal(value: Any) -> str:
    """A value in TOML. Results hold an infinite threshold as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_literal(held)}' for key, held in value.items())} }}"
    if isinstance(value, str) and value != "inf":
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


def fenced(lines: list[str], language: str = "") -> list[str]:
    """Lines in a code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence]
