"""Whether a trainer trains with another batch, type, device, setting or order than it was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracle.profile.facts import Facts
from oracle.profile.look import Seen
from oracle.profile.probes import Probe
from oracle.profile.schema import Change

SUBJECTS = ("batch size", "accumulation", "precision", "device", "backend", "sampler")


def changes(seen: Mapping[str, Seen], probes: Mapping[str, Probe], setting: str | None = None) -> Iterator[Change]:
    """A row for each subject and each thing that was asked of it and seen.

    What stays as each recipe states it is one row. Precision and order are read off the replays, so they are known only
    where one is equal to the run; the rest is read off the recorded runs.
    """
    rows: dict[tuple[str, str, str], list[str]] = {}
    for probe, one in seen.items():
        for subject, asked, found in _rows(one, probes[probe]):
            rows.setdefault((subject, asked, found), []).append(probe)
    for subject in SUBJECTS:
        for (about, asked, found), where in rows.items():
            if about == subject:
                yield Change(subject=subject, asked=asked, seen=found, probes=tuple(where), setting=setting)


def _rows(one: Seen, probe: Probe) -> Iterator[tuple[str, str, str]]:
    recipe, facts = probe.recipe, one.facts
    if facts.batch_size is not None:
        yield _stated("batch size", recipe.get("batch_size", 2), facts.batch_size)
    if facts.accumulation is not None:
        yield _stated("accumulation", recipe.get("accumulation", 1), facts.accumulation)
    if one.gap is None and "precision.compute" in one.values:
        asked, found = one.asked["precision.compute"], one.values["precision.compute"]
        yield "precision", asked, asked if found == "as_asked" else found
    if facts.devices:
        yield "device", "cpu", ", ".join(facts.devices)
        settings = [(f"{name} = {before}", f"{name} = {after}") for name, (before, after) in facts.settings.items()]
        for asked, found in settings or [("as it was set", "as it was set")]:
            yield "backend", asked, found
    if one.gap is None and "data.order" in one.values:
        yield "sampler", one.asked["data.order"], one.values["data.order"]


def _stated(subject: str, asked: int, found: int) -> tuple[str, str, str]:
    """The numbers where they differ; where they do not, that they are the recipe's."""
    if asked == found:
        return subject, "as the recipe states", "as the recipe states"
    return subject, str(asked), str(found)


def shrunk(asked: int, facts: Facts, words: str | None, setting: str | None, probe: str) -> Change:
    """What becomes of a batch for which there is no memory.

    words: how the run ended; None where it trained to its end.
    """
    seen = f"{facts.batch_size}" if words is None and facts.batch_size is not None else f"it ends: {words}"
    return Change(subject="batch size", asked=str(asked), seen=seen, probes=(probe,), setting=setting)
