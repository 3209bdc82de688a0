"""Which parts of its state a resumed run lacks: proven by the reference, resumed with the same parts left out.

The reference under the reading that makes it the candidate is interrupted at the point at which the resumed run takes
up, and resumed: with all parts it must be the uninterrupted reference (the control), with the right ones left out it
must be the resumed run. A part that was restored wrongly is replayed with the resumed run's own value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from diffs.first import Rules, differences
from diffs.trace import Trace, open_trace
from oracle.explain.engine import Explanation
from oracle.explain.standing import Standing, rules, stand
from oracle.replays import Replays
from oracle.report.phrases import listing
from oracle.result import At, Cause
from oracle.resume.tail import Point, batches, uninterrupted
from reference_loop.recipe import Recipe, to_dict
from reference_loop.semantics import RESUME_PARTS

MOST_ROUNDS = 6


@dataclass(frozen=True)
class Hypothesis:
    """What was not restored: part to the way in which it was not.

    `missing`: not at all. `taken`: to the value that the resumed run has there. `rate`, of optimizer and scheduler: not
    at all, while the first update uses the learning rate that the resumed run has. `inside`, of the cursor: as `taken`,
    and the first window began before it.
    """

    ways: frozenset[tuple[str, str]] = frozenset()

    @property
    def names(self) -> list[str]:
        """The parts."""
        return sorted(part for part, _ in self.ways)

    @property
    def parts(self) -> str:
        """As `resume.missing` names them."""
        return ",".join(self.names)

    @property
    def plain(self) -> int:
        """How many parts are simply missing."""
        return sum(way == "missing" for _, way in self.ways)

    def __len__(self) -> int:
        return len(self.ways)

    def joined(self, other: Hypothesis) -> Hypothesis:
        """Both together; of a part, the other's way."""
        return Hypothesis(frozenset(way for way in self.ways if way[0] not in other.names) | other.ways)

    def without(self, part: str) -> Hypothesis:
        """The same without a part."""
        return Hypothesis(frozenset(way for way in self.ways if way[0] != part))


@dataclass(frozen=True)
class Pair:
    """The two sides of a resume, from the point on.

    whole, resumed: the uninterrupted run's part and the resumed run, paired by address. everything: all of the former.
    full: the folder of the resumed run's own trace, with its tensors.
    broken_log: the update that reports a mean over updates on both sides of the interruption: of those after it alone,
        in the resumed run, which decides nothing. None if there is none.
    """

    point: Point
    whole: Trace
    resumed: Trace
    everything: Trace
    full: Path
    broken_log: int | None = None

    @cached_property
    def rules(self) -> Rules:
        """How the two sides are paired."""
        found = rules(self.whole, self.resumed)
        void = set() if self.broken_log is None else {(self.broken_log, "log", "metric")}
        return replace(found, void=found.void | void)


def possible(recipe: Recipe, point: Point) -> list[str]:
    """The parts that a run with this recipe has at a point."""
    has = {
        "accumulated_gradient": point.micro > 0,
        "ema": recipe.ema is not None,
        "scaler": recipe.precision.dtype == "float16",
        "scheduler": recipe.schedule is not None,
    }
    return [part for part in RESUME_PARTS if has.get(part, True)]


def everything(pair: Pair, recipe: Recipe) -> tuple[Cause, ...]:
    """The cause where the resumed run is the uninterrupted one from the first update on: it took up nothing."""
    at = next(differences(pair.whole, pair.resumed, pair.rules, decisive_only=True))
    return (
        Cause(
            knob="resume.missing",
            reference="",
            candidate=",".join(possible(recipe, pair.point)),
            status="confirmed",
            effect="semantic",
            at=At(update=at.address.update, moment=at.address.moment),
            evidence=("the resumed run is the uninterrupted one from the first update on, bit for bit",),
        ),
    )


@dataclass
class Naming:
    """Names the parts that a resumed run lacks.

    pair: what is to be explained. explanation: the reading that makes the reference the candidate.
    replays: of the reference. folder: for the resumed reference's runs. progress: told of each round.
    """

    pair: Pair
    explanation: Callable[[], Explanation]
    replays: Replays
    folder: Path
    progress: Callable[[str], None]
    silent: frozenset[tuple[str, str]] = frozenset()
    count: int = 0
    _known: dict[Hypothesis, Trace | None] = field(default_factory=dict)
    _standing: dict[Hypothesis, Standing] = field(default_factory=dict)

    @cached_property
    def understood(self) -> Explanation:
        """The reading under which the reference is the uninterrupted candidate, as far as one was found."""
        return self.explanation()

    @cached_property
    def exact(self) -> bool:
        """Whether the reference under that reading is the candidate, bit for bit."""
        found = self.understood
        return found.standing.decisive is None and not found.reading.pins

    @property
    def alone(self) -> bool:
        """Whether the reference can be interrupted and resumed: on one rank."""
        return len(self.pair.everything.processes) == 1

    @cached_property
    def control(self) -> bool:
        """Whether the reference's own resume is the reference's uninterrupted run."""
        if not self.alone:
            return False
        trace = self._run(Hypothesis())
        if trace is None:
            return False
        whole = uninterrupted(self.understood.replay.trace, self.pair.point, self.folder / "uninterrupted")
        return stand(whole, trace).decisive is None

    @cached_property
    def evident(self) -> dict[str, Any]:
        """The parts whose values are seen to differ where the resumed run begins, with what it has there instead."""
        return dict(_evident(self.pair))

    def causes(self) -> tuple[Cause, ...]:
        """The parts as one cause; none where nothing fits."""
        at = next(differences(self.pair.whole, self.pair.resumed, self.pair.rules, decisive_only=True), None)
        if at is None:
            return ()
        found, rivals = self._search() if self.exact and self.control else (None, ())
        proven = found is not None and self._stand(found).decisive is None
        if not proven:
            found, rivals = self._alike(), ()
        if found is None or not len(found):
            return ()
        return (
            Cause(
                knob="resume.missing",
                reference="",
                candidate=found.parts,
                status="confirmed" if proven and not rivals else "suggested",
                effect="semantic",
                at=At(update=at.address.update, moment=at.address.moment),
                identical_through_update=self.pair.resumed.last_update if proven else None,
                indistinguishable=tuple(f"resume.missing = {rival.parts}" for rival in rivals),
                evidence=tuple(self._evidence(found, proven)),
            ),
        )

    # Searching

    def _search(self) -> tuple[Hypothesis | None, tuple[Hypothesis, ...]]:
        """The parts without which the reference becomes the resumed run, and other sets that do so as well."""
        best = Hypothesis()
        for _ in range(MOST_ROUNDS):
            if self._stand(best).decisive is None:
                break
            singles = [best.joined(one) for one in self.singles if not set(one.names) <= set(best.names)]
            better = self._better(best, singles)
            if better is None:
                pairs = itertools.combinations(self.singles, 2)
                better = self._better(best, [best.joined(a).joined(b) for a, b in pairs if a.names != b.names])
            if better is None:
                return None, ()
            best = better
        for part in best.names:
            if self._stand(best.without(part)).key >= self._stand(best).key:
                best = best.without(part)
        rivals = {
            other.parts: other
            for other, standing in self._standing.items()
            if standing.key == self._stand(best).key and other.parts != best.parts and len(other) <= len(best)
        }
        return best, tuple(rivals.values())

    @cached_property
    def singles(self) -> list[Hypothesis]:
        """Every way in which one part alone may not have been restored."""
        ways = [(part, "missing") for part in RESUME_PARTS if self._possible(part)]
        ways += [(part, "taken") for part in self.evident]
        ways += [(part, "rate") for part in ("optimizer", "scheduler") if self._possible("scheduler")]
        if "cursor" in self.evident:
            ways.append(("cursor", "inside"))
        return [Hypothesis(frozenset({way})) for way in ways]

    def _possible(self, part: str) -> bool:
        return part in possible(self.understood.reading.recipe, self.pair.point)

    def _better(self, best: Hypothesis, options: list[Hypothesis]) -> Hypothesis | None:
        """The option that stands further than the best so far; what was left out comes before what is another value."""
        self._run_all(options)
        ranked = max(options, key=lambda one: (self._stand(one).key, one.plain), default=None)
        return ranked if ranked is not None and self._stand(ranked).key > self._stand(best).key else None

    def _stand(self, hypothesis: Hypothesis) -> Standing:
        if hypothesis not in self._standing:
            trace = self._run(hypothesis)
            # A run that cannot be made stands nowhere: it differs where the two sides do, at the latest.
            against = self.pair.whole if trace is None else trace
            reported = () if self.pair.broken_log is None else (("log", "metric"),)
            self._standing[hypothesis] = stand(against, self.pair.resumed, silent=self.silent.union(reported))
        return self._standing[hypothesis]

    def _alike(self) -> Hypothesis | None:
        """Where the reference is not the candidate: parts whose absence makes the same places differ, else what is
        evident."""
        wanted = {
            d.address for d in differences(self.pair.whole, self.pair.resumed, self.pair.rules, decisive_only=True)
        }
        if self.alone and self._run(Hypothesis()) is not None:
            self._run_all(self.singles)
            for option in self.singles:
                trace, control = self._run(option), self._run(Hypothesis())
                if trace is not None and control is not None:
                    found = differences(control, trace, rules(control, trace), decisive_only=True)
                    if {difference.address for difference in found} == wanted:
                        return option
        seen = set(self.evident) - ({"order"} if "cursor" in self.evident else set())
        return Hypothesis(frozenset((part, "taken") for part in seen)) if seen else None

    # Running

    def _run(self, hypothesis: Hypothesis) -> Trace | None:
        self._run_all([hypothesis])
        return self._known[hypothesis]

    def _run_all(self, hypotheses: list[Hypothesis]) -> None:
        if Hypothesis() not in self._known and hypotheses != [Hypothesis()]:
            self._run_all([Hypothesis()])  # it saves what the others resume
        wanted = [one for one in dict.fromkeys(hypotheses) if one not in self._known]
        if not wanted:
            return
        requests = [self._request(one) for one in wanted]
        self.progress(f"resuming the reference, {len(wanted)} way{'s' * (len(wanted) > 1)}")
        self.replays.count += len(requests)
        for one, request, outcome in zip(wanted, requests, self.replays.server.ask(requests), strict=True):
            self._known[one] = None if outcome["error"] else open_trace(request["folder"])

    def _request(self, hypothesis: Hypothesis) -> dict[str, Any]:
        self.count += 1
        reading = self.understood.reading
        return {
            "kind": "resumption",
            "timeout": None,
            "task": self.replays.task,
            "folder": str(self.folder / f"{self.count:03d}"),
            "recipe": to_dict(reading.recipe),
            "semantics": reading.semantics.flat(),
            "overrides": dict(reading.overrides),
            "capture": None,
            "budget_bytes": 0,
            "digest": self.replays.digest,
            "device": self.replays.device,
            "point": [self.pair.point.updates, self.pair.point.micro],
            "checkpoint": str(self.folder / "checkpoint"),
            "ways": dict(sorted(hypothesis.ways)),
            "values": self.evident,
            "rates": _first_rates(self.pair.resumed, self.pair.point.updates),
            "generators": str(self.pair.full),
        }

    # Saying

    def _evidence(self, found: Hypothesis, proven: bool) -> Iterator[str]:
        for part in found.names:
            if part in self.evident and part in _SEEN:
                yield _SEEN[part].format(**_facts(self.pair, part, self.evident[part]))
        other = [part for part, way in sorted(found.ways) if way in ("taken", "inside")]
        if proven and other:
            yield f"it holds when replayed with the resumed run's own {listing(other)}"
        if not self.exact:
            yield "the reference is not bit-identical to the uninterrupted candidate, so nothing is proven by replay"
        elif not self.alone:
            yield "the reference loop is not resumed on several ranks, so nothing is proven by replay"
        elif not self.control:
            yield "the reference does not resume to its own uninterrupted run here, so nothing is proven by replay"


_SEEN = {
    "parameter": "parameters at the start are not those of the checkpoint",
    "rng": "the random state at the first micro-batch is another",
    "cursor": "the first batch is the uninterrupted run's, {further}",
    "order": "the samples of the epoch come in another order",
    "scheduler": "the first learning rate is {candidate}, not {reference}",
    "scaler": "the scaler's {name} at the start is {candidate}, not {reference}",
}


def _facts(pair: Pair, part: str, value: Any) -> dict[str, Any]:
    if part == "cursor" and value is not None:
        count = abs(value)
        return {"further": f"{count} micro-batch{'es' if count > 1 else ''} {'later' if value > 0 else 'earlier'}"}
    if part == "scheduler" and value:
        name = next(iter(value))
        row = next(r for r in pair.whole.rows_at(("consume", "learning_rate")) if r.address.name == name)
        return {"candidate": value[name], "reference": row.content}
    if part == "scaler" and value:
        held = {row.address.name: row.content for row in pair.whole.rows_at(("start", "scaler"))}
        name = next((name for name in sorted(held, reverse=True) if value.get(name) != held[name]), "scale")
        return {"name": name, "candidate": value.get(name), "reference": held.get(name)}
    return {"further": "moved", "name": "state", "candidate": "another", "reference": "the uninterrupted run's"}


def _evident(pair: Pair) -> Iterator[tuple[str, Any]]:
    """Yield the parts that differ at the point itself, each with what a replay takes in its place."""
    whole, resumed = pair.whole, pair.resumed
    at = {difference.address[2:4] for difference in differences(whole, resumed, through_update=pair.point.updates - 1)}
    if at & {("start", "parameter"), ("start", "buffer")}:
        yield "parameter", str(pair.full)
    if ("start", "scaler") in at:
        yield "scaler", {row.address.name: row.content for row in resumed.rows_at(("start", "scaler"))}
    if ("start", "rng") in at:
        yield "rng", str(pair.full)
    yield from _data(pair)
    rates, meant = (_first_rates(side, pair.point.updates) for side in (resumed, whole))
    if rates and meant and rates != meant:
        yield "scheduler", rates


def _first_rates(trace: Trace, update: int) -> Mapping[str, float]:
    rows = trace.rows_at(("consume", "learning_rate"))
    return {row.address.name: row.content for row in rows if row.address.update == update}


def _common(ours: list[Any], theirs: list[Any]) -> int:
    """How many batches two sequences begin with in common."""
    return sum(1 for _ in itertools.takewhile(lambda both: both[0] == both[1], zip(ours, theirs, strict=False)))


def _data(pair: Pair) -> Iterator[tuple[str, Any]]:
    """Yield how the resumed run's batches lie in the uninterrupted run's, if they are others."""
    ours, theirs = list(batches(pair.whole).values()), list(batches(pair.resumed).values())
    if not theirs or not ours or ours[0] == theirs[0]:
        return
    everything = list(batches(pair.everything).values())
    here = len(everything) - len(ours)
    found = [at for at, one in enumerate(everything) if one == theirs[0]]
    alike = {at - here: _common(everything[at:], theirs) for at in found}
    if alike:
        yield "cursor", min(alike, key=lambda further: (-alike[further], abs(further), further))
    ids = [row.content for row in pair.resumed.rows_at(("batch", "batch_ids"))]
    if ids:
        yield "order", [one for batch in ids for one in batch]
