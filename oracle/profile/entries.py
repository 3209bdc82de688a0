"""What the probes together prove of each knob."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from oracle.profile.look import RANKED, SEARCHED, Seen
from oracle.profile.probes import NEEDS
from oracle.profile.schema import Entry
from oracle.profile.sources import Sources
from reference_loop.semantics import KNOBS


def entries(seen: Mapping[str, Seen], sources: Sources) -> Iterator[Entry]:
    """An entry for each knob and each value that recipes ask of it; one for each kind of model where these differ."""
    understood = {probe: one for probe, one in seen.items() if one.gap is None}
    for name in SEARCHED:
        asked = dict.fromkeys(one.asked[name] for one in understood.values() if name in one.asked)
        if name == "precision.compute":
            asked.pop("float32", None)  # what is asked for by asking for nothing
        if not asked:
            yield Entry(knob=name, value=None, status="undetermined", reason="no probe could be explained")
        for ask in asked:
            told = {probe: one for probe, one in understood.items() if one.asked.get(name) == ask}
            shown = ask if len(asked) > 1 else None
            if _possible(name, ask, told):
                yield _entry(name, ask, shown, None, told, sources)
                continue
            for model in dict.fromkeys(one.model for one in told.values()):
                of_model = {probe: one for probe, one in told.items() if one.model == model}
                if len(_possible(name, ask, of_model)) < len(_values(name, ask)):
                    yield _entry(name, ask, shown, model, of_model, sources)


def _values(name: str, ask: str) -> tuple[str, ...]:
    """The values of a knob that mean different things on one rank; the type that is asked for has two names."""
    values = (value for value in KNOBS[name].values if f"{name} = {value}" not in RANKED)
    return tuple(value for value in values if name != "precision.compute" or value != ask)


def _possible(name: str, ask: str, told: Mapping[str, Seen]) -> list[str]:
    """The values that no probe excludes."""
    return [v for v in _values(name, ask) if not any(v in one.excluded[name] for one in told.values())]


def _entry(
    name: str, ask: str, shown: str | None, model: str | None, told: Mapping[str, Seen], sources: Sources
) -> Entry:
    """What the probes that ask for the same, of the same kind of model, say of a knob."""
    left = tuple(_possible(name, ask, told))
    entry = Entry(knob=name, asked=shown, model=model, value=None, status="undetermined")
    if not left:
        words = "; ".join(f"{one.values[name]} on {probe}" for probe, one in told.items() if one.excluded[name])
        return replace(entry, status="depends", reason=words)
    if len(left) == len(_values(name, ask)):
        return replace(entry, reason=_lacking(name, told))
    if len(left) > 1:
        words = f"no probe tells {', '.join(left[:-1])} from {left[-1]}{_for_want_of(name)}"
        return replace(entry, left=left, reason=words)
    (value,) = left
    probes = _fewest(name, value, told)
    source = sources.of(name, value, probes, value in (ask, "as_asked"))
    return replace(entry, value=value, status="confirmed", probes=probes, source=source)


def _lacking(name: str, told: Mapping[str, Seen]) -> str:
    replayed = sorted({value for one in told.values() for value in one.equal[name]})
    words = f"replayed as {', '.join(replayed)}, which differs in nothing" if replayed else "no probe depends on it"
    return words + _for_want_of(name)


def _for_want_of(name: str) -> str:
    return f": it takes {NEEDS[name]}, and no run of this trainer had that" if name in NEEDS else ""


def _fewest(name: str, value: str, told: Mapping[str, Seen]) -> tuple[str, ...]:
    """Probes that together exclude all other values, each adding to those before it."""
    chosen: list[str] = []
    left = {other for other in KNOBS[name].values if f"{name} = {other}" not in RANKED} - {value}
    for probe, one in sorted(told.items(), key=lambda item: -len(item[1].excluded[name])):
        if left & one.excluded[name]:
            chosen.append(probe)
            left -= one.excluded[name]
    return tuple(chosen)
