"""A profile as text and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oracle.profile.schema import Change, Entry, Profile, Source

KINDS = {
    "default": "default of",
    "argument": "passed:",
    "variable": "variable",
    "loop": "the user's loop",
    "hidden": "hidden",
}
"""How a source is introduced."""

Table = tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]


def tables(profile: Profile) -> Iterator[Table]:
    """Everything a profile says, as (title, headings, rows); what is empty is left out."""
    knobs = [(named(e), value(e), e.status, source(e.source), e.reason or ", ".join(e.probes)) for e in profile.knobs]
    numbers = [(n.name, said(n.recipe), said(n.trainer), source(n.source)) for n in profile.numbers]
    changes = [(c.subject, c.asked, c.seen, c.setting or "", _where(c)) for c in profile.changes]
    moves = [(m.setting, m.knob, m.before, m.after, m.probe) for m in profile.moves]
    every: tuple[Table, ...] = (
        ("Knobs", ("knob", "value", "status", "source", "shown by"), knobs),
        ("Numbers", ("name", "recipe", "trainer", "source"), numbers),
        ("Asked and seen", ("what", "asked", "seen", "with", "probes"), changes),
        ("What moves a knob", ("with", "knob", "from", "to", "probe"), moves),
        ("Unexplained", ("probe", "place"), list(profile.unexplained.items())),
        ("Not probed", ("probe", "reason"), list(profile.skipped.items())),
    )
    yield from (table for table in every if table[2])


def lines(profile: Profile) -> Iterator[str]:
    """The profile as text."""
    yield f"Semantics of {profile.title} ({_packages(profile)})"
    for title, _, rows in tables(profile):
        yield ""
        yield f"{title}:"
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            yield "  " + "  ".join(cells).rstrip()


def markdown(profile: Profile, command: str) -> str:
    """The profile as a page.

    command: what made it.
    """
    page = [f"# Semantics of {profile.title}", "", f"Measured with {_packages(profile)}. Made by `{command}`."]
    for title, headings, rows in tables(profile):
        page += ["", f"## {title}", "", _row(headings), _row(["---"] * len(headings))]
        page += [_row([_code(heading, cell) for heading, cell in zip(headings, row, strict=True)]) for row in rows]
    return "\n".join(page) + "\n"


def named(entry: Entry) -> str:
    """The knob, with what was asked and the kind of model where its value depends on them."""
    more = [f"asked {entry.asked}" if entry.asked else "", entry.model or ""]
    words = ", ".join(filter(None, more))
    return f"{entry.knob} ({words})" if words else entry.knob


def value(entry: Entry) -> str:
    """The value, or those that are left."""
    return entry.value or " or ".join(entry.left) or "-"


def source(found: Source | None) -> str:
    """Where a value comes from, in words."""
    if found is None:
        return ""
    return f"{KINDS[found.kind]} {found.name}={found.value}" if found.name else KINDS[found.kind]


def said(value: object) -> str:
    """A number; none where there is none."""
    return "none" if value is None else str(value)


def _where(change: Change) -> str:
    return ", ".join(change.probes) if len(change.probes) < 4 else f"{len(change.probes)} probes"


def _packages(profile: Profile) -> str:
    return ", ".join(f"{name} {version}" for name, version in profile.versions.items())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(heading: str, cell: str) -> str:
    """What is code on the page: names and values of knobs."""
    cell = cell.replace("|", "\\|")
    if heading not in ("knob", "value", "from", "to") or cell == "-":
        return "" if cell == "-" else cell
    name, space, rest = cell.partition(" (")
    return f"`{name}`{space}{rest}"
