"""A report for a pull request's comment, a wiki page, or the issue tracker of whoever maintains a trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oracle.report.bug import fenced, sections
from oracle.report.outline import Outline, Paragraph, outline
from oracle.result import Result


def render(result: Result) -> str:
    """The report as Markdown."""
    return "\n".join([*_lines(outline(result)), *sections(result)]) + "\n"


def _lines(report: Outline) -> Iterator[str]:
    yield f"### {_escaped(report.headline)}"
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {label} | {_escaped(text)} |" for label, text in report.facts)
    for group in report.groups:
        for paragraph in group:
            yield ""
            yield from _paragraph(paragraph)
    yield ""
    yield "Run again:"
    yield ""
    yield from fenced([report.command])


def _paragraph(paragraph: Paragraph) -> Iterator[str]:
    yield f"**{paragraph.label}:** {_escaped(paragraph.text)}".rstrip()
    if paragraph.clauses:
        yield ""
        yield from (f"- {_escaped(clause)}" for clause in paragraph.clauses)
    if paragraph.quote:
        yield ""
        yield from fenced(list(paragraph.quote))


def _escaped(text: str) -> str:
    """Text in which names such as `_x_` and `<lambda>` stay as they are."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text)
