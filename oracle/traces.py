"""Two recordings held against each other: the first divergence, where it begins, and how it grows."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from diffs.address import Address
from diffs.captured import CapturedTensors, read_tensors
from diffs.first import Difference, Rules, differences
from diffs.tally import by_update, tally
from diffs.tensor import compare as compare_tensors
from diffs.trace import Trace, open_trace
from diffs.verdict import Verdict, passes
from oracle.diff import Found, Request
from oracle.errors import OracleError
from oracle.explain.evidence import clause, constant_ratio, described
from oracle.explain.site import find_site
from oracle.explain.standing import rules
from oracle.report import recordings
from oracle.result import Site

SCHEMA = 1
STEPPED = (("consume", "gradient"), ("consume", "learning_rate"), ("update", "parameter"))  # that a step left something
UNSTEPPED = (("forward", "loss"), ("backward", "objective"), ("backward", "gradient"))  # what decides without a step
GIVEN = (("consume", "learning_rate"), ("consume", "hyperparameter"))  # what an optimizer's step is given
DRAWN = (("start", "rng"), ("forward", "rng"), ("update", "rng"))  # where the state of generators is recorded
PARAMETER = ("update", "parameter")


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How far apart two runs are after an update.

    differing, total: parameters. relative: L2 distance over L2 norm of the reference's, over all parameters; None where
    they are not recorded in full.
    """

    update: int
    rank: int
    differing: int
    total: int
    relative: float | None = None


def compare_recordings(request: Request) -> Found:
    """Compare the traces in two folders.

    Raises:
        NotComparable: one of them is no trace, or they use different digests.
        OracleError: a rule for names is no regular expression.
    """
    with _opened(request.reference, request.rename) as left, _opened(request.candidate, request.rename) as right:
        return _compare(request, left, right)


def rename(rule: str, name: str) -> str:
    """A name after a rule "pattern=replacement", a regular expression as `re.sub` has it."""
    pattern, _, replacement = rule.partition("=")
    return re.sub(pattern, replacement, name)


def _opened(folder: Path, renames: tuple[str, ...]) -> Trace:
    for rule in renames:
        if "=" not in rule:
            raise OracleError(f"--rename {rule}: give pattern=replacement, as re.sub takes them")
    trace = open_trace(folder)
    for process in trace.processes.values():
        old = dict(process.names)
        for identifier, name in old.items():
            for rule in renames:
                try:
                    name = rename(rule, name)
                except re.error as error:
                    raise OracleError(
                        f"--rename {rule}: {error}: give pattern=replacement, as re.sub takes them"
                    ) from None
            process.names[identifier] = name
        _refuse_collisions(old, process.names, renames)
    return trace


def _refuse_collisions(old: dict[int, str], new: dict[int, str], renames: tuple[str, ...]) -> None:
    """Refuse rules under which two names become one: values would be compared with others than their own."""
    met: dict[str, int] = {}
    for identifier, name in new.items():
        if name in met:
            names = f"{old[met[name]]!r} and {old[identifier]!r}"
            raise OracleError(
                f"--rename {' '.join(renames)}: {names} both become {name!r}: give rules that keep them apart"
            )
        met[name] = identifier


def _compare(request: Request, left: Trace, right: Trace) -> Found:
    common = _common(left, right)
    micros = [{u: n for u, n in _micros(trace).items() if common is None or u in common} for trace in (left, right)]
    by_updates = micros[0] != micros[1]
    ranks = sorted(left.processes.keys() & right.processes.keys())
    how = rules(left, right)
    counted = tally(left, right)
    joined = Joined(by_updates, frozenset(ranks), common)
    unstepped = not any(trace.has(place) for trace in (left, right) for place in STEPPED)
    unseeded = _unseeded(left, right)
    first: Difference | None = None
    latent: list[Difference] = []
    if not counted.same:
        first, latent = _first(left, right, how, joined, unstepped)
        latent = [d for d in latent if d.address[3:5] not in unseeded]
    notes = list(_notes(left, right, joined, unseeded))
    verdict: Verdict = "match" if first is None else "diverged"
    if first is None and (counted.addresses == 0 or common == frozenset()):
        verdict = "not_comparable"
        notes.insert(0, "the two recordings have no update in common, and so nothing that was trained")
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "command": "diff",
        "kind": "recording",
        "verdict": verdict,
        "passed": passes(verdict, request.policy, None),
        "reference": str(request.reference),
        "candidate": str(request.candidate),
        "joined": "updates" if by_updates else "micro-batches",
        "ranks": ranks,
        "compared": {"updates": counted.updates, "addresses": counted.addresses, "unmatched": counted.unmatched},
        "first_divergence": None,
        "site": None,
        "evidence": [],
        "growth": [],
        "latent": [d.address._asdict() for d in latent],
        "notes": notes,
        "rerun": request.rerun,
    }
    if first is not None:
        with _in_full(request, first) as folders:
            sides = [_tensor(folder, first.address) for folder in folders]
        content["first_divergence"] = asdict(described(first, *sides))
        content["site"] = asdict(_site(left, right, first, unseeded))
        if sides[0] is not None and sides[1] is not None:
            ratio = constant_ratio(sides[0], sides[1])
            content["evidence"] = [clause(ratio)] if ratio is not None else []
        content["growth"] = [asdict(one) for one in _growth(request, left, right, ranks)]
    return Found(
        verdict=verdict,
        passed=content["passed"],
        content=content,
        lines=recordings.diff_lines(content, request.everything),
    )


def _first(
    left: Trace, right: Trace, how: Rules, joined: Joined, unstepped: bool
) -> tuple[Difference | None, list[Difference]]:
    """The first difference that makes a verdict, and the first of each place up to its update that makes none.

    unstepped: nothing of an optimizer's step is there on either side, so that losses and gradients on the way make it.

    A closure computes losses inside its optimizer's step, so what the step was given comes before the difference that
    these show: the learning rate and the optimizer's arguments.
    """
    first = None
    latent: dict[tuple[str, str], Difference] = {}
    for found in filter(joined, differences(left, right, how)):
        place = (found.address.moment, found.address.kind)
        if first is not None and found.address.update != first.address.update:
            break
        if found.decisive or (unstepped and place in UNSTEPPED):
            first = first or found
            if place in GIVEN and _in_closure(left, right) and not _before_a_step([first, *latent.values()]):
                first = found
                break
        else:
            latent.setdefault(place, found)
    return first, list(latent.values())


def _before_a_step(found: list[Difference]) -> bool:
    """Whether one of the differences is in the first loss of an update, which a closure computes before it moves."""
    return any(d.address.micro == 0 and d.address.kind != "rng" for d in found)


def _site(left: Trace, right: Trace, first: Difference, unseeded: set[tuple[str, str]]) -> Site:
    """Where the difference begins, and what agrees on the way in."""
    site = find_site(left, right, first, apart=unseeded)
    if (_drawn(left) | _drawn(right)) & {name for _, name in unseeded}:
        site = replace(site, agreeing_inputs=tuple(kind for kind in site.agreeing_inputs if kind != "rng"))
    if not _in_closure(left, right) or site.micro == 0:
        return site
    # Parameters move between the losses of one step, and no probe sees how.
    agreeing = tuple(kind for kind in site.agreeing_inputs if kind != "parameter")
    if first.address[2:4] in GIVEN:
        return Site(**first.address._asdict(), agreeing_inputs=agreeing)
    return replace(site, agreeing_inputs=agreeing)


def _in_closure(left: Trace, right: Trace) -> bool:
    """Whether an optimizer computed its losses itself, on both sides."""
    return all(trace.manifest.get("closure", False) for trace in (left, right))


def _micros(trace: Trace) -> dict[int, int]:
    """Micro-batches of each update of the first process."""
    rank = min(trace.processes)
    found: dict[int, set[int]] = {}
    for place in (("backward", "objective"), ("batch", "input"), ("forward", "rng")):
        for row in trace.processes[rank].rows_at(place):
            found.setdefault(row.address.update, set()).add(row.address.micro)
        if found:
            break
    return {update: len(micros) for update, micros in found.items()}


@dataclass(frozen=True)
class Joined:
    """What of two recordings is compared: is called with a difference.

    by_update: they accumulate differently, so only what belongs to whole updates. ranks: those that both have.
    updates: those that both have, where one was recorded in part or did not end; None for all.
    """

    by_update: bool
    ranks: frozenset[int]
    updates: frozenset[int] | None

    def __call__(self, difference: Difference) -> bool:
        address = difference.address
        if address.rank not in self.ranks:
            return False
        if self.updates is not None and address.moment != "start" and address.update not in self.updates:
            return False
        if (
            self.updates is not None
            and address.moment == "end"
            and None in (difference.reference, difference.candidate)
        ):
            return False
        counted = address.moment == "end" and address.name == "batches"
        return not self.by_update or (address.micro < 0 and not counted)


def _common(left: Trace, right: Trace) -> frozenset[int] | None:
    """The updates that both recorded, where one of them is in part; None where both are whole."""
    if not any(_in_part(trace) for trace in (left, right)):
        return None
    ours, theirs = (_updates(trace) for trace in (left, right))
    return ours & theirs


def _in_part(trace: Trace) -> bool:
    """Whether a recording leaves out updates that were trained, or ended before its run was over."""
    options = trace.manifest.get("options", {})
    bounded = (
        any(options.get(name) is not None for name in ("first", "last", "limit_bytes")) or options.get("every", 1) > 1
    )
    return bounded or not trace.complete or not trace.manifest.get("ended", True)


def _updates(trace: Trace) -> frozenset[int]:
    places = (("update", "parameter"), ("consume", "gradient"), ("consume", "learning_rate"), ("update", "rng"))
    return frozenset(row.address.update for place in places for row in trace.rows_at(place))


def _unseeded(left: Trace, right: Trace) -> set[tuple[str, str]]:
    """Generators that begin with another state on each side: (kind, name), under each name that they have."""
    ours, theirs = ({row.address.name: row.digest for row in t.rows_at(("start", "rng"))} for t in (left, right))
    apart = {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}
    recorded = {row.address.name for trace in (left, right) for place in DRAWN for row in trace.rows_at(place)}
    return {("rng", name) for name in recorded if _generator(name) in apart}


def _generator(name: str) -> str:
    """A generator's name without the number that a second forward pass of a micro-batch gives it."""
    return name.partition("#")[0]


def _drawn(trace: Trace) -> set[str]:
    """The generators whose state changed while the trace was recorded."""
    states: dict[str, set[bytes]] = {}
    for place in DRAWN:
        for row in trace.rows_at(place):
            states.setdefault(_generator(row.address.name), set()).add(row.digest)
    return {name for name, seen in states.items() if len(seen) > 1}


def _notes(left: Trace, right: Trace, joined: Joined, unseeded: set[tuple[str, str]]) -> Iterator[str]:
    drawn = _drawn(left) | _drawn(right)
    for name in sorted(drawn & {name for _, name in unseeded}):
        yield f"the generator of {name} begins with another state on each side: seed it"
    if joined.updates is not None:
        yield f"one of them is in part: only the {len(joined.updates)} updates that both recorded are compared"
    if joined.by_update:
        yield "the two accumulate differently: only what belongs to whole updates is compared"
    ours, theirs = left.processes.keys(), right.processes.keys()
    if ours != theirs:
        yield f"ranks {_listed(ours)} against {_listed(theirs)}: only {_listed(ours & theirs)} are compared"
    for side, trace in (("reference", left), ("candidate", right)):
        if not trace.manifest.get("ended", trace.complete):
            yield f"the {side}'s process did not end by itself: its trace ends with update {trace.last_update}"
        yield from (f"{side}: {note}" for note in trace.manifest.get("notes", ()))


def _listed(ranks: Any) -> str:
    return ", ".join(map(str, sorted(ranks)))


@contextmanager
def _in_full(request: Request, first: Difference) -> Iterator[tuple[Path, Path]]:
    """Two folders with the tensors at a place: those of the recordings, or of both commands run again."""
    if not request.again:
        yield request.reference, request.candidate
        return
    from oracle.rerun import rerun

    at = first.address
    with tempfile.TemporaryDirectory(prefix="oracle-") as name:
        sides = ((request.reference, "reference"), (request.candidate, "candidate"))
        left, right = (rerun(folder, Path(name) / side, at.update, {at.kind}) for folder, side in sides)
        yield left, right


def _tensor(folder: Path, address: Address) -> Any:
    return _captured(folder).get(address)


def _captured(folder: Path) -> CapturedTensors | dict[Address, Any]:
    return read_tensors(folder) if (folder / "tensors").is_dir() else {}


def _growth(request: Request, left: Trace, right: Trace, ranks: list[int]) -> Iterator[Growth]:
    """How many parameters differ after each update, and by how much where they were recorded in full."""
    ours, theirs = _captured(request.reference), _captured(request.candidate)
    for rank in ranks:
        kept: dict[int, list[Address]] = {}
        for address in ours:
            if address[2:4] == PARAMETER and address.rank == rank:
                kept.setdefault(address.update, []).append(address)
        for update, total, differing in by_update(left.processes[rank], right.processes[rank], PARAMETER):
            relative = _distance(ours, theirs, kept[update]) if len(kept.get(update, ())) == total else None
            yield Growth(update=update, rank=rank, differing=differing, total=total, relative=relative)


def _distance(ours: Any, theirs: Any, addresses: list[Address]) -> float | None:
    """L2 distance over L2 norm, over several tensors together."""
    apart = norm = 0.0
    for address in addresses:
        if address not in ours or address not in theirs or ours[address].shape != theirs[address].shape:
            return None
        found = compare_tensors(ours[address], theirs[address])
        size = float(ours[address].double().norm())
        apart, norm = apart + (found.relative_l2 * size) ** 2, norm + size**2
    return (apart / norm) ** 0.5 if norm else None
