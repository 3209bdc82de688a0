"""What is known of a candidate while it is explained: causes, gaps, and the reference run that stands nearest to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diffs.first import Difference
from diffs.trace import Trace
from oracle.explain.standing import Standing
from oracle.replays import Reading, Replay
from reference_loop.semantics import Effect

Places = frozenset[tuple[str, str]]
"""(moment, kind) pairs."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A decision that the candidate makes otherwise.

    at: the first decisive difference that it removes (of a style without any: the first one).
    origin: the first difference of any kind, if it removes that as well.
    parameters: whom a number concerns; empty for knobs, and where it concerns all.
    alternatives: options that do exactly as well.
    thin: why the replay alone does not prove it; "" if it does.
    """

    knob: str
    reference: Any
    candidate: Any
    effect: Effect
    at: Difference
    origin: Difference | None = None
    parameters: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    thin: str = ""

    @property
    def label(self) -> str:
        """The decision in short: "knob = value"."""
        return f"{self.knob} = {self.candidate}"


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A difference that nothing explains, and what was replayed and is not it.

    reading, trace: the reference run that differs there. like: decisions of the same effect that are refuted, because
        they change what agrees.
    """

    at: Difference
    reading: Reading
    trace: Trace
    tried: tuple[str, ...]
    like: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What the candidate's differences come from.

    reading: the candidate as it is understood. replay, standing: the reference run under it, and how it stands.
    causes, gaps: in the order in which they were met. latent: witnesses that differ without any decisive effect.
    silent: places whose differences say nothing: the candidate does not repeat them, or they are noted already and
        cannot be pinned.
    blind: whether batches differ unexplained, so that what they lead to cannot be read any more.
    before: the explanation before the first step that was taken at the present decisive difference; a step that does
        not remove it is only worth something if a later one does.
    """

    reading: Reading
    replay: Replay
    standing: Standing
    causes: tuple[Found, ...] = ()
    gaps: tuple[Gap, ...] = ()
    latent: tuple[Difference, ...] = ()
    silent: Places = frozenset()
    blind: bool = False
    before: Explanation | None = None

    @property
    def target(self) -> Difference:
        """The difference to explain next: the first decisive one, or else the first of any kind."""
        found = self.standing.decisive or self.standing.first
        assert found is not None
        return found

    @property
    def untouched(self) -> Explanation:
        """The explanation before anything was adopted at the present decisive difference."""
        if self.before is None or self.standing.decisive is None:
            return self
        return self.before if self.before.standing.key[0] == self.standing.key[0] else self
