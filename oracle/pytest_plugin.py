"""Fixtures of pytest that run the oracle and fail with its report.

It is loaded with every pytest of an environment that has the oracle, so it imports nothing until a fixture is used.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from oracle.check import Request
    from oracle.result import Result

FAILURES = pytest.StashKey[list[dict[str, str]]]()


@pytest.fixture
def oracle_check(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """Check a trainer against the reference loop: `oracle_check("regression", "trainer.py:Mine", updates=4)`.

    task, trainer: as `oracle check` takes them; paths are relative to pytest's root.
    recipe: a TOML file, by default the task's own. policy: noise, exact or ulp:N. requirements, python, timeout,
    threads, strict: as the options of `oracle check`. Every other keyword sets a value of the recipe, a dict a table:
    `optimizer={"lr": 0.1}`.

    Returns the result where it passes; fails with the report where it does not.
    """

    def check(
        task: str, trainer: str, *, recipe: str | None = None, policy: str = "noise", requirements: Any = (),
        python: str | None = None, timeout: float | None = None, threads: int = 1, strict: bool = False, **values: Any,
    ) -> Result:  # fmt: skip
        __tracebackhide__ = True
        with _at_root(request):
            from oracle.check import check

            asked = _request(
                task, trainer, recipe, values, policy=policy, requirements=tuple(requirements), python=python,
                timeout=timeout, threads=threads, strict=strict, command="check", more=(),
            )  # fmt: skip
            result = check(asked)
        return _passed(request, result)

    return check


@pytest.fixture
def oracle_resume(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """Interrupt a trainer and resume it: `oracle_resume("regression", "trainer.py:Mine", cut="2", epochs=1)`.

    cut: as `oracle resume --cut` takes it, by default `all`. death: how it dies. The rest is as of `oracle_check`.
    """

    def resume(
        task: str, trainer: str, *, cut: str | int = "all", death: str = "exception", recipe: str | None = None,
        requirements: Any = (), python: str | None = None, timeout: float | None = None, threads: int = 1,
        strict: bool = False, **values: Any,
    ) -> Result:  # fmt: skip
        __tracebackhide__ = True
        with _at_root(request):
            from oracle.resume import cuts
            from oracle.resume.command import resume

            chains = None if cut == "all" else [cuts.parse(str(cut), death)]
            cuts.check_death(death)
            asked = _request(
                task, trainer, recipe, values, policy="exact", requirements=tuple(requirements), python=python,
                timeout=timeout, threads=threads, strict=strict, command="resume",
                more=("--cut", str(cut), "--death", death),
            )  # fmt: skip
            result = resume(asked, chains, death=death)
        return _passed(request, result)

    return resume


@pytest.fixture
def oracle_golden(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """Hold a trainer against its golden: `oracle_golden("goldens/mine.golden.json")`.

    path: relative to pytest's root. policy: exact or noise. python, timeout: as the options of `oracle golden check`.
    """

    def golden(
        path: str | os.PathLike[str], *, policy: str = "exact", python: str | None = None, timeout: float | None = None
    ) -> Result:
        __tracebackhide__ = True
        with _at_root(request):
            from diffs.verdict import Policy
            from oracle.golden import command

            options = command.Options(policy=Policy.parse(policy), python=python, timeout=timeout)
            result = command.check(Path(path), options)
        return _passed(request, result)

    return golden


@contextmanager
def _at_root(request: pytest.FixtureRequest) -> Iterator[None]:
    """Be in pytest's root, where paths of a test mean the same whatever it is started from.

    What cannot be run as asked fails the test with that message alone.
    """
    from contextlib import chdir

    from diffs.verdict import PolicyError
    from oracle.errors import USAGE_ERRORS

    __tracebackhide__ = True
    try:
        with chdir(request.config.rootpath):
            yield
    except (*USAGE_ERRORS, PolicyError) as error:
        raise pytest.fail.Exception(f"error: {error}", pytrace=False) from None


def _request(
    task: str, trainer: str, recipe: str | None, values: Mapping[str, Any], *, policy: str, command: str,
    more: tuple[str, ...], **options: Any,
) -> Request:  # fmt: skip
    """What the library is asked, with the command line that means the same."""
    from diffs.verdict import Policy
    from oracle.check import Request
    from oracle.recipes import load_recipe
    from oracle.trainers import find_trainer

    find_trainer(trainer)
    sets = [f"{key}={_literal(value)}" for key, value in _flat(values)]
    words = ["oracle", command, task, "--trainer", trainer, *more]
    words += ["--recipe", recipe] if recipe else []
    words += [word for one in sets for word in ("--set", one)]
    words += [word for one in options["requirements"] for word in ("--with", one)]
    words += ["--policy", policy] if command == "check" and policy != "noise" else []
    words += ["--python", options["python"]] if options["python"] else []
    words += ["--threads", str(options["threads"])] if options["threads"] != 1 else []
    words += ["--strict"] if options["strict"] else []
    return Request(
        task=task,
        trainer=trainer,
        recipe=load_recipe(task, recipe, sets),
        policy=Policy.parse(policy),
        rerun=shlex.join(words),
        **options,
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of a nested mapping."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _literal(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _passed(request: pytest.FixtureRequest, result: Result) -> Result:
    """The result, if it passes; otherwise the test fails with its report."""
    __tracebackhide__ = True
    from oracle.report import markdown, text
    from oracle.report.outline import headline
    from oracle.testing import Differs

    if result.exit_code == 0:
        return result
    report, title = text.render(result), f"oracle {result.command}: {headline(result)}"
    failure = {"title": title, "text": report, "markdown": markdown.render(result)}
    request.node.stash.setdefault(FAILURES, []).append(failure)
    raise Differs(report, result)


# GitHub Actions


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Attach what failed to the report, with which it travels from a worker of xdist to where it is shown."""
    report = yield
    if report.when == "call" and report.failed and FAILURES in item.stash:
        report.oracle_failures = item.stash[FAILURES]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """In a job of GitHub Actions, annotate the tests that failed with a report, and add it to the job's summary."""
    reports = [one for one in terminalreporter.stats.get("failed", []) if getattr(one, "oracle_failures", None)]
    shown_elsewhere = hasattr(terminalreporter.config, "workerinput")  # a worker of xdist
    if not reports or shown_elsewhere or os.environ.get("GITHUB_ACTIONS") != "true":
        return
    from oracle.report import github

    for report in reports:
        file, line, _ = report.location
        file = str(terminalreporter.config.rootpath / file)
        for failure in report.oracle_failures:
            at = None if line is None else line + 1
            terminalreporter.write_line(github.annotation(failure["title"], failure["text"], file=file, line=at))
            github.summarise([failure["markdown"]])
