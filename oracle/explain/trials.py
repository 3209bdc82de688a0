"""Replays for the sake of comparing them with one candidate, each made once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diffs.first import Difference, differences
from diffs.trace import Trace
from oracle.explain.explanation import Places
from oracle.explain.standing import Standing, rules, stand
from oracle.replays import Reading, Replay, ReplayFailed, Replays

MOST_READINGS = 800


class Trials:
    """Reference runs held against one candidate's trace."""

    def __init__(self, replays: Replays, candidate: Trace) -> None:
        self.replays, self.candidate = replays, candidate
        self._known: dict[str, Replay | ReplayFailed] = {}

    @property
    def exhausted(self) -> bool:
        """Whether so much was tried that more of it is not worth its time."""
        return self.replays.readings > MOST_READINGS

    def run(self, readings: Sequence[Reading], through: int | None = None) -> list[Replay | None]:
        """Replay readings, those that were replayed before excepted; None for one that the reference cannot train."""
        keys = [_key(reading, through) for reading in readings]
        new = {key: reading for key, reading in zip(keys, readings, strict=True) if key not in self._known}
        self._known.update(zip(new, self.replays.run(*new.values(), through=through), strict=True))
        runs = (self._known[key] for key in keys)
        return [run if isinstance(run, Replay) else None for run in runs]

    def one(self, reading: Reading) -> Replay | None:
        """Replay one reading to the end."""
        return self.run([reading])[0]

    def made(self, reading: Reading, through: int | None) -> bool:
        """Whether this was replayed."""
        return _key(reading, through) in self._known

    def stand(self, replay: Replay, silent: Places, through: int | None = None) -> Standing:
        """How a replay compares with the candidate, up to an update or to the end."""
        return stand(replay.trace, self.candidate, silent=silent, through=through)

    def decisive(self, replay: Replay, through: int | None = None) -> Iterator[Difference]:
        """The decisive differences of a replay, in causal order."""
        how = rules(replay.trace, self.candidate)
        return differences(replay.trace, self.candidate, how, decisive_only=True, through_update=through)


def _key(reading: Reading, through: int | None) -> str:
    return f"{through} {reading}"
