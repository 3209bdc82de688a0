"""What people read: commands, pages and links agree with the code, and nothing is left unfinished."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from oracle.cli import cli
from oracle.result import Result
from reference_loop.recipe import TABLES, Accept, Recipe, Table, from_dict
from reference_loop.semantics import KNOBS, Semantics

UNFINISHED = re.compile(r"\b(T[O]DO|F[I]XME|X[X]X)\b|raise NotImplemented[E]rror")
OWN = ("benchmarks", "diffs", "docs", "fixtures", "oracle", "reference_loop", "tests")


def own_files(root: Path, *suffixes: str) -> Iterator[Path]:
    """Our files with these suffixes, at the top and in our folders."""
    for folder in (root, *(root / name for name in OWN)):
        for path in folder.glob("*") if folder == root else folder.rglob("*"):
            if path.suffix in suffixes and path.is_file() and "snapshots" not in path.parts:
                yield path


def pages(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in own_files(root, ".md")}


def helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """(full name, help text) of a command and all below it."""
    context = click.Context(command, parent, name, terminal_width=100, **command.context_settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for sub in sorted(command.commands):
            yield from helps(command.commands[sub], sub, context)


def command_page() -> str:
    """docs/commands.md: the help of every command, word for word."""
    intro = (
        "# Commands\n\nThe help of every command, word for word. After a change that is meant: "
        "`UPDATE_SNAPSHOTS=1 pytest tests/test_docs.py`.\n"
    )
    return intro + "".join(f"\n## {name}\n\n```\n{text}\n```\n" for name, text in helps(cli, "oracle"))


def test_every_command_is_documented(root: Path) -> None:
    page = root / "docs/commands.md"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        page.write_text(command_page())
    assert page.read_text() == command_page()


KNOBS_INTRO = """\
# Knobs

Every decision that is told apart, as `oracle list knobs --json` writes it. The first value is the textbook's; where the
recipe decides (`optimizer.decay`, `data.order`, `data.tail`, `clip.kind`), it is what the recipe asks for. A style
changes the arithmetic and not its meaning, so it never makes `diverged`. A value's source is a public page about a
trainer that has it, or about the rule. After a change that is meant: `UPDATE_SNAPSHOTS=1 pytest tests/test_docs.py`.
"""


def knob_page() -> str:
    """docs/knobs.md: every knob, and for each value its motive and its source."""
    page = KNOBS_INTRO
    for knob in KNOBS.values():
        style = " (style)" if knob.effect == "style" else ""
        page += f"\n## `{knob.name}`{style}\n\n| value | means | source |\n|---|---|---|\n"
        for value in knob.values:
            source = knob.citations[value]
            shown = f"`{value}`" if value else "(nothing)"
            page += f"| {shown} | {knob.motives[value]} | [{short(source)}]({source}) |\n"
    return page


def short(url: str) -> str:
    """What of a link is shown: the project and the thread, or the page's name."""
    thread = re.fullmatch(r"https://github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)", url)
    if thread:
        return f"{thread[1]} {thread[2]}"
    return url.partition("#")[0].rstrip("/").rpartition("/")[2].removesuffix(".html")


def test_every_knob_is_documented(root: Path) -> None:
    page = root / "docs/knobs.md"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        page.write_text(knob_page())
    assert page.read_text() == knob_page()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://github.com/a/b/pull/7", "b 7"),
        ("https://github.com/a/b/blob/main/src/c.py", "c.py"),
        ("https://docs.org/stable/optim.html#x", "optim"),
    ],
)
def test_a_link_is_shown_by_what_it_leads_to(url: str, shown: str) -> None:
    assert short(url) == shown


def recipe_rows(page: str) -> dict[str, dict[str, str]]:
    """For each table of a recipe that the page describes, its fields and what stands under `default`."""
    tables = {}
    for section in re.split(r"(?m)^## ", page)[1:]:
        title = section.partition("\n")[0].strip("`[]").replace("Top level", "")
        rows = re.findall(r"(?m)^\| `(\w+)` \| .* \| ?(.*?) ?\|$", section)
        tables[title] = {name: default.strip("`") for name, default in rows}
    return tables


def fields_of(table: type[Table]) -> list[dataclasses.Field[object]]:
    return [column for column in dataclasses.fields(table) if column.name in table.rules]


def test_every_field_of_a_recipe_is_documented_with_its_default(root: Path) -> None:
    described = recipe_rows((root / "docs/recipe.md").read_text())
    for table in (Recipe, *TABLES.values(), Accept):
        known = described[table.title]
        assert set(known) & {column.name for column in dataclasses.fields(table)} >= {f.name for f in fields_of(table)}
        for column in fields_of(table):
            if column.default is dataclasses.MISSING:
                assert known[column.name] == "must be stated", (table.title, column.name)
            elif column.default is not None:
                assert known[column.name] == json.dumps(column.default), (table.title, column.name)


def test_the_recipe_of_the_page_is_one(root: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (root / "docs/recipe.md").read_text(), re.DOTALL)
    recipe = from_dict(tomllib.loads(text))
    assert Semantics.of(recipe).accumulation.normalise == "unit_mean"


def test_every_command_and_option_says_what_it_does() -> None:
    silent = []
    for name, command in {"oracle": cli, **cli.commands}.items():
        silent += [] if command.help else [name]
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.help:
                silent.append(f"{name} {parameter.opts[0]}")
    assert silent == []


def shown_commands(text: str) -> set[str]:
    """The oracle commands that a page tells to run, in code lines or in backquotes."""
    return set(re.findall(r"(?m)(?:^\s*(?:\$ )?|`)oracle ([a-z]+)", text))


def test_no_page_shows_a_command_that_does_not_exist(root: Path) -> None:
    unknown = {page: shown_commands(text) - set(cli.commands) for page, text in pages(root).items()}
    assert {page: names for page, names in unknown.items() if names} == {}


def test_a_command_that_a_page_shows_is_found() -> None:
    assert shown_commands("Run:\n\n    oracle check x\n\nor `oracle plan`, an oracle nods") == {"check", "plan"}


def broken_links(page: Path, text: str) -> list[str]:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    return [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_every_link_leads_somewhere(root: Path) -> None:
    assert {
        page: broken_links(root / page, text) for page, text in pages(root).items() if broken_links(root / page, text)
    } == {}


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("")
    text = "[a](there.md) [b](there.md#x) [c](gone.md) [d](https://example.com/x)"
    assert broken_links(tmp_path / "page.md", text) == ["gone.md"]


def test_every_page_in_docs_can_be_reached(root: Path) -> None:
    linked = {
        os.path.normpath((root / page).parent / link)
        for page, text in pages(root).items()
        for link in re.findall(r"\]\(([^)#\s]+)", text)
    }
    assert [str(path) for path in (root / "docs").rglob("*.md") if str(path) not in linked] == []


def test_every_make_target_is_explained_and_every_explained_one_exists(root: Path) -> None:
    makefile = (root / "Makefile").read_text()
    (phony,) = re.findall(r"(?m)^\.PHONY: (.*)$", makefile)
    explained = set(re.findall(r'@echo "make (\w+)', makefile))
    assert explained == set(phony.split()) - {"help", "setup"}
    for page, text in pages(root).items():
        assert set(re.findall(r"`make (\w+)", text)) <= set(phony.split()), page


def test_nothing_is_marked_unfinished(root: Path) -> None:
    files = [*own_files(root, ".py", ".md", ".toml", ".txt"), root / "Makefile"]
    assert [str(path) for path in files if UNFINISHED.search(path.read_text())] == []


@pytest.mark.parametrize("mark", ["# t_odo: later", "f_ixme", "x_xx"])
def test_an_unfinished_mark_is_found(mark: str) -> None:
    assert UNFINISHED.search(f"x = 1\n{mark.replace('_', '').upper()}\n")


def checked(folder: Path, *arguments: str) -> tuple[str, Result]:
    """What `oracle check` prints, and its result."""
    command = [sys.executable, "-m", "oracle", "check", *arguments, "--json", str(folder / "result.json")]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    result = Result.read(folder / "result.json")
    assert ran.returncode == result.exit_code, ran.stderr
    return ran.stdout, result


@pytest.mark.slow
def test_the_trainer_of_the_readme_does_what_the_readme_says(root: Path, tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    (tmp_path / "inhouse.py").write_text(source)
    _, healthy = checked(tmp_path, "regression", "--trainer", "inhouse.py:InHouse")
    assert healthy.verdict == "match"
    _, ragged = checked(tmp_path, "ragged_tail", "--trainer", "inhouse.py:InHouse")
    assert [(cause.knob, cause.candidate, cause.status) for cause in ragged.causes] == [
        ("accumulation.tail", "leak", "confirmed")
    ]


@pytest.mark.trainers
def test_the_report_of_the_readme_is_what_the_command_prints(root: Path, tmp_path: Path) -> None:
    shown, *_ = re.findall(r"```\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    command = shown.splitlines()[-1].split()
    assert command[:2] == ["oracle", "check"]
    printed, _ = checked(tmp_path, *command[2:])
    assert without_numbers(printed) == without_numbers(shown)


def without_numbers(report: str) -> list[str]:
    """A report's lines up to its command, less the values that another processor or a loaded one changes."""
    report = report.partition("Run again:")[0]
    return [re.sub(r"-?\d[\d.,]*", "N", line) for line in report.splitlines() if line]


STARTS = [["--help"], ["--version"], ["list", "knobs"], ["list", "tasks"], *([name, "--help"] for name in cli.commands)]


@pytest.mark.parametrize("arguments", STARTS, ids=" ".join)
def test_the_command_line_starts_without_torch(arguments: list[str]) -> None:
    script = f"""
import sys
from oracle.cli import main
code = main({arguments!r})
slow = sorted({{"torch", "numpy", "accelerate", "deepdiff", "rich"}} & set(sys.modules))
sys.exit(f"imported {{slow}}" if slow else code)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
