"""A result inside a job of GitHub Actions: an annotation where it fails, and the report in the job's summary.

Both happen by themselves where GITHUB_ACTIONS is "true", as it is in every job. Workflow commands and the summary:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from oracle.report import markdown, text
from oracle.report.outline import headline
from oracle.result import Result


def announce(result: Result) -> None:
    """Print the annotation of a result that fails, on the standard error, and add its report to the job's summary."""
    if not active():
        return
    if result.exit_code:
        title, told = f"oracle {result.command}: {headline(result)}", text.render(result)
        print(annotation(title, told, file=_file(result)), file=sys.stderr)
    summarise([markdown.render(result)])


def active() -> bool:
    """Whether this is a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotation(title: str, message: str, *, file: str | None = None, line: int | None = None) -> str:
    """The workflow command that shows an error beside a file of a pull request.

    file: a path, of which the part below the checkout counts. line: from 1 on.
    """
    properties = {"file": None if file is None else _below_checkout(file), "line": line, "title": title}
    stated = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value is not None)
    return f"::error {stated}::{_data(message)}"


def summarise(reports: Iterable[str]) -> None:
    """Add Markdown to the job's summary; a summary that cannot be written changes no verdict."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.writelines(f"{report}\n" for report in reports)


def _file(result: Result) -> str | None:
    """The file that a reader would look at: the trainer's, else the golden, else none."""
    path, colon, _ = str(result.candidate.get("trainer", "")).rpartition(":")
    if colon and path.endswith(".py"):
        return path
    return result.golden.file if result.golden else None


def _below_checkout(file: str) -> str:
    path, root = Path(file).resolve(), Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else file


def _data(message: str) -> str:
    return message.rstrip("\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
