"""A report for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterator

from oracle.report.outline import Outline, Paragraph, outline
from oracle.result import Result


def render(result: Result) -> str:
    """The report as plain text; its first line says it all."""
    return "\n".join(lines(outline(result))) + "\n"


def lines(report: Outline) -> Iterator[str]:
    """The lines of a report."""
    yield report.headline
    yield ""
    width = max((len(label) for label, _ in report.facts), default=0)
    for label, text in report.facts:
        yield f"  {label:<{width}}  {text}"
    for group in report.groups:
        yield ""
        for paragraph in group:
            yield from _paragraph(paragraph)
    yield ""
    yield "Run again:"
    yield f"  {report.command}"


def _paragraph(paragraph: Paragraph) -> Iterator[str]:
    yield f"{paragraph.label}: {paragraph.text}".rstrip()
    yield from (f"  {clause}" for clause in paragraph.clauses)
    yield from (f"  | {line}".rstrip() for line in paragraph.quote)
