"""A report as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from oracle.report.outline import Outline, Paragraph, outline
from oracle.result import Result

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.25rem; border-left: .4rem solid var(--mark); padding-left: .75rem; }
h1.match { --mark: #2a8a4a; } h1.rounding { --mark: #b98900; } h1.diverged { --mark: #c0392b; }
h1.nondeterministic, h1.not_comparable { --mark: #777; }
th { text-align: left; font-weight: 600; padding-right: 1.5rem; vertical-align: top; white-space: nowrap; }
pre { padding: .75rem; overflow-x: auto; border: 1px solid #8885; border-radius: .25rem; }
"""


def render(result: Result) -> str:
    """The report as a page."""
    report = outline(result)
    return "\n".join(_lines(report, result.verdict)) + "\n"


def _lines(report: Outline, verdict: str) -> Iterator[str]:
    title = escape(report.headline)
    yield "<!doctype html>"
    yield '<html lang="en">'
    yield f'<head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>'
    yield "<body>"
    yield f'<h1 class="{escape(verdict)}">{title}</h1>'
    yield "<table>"
    yield from (f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in report.facts)
    yield "</table>"
    for group in report.groups:
        yield "<section>"
        for paragraph in group:
            yield from _paragraph(paragraph)
        yield "</section>"
    yield f"<p>Run again:</p><pre>{escape(report.command)}</pre>"
    yield "</body></html>"


def _paragraph(paragraph: Paragraph) -> Iterator[str]:
    yield f"<p><strong>{escape(paragraph.label)}:</strong> {escape(paragraph.text)}</p>"
    if paragraph.clauses:
        yield f"<ul>{''.join(f'<li>{escape(clause)}</li>' for clause in paragraph.clauses)}</ul>"
    if paragraph.quote:
        yield f"<pre>{escape(chr(10).join(paragraph.quote))}</pre>"
