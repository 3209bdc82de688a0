"""Finds the readings under which the reference becomes the candidate, one cause after another.

The loop is always the same. A replay differs from the candidate at some place. Numbers that the candidate recorded are
taken over. Otherwise every decision whose plan departs by then is tried, alone, and the one after which the two agree
furthest is adopted; if several do equally well, each is followed. Where nothing helps, the place is noted as
unexplained, the candidate's values are pinned there, and the search goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from diffs.first import Difference, differences
from diffs.trace import Trace
from oracle.explain.numbers import Number, decay_as_a_whole, numbers, other_rates, taken
from oracle.explain.options import Option, Scene, options, pairs
from oracle.explain.standing import RULES, Standing, stand
from oracle.replays import Pin, Reading, Replay, ReplayFailed, Replays
from reference_loop.moments import MOMENTS
from reference_loop.semantics import KNOBS, Effect

MOST_CAUSES = 10
MOST_PAIRS = 24
MOST_BRANCHES = 3
MOST_READINGS = 200
ENOUGH_RATES = 3  # different learning rates that a fitted number has to meet

# What has to be recorded for a site to be one: all that enters it is then known to agree.
ENTERING = (
    ("batch", "input"),
    ("forward", "rng"),
    ("forward", "mode"),
    ("backward", "objective"),
    ("backward", "gradient"),
)

# Where the candidate's values are taken when a place stays unexplained: all that training reads behind it.
PINS: dict[str, tuple[tuple[str, str], ...]] = {
    "start": (("start", "parameter"), ("start", "buffer")),
    "batch": (("consume", "gradient"), ("update", "buffer")),
    "consume": (("consume", "gradient"), ("consume", "learning_rate")),
    "update": (("update", "parameter"), ("update", "buffer"), ("update", "optimizer_state"), ("update", "scaler")),
    "schedule": (("schedule", "learning_rate"), ("consume", "learning_rate")),
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A decision that the candidate makes otherwise.

    at: the first decisive difference that it removes (of a style without any: the first one).
    origin: the first difference of any kind, if it removes that as well.
    parameters: whom a number concerns; empty for knobs.
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


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A difference that nothing explains, and what was replayed and is not it."""

    at: Difference
    trace: Trace
    tried: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What the candidate's differences come from.

    reading: the candidate as it is understood. replay, standing: the reference run under it, and how it stands.
    causes, gaps: in the order in which they were met. latent: witnesses that differ without any decisive effect.
    before: the explanation before the first step that was taken at the present decisive difference; a step that does
        not remove it is only worth something if a later one does.
    """

    reading: Reading
    replay: Replay
    standing: Standing
    causes: tuple[Found, ...] = ()
    gaps: tuple[Gap, ...] = ()
    latent: tuple[Difference, ...] = ()
    before: Explanation | None = None

    @property
    def untouched(self) -> Explanation:
        """The explanation before anything was adopted at the present decisive difference."""
        if self.before is None or self.standing.decisive is None or self.before.standing.decisive is None:
            return self
        same = self.before.standing.decisive.address == self.standing.decisive.address
        return self.before if same else self


@dataclass
class Explainer:
    """Explains one candidate.

    candidate: its trace. unsteady: witnesses that it does not repeat itself.
    passed: decisive places that stay different because they are noted already and cannot be pinned: batches, and
        numbers that change in the course of the run.
    can_pin: whether its tensors are there in full.
    progress: told in a few words what is tried.
    """

    replays: Replays
    candidate: Trace
    unsteady: frozenset[tuple[str, str]] = frozenset()
    passed: frozenset[tuple[str, str]] = frozenset()
    can_pin: bool = True
    progress: Callable[[str], None] = lambda words: None
    _known: dict[str, Replay | ReplayFailed] = field(default_factory=dict)  # by what was asked

    def explain(self, reading: Reading, replay: Replay) -> Explanation:
        """Follow the differences from `replay`, the reference under `reading`, to the end."""
        start = Explanation(reading=reading, replay=replay, standing=self.stand(replay))
        return self._prune(self._follow(start))

    # One step

    def _follow(self, now: Explanation) -> Explanation:
        """The explanation carried on until nothing differs or nothing helps."""
        while not now.standing.clean and len(now.causes) + len(now.gaps) < MOST_CAUSES:
            read = self._read_numbers(now)
            if read is not None:
                now = read
                continue
            best = self._adopt(now)
            if len(best) == 1:
                now = best[0]
            elif best:
                return self._branch(now, best)
            elif now.standing.decisive is None:
                now = self._note_latent(now)
            else:
                now = now.untouched
                pinned = self._pin(now)
                if pinned is None:
                    return self._with_gap(now)
                now = pinned
        return now

    def _branch(self, now: Explanation, tied: list[Explanation]) -> Explanation:
        """Follow several equally good steps and keep the one that leaves least unexplained.

        Of the others only those stay as alternatives that lead as far with as few causes.
        """
        ends = [self._follow(step) for step in tied[:MOST_BRANCHES]]
        worth = [(-len(end.gaps), end.standing.key, -len(end.causes)) for end in ends]
        best = worth.index(max(worth))
        rivals = [
            _label(step.causes[len(now.causes) :])
            for place, step in enumerate(tied)
            if place != best and (place >= len(worth) or worth[place] == worth[best])
        ]
        step, end = tied[best], ends[best]
        added = range(len(now.causes), len(step.causes))
        causes = tuple(
            replace(cause, alternatives=tuple(rivals)) if place in added else cause
            for place, cause in enumerate(end.causes)
        )
        return replace(end, causes=causes)

    def _adopt(self, now: Explanation) -> list[Explanation]:
        """The best single decision, or pair of them; several if they do equally well; none if nothing helps."""
        target = now.standing.decisive or now.standing.first
        assert target is not None
        through = None if target.address.moment == "end" else max(target.address.update, 0)
        every: list[tuple[Option, ...]] = [(option,) for option in options(now.reading, now.replay.samples, through)]
        if now.standing.decisive is None:
            every = [choice for choice in every if KNOBS[choice[0][0]].effect == "style"]
        if ("batch", "input") in self.passed:  # batches differ unexplained: what they lead to cannot be read any more
            every = [choice for choice in every if choice[0][0].partition(".")[0] in ("schedule", "optimizer", "log")]
        tried: dict[tuple[Option, ...], None] = {}
        rated = False
        for choices in self._by_promise(now, every):
            fresh = [choice for choice in choices if choice not in tried]
            tried.update(dict.fromkeys(fresh))
            steps = self._try(now, fresh, through)
            if now.standing.decisive is None:  # a witness is only explained where it differs nowhere any more
                steps = [step for step in steps if not _same_place(step.standing.first, now.standing.first)]
            if not steps and not rated:
                rated, steps = True, self._try_rates(now)
            if steps:
                return steps
        return []

    def _by_promise(self, now: Explanation, every: list[tuple[Option, ...]]) -> Iterator[list[tuple[Option, ...]]]:
        """Choices in the order in which they are worth a replay.

        First those that can act where something first differs, then those that can act at the decisive difference, then
        two of them at once; and whatever is left, if the candidate's records do not show what enters the site.
        """
        sites = [site for site in dict.fromkeys((now.standing.first, now.standing.decisive)) if site is not None]
        replay = now.replay
        scenes = [
            Scene(now.reading, replay.samples, site, replay.trace, self.candidate, replay.units) for site in sites
        ]
        for scene in scenes:
            yield scene.likely(every)
        if now.standing.decisive is not None:
            for scene in scenes:
                two = list(pairs(scene.acting([option for (option,) in every])))
                yield scene.likely(two)[:MOST_PAIRS]
        if not all(self.candidate.has(place) for place in ENTERING):  # what enters the site is not known to agree
            yield every

    def _try(self, now: Explanation, choices: list[tuple[Option, ...]], through: int | None) -> list[Explanation]:
        """Replay each choice through the difference, the ones that get past it to the end, and return the best."""
        if not choices or self.replays.readings > MOST_READINGS:
            return []
        self.progress(f"trying {len(choices)} decisions at update {through}")
        readings = []
        for choice in choices:
            reading = now.reading
            for name, value in choice:
                reading = reading.with_knob(name, value)
            readings.append(reading)
        short = self._replay(readings, through)
        better = []
        for choice, reading, replay in zip(choices, readings, short, strict=True):
            if isinstance(replay, Replay):
                standing = self.stand(replay, through)
                if standing.key > now.standing.key:
                    better.append((standing.key, choice, reading))
        if not better:
            return []
        furthest = max(key for key, _, _ in better)
        leading = [(choice, reading) for key, choice, reading in better if key == furthest]
        full = self._replay([reading for _, reading in leading])
        ends = [
            (self.stand(replay), choice, reading, replay)
            for (choice, reading), replay in zip(leading, full, strict=True)
            if isinstance(replay, Replay)
        ]
        ends = [end for end in ends if end[0].key > now.standing.key]
        if not ends:
            return []
        best = max(standing.key for standing, *_ in ends)
        tied = [end for end in ends if end[0].key == best]
        return [self._step(now, end, [other[1] for other in tied if other is not end]) for end in tied]

    def _replay(self, readings: list[Reading], through: int | None = None) -> list[Replay | ReplayFailed]:
        """Replay readings, those that were replayed before excepted."""
        keys = [_key(reading, through) for reading in readings]
        new = {key: reading for key, reading in zip(keys, readings, strict=True) if key not in self._known}
        self._known.update(zip(new, self.replays.run(*new.values(), through=through), strict=True))
        return [self._known[key] for key in keys]

    def _step(self, now: Explanation, end: tuple[Any, ...], others: list[tuple[Option, ...]]) -> Explanation:
        standing, choice, reading, replay = end
        target = now.standing.decisive or now.standing.first
        assert target is not None
        alternatives = tuple(" and ".join(f"{name} = {value}" for name, value in other) for other in others)
        causes = tuple(
            Found(
                knob=name,
                reference=now.reading.semantics.value(name),
                candidate=value,
                effect=KNOBS[name].effect,
                at=target,
                origin=_removed(now.standing, standing),
                alternatives=alternatives,
                thin="it was found together with another one, not by itself" if len(choice) > 1 else "",
            )
            for name, value in choice
        )
        return replace(
            now,
            reading=reading,
            replay=replay,
            standing=standing,
            causes=now.causes + causes,
            before=now.untouched,
        )

    # Numbers

    def _read_numbers(self, now: Explanation) -> Explanation | None:
        """Take over the hyperparameters that differ by the update at hand; None if there are none."""
        target = now.standing.decisive
        if target is None:
            return None
        through = max(target.address.update, 0)
        found = [
            difference
            for difference in differences(
                now.replay.trace, self.candidate, RULES, decisive_only=True, through_update=through
            )
            if difference.address.kind == "hyperparameter"
        ]  # fmt: skip
        if not found:
            return None
        reading, causes = now.reading, now.causes
        known = {cause.knob for cause in causes}
        from_start = [difference for difference in found if difference.address.moment == "start"]
        if not from_start:
            return self._changes(now, found)
        for number in numbers(from_start):
            if f"hyperparameter.{number.name}" in known:
                continue
            other = _other_kind(reading, number)
            if other is not None:
                now_kind = reading.semantics.clip.kind
                kind = Found(knob="clip.kind", reference=now_kind, candidate=other, effect="semantic", at=target)
                causes += (kind,)
                reading = reading.with_knob("clip.kind", other)
                continue
            if number.name == "weight_decay":
                whole = decay_as_a_whole(reading, number)
                if whole is not None:
                    values = (_default_decay(reading, number), whole.recipe.optimizer.weight_decay)
                    causes += (self._number(number, target, values),)
                    reading = whole
                    continue
                by_set = self._decay_set(now, number)
                if by_set is not None:
                    causes += (by_set,)
                    reading = reading.with_knob(by_set.knob, by_set.candidate)
                    continue
            causes += (self._number(number, target),)
            reading = taken(reading, number)
        replay = self.replays.one(reading)
        standing = self.stand(replay)
        if standing.key == now.standing.key:  # taken over, and still the same: the record is not what it trains with
            return None
        return replace(now, reading=reading, replay=replay, standing=standing, causes=causes)

    def _changes(self, now: Explanation, found: list[Difference]) -> Explanation | None:
        """Note numbers that change in the course of the run; what they lead to is pinned: no replay follows it."""
        target = found[0]
        causes = tuple(
            replace(self._number(number, target), thin="it changes in the course of the run")
            for number in numbers(found)
        )
        if not self.can_pin:
            return None
        self.passed |= {("consume", "hyperparameter")}
        pins = tuple(Pin("consume", kind, target.address.update) for kind in ("gradient", "learning_rate"))
        update = tuple(
            Pin("update", kind, target.address.update) for kind in ("parameter", "buffer", "optimizer_state")
        )
        reading = replace(now.reading, pins=now.reading.pins + pins + update)
        (replay,) = self.replays.run(reading)
        if not isinstance(replay, Replay):
            return None
        return replace(now, reading=reading, replay=replay, standing=self.stand(replay), causes=now.causes + causes)

    def _number(self, number: Number, at: Difference, values: tuple[Any, Any] | None = None) -> Found:
        reference, candidate = values or (number.reference, number.candidate)
        names = tuple(name for name in number.values if name)
        everyone = len(names) >= len(self._everyone(number.name))
        return Found(
            knob=f"hyperparameter.{number.name}",
            reference=reference,
            candidate=candidate,
            effect="semantic",
            at=at,
            parameters=() if everyone else names,
        )

    def _everyone(self, name: str) -> set[str]:
        rows = (row.address.name for row in self.candidate.rows_at(("start", "hyperparameter")))
        return {row.rpartition(".")[0] for row in rows if row.rpartition(".")[2] == name}

    def _decay_set(self, now: Explanation, number: Number) -> Found | None:
        """The value of `optimizer.decay_set` that explains which parameters decay, if one does."""
        current = now.reading.semantics.optimizer.decay_set
        values = [value for value in KNOBS["optimizer.decay_set"].values if value != current]
        readings = [now.reading.with_knob("optimizer.decay_set", value) for value in values]
        fitting = []
        for value, replay in zip(values, self.replays.run(*readings, through=-1), strict=True):
            if isinstance(replay, Replay):
                left = differences(replay.trace, self.candidate, RULES, decisive_only=True, through_update=-1)
                if not any(d.address.name.endswith(".weight_decay") for d in left):
                    fitting.append(value)
        if not fitting:
            return None
        chosen = "names" if "names" in fitting else fitting[0]
        target = now.standing.decisive
        assert target is not None
        return Found(
            knob="optimizer.decay_set",
            reference=current,
            candidate=chosen,
            effect="semantic",
            at=target,
            parameters=tuple(number.values),
            alternatives=tuple(f"optimizer.decay_set = {value}" for value in fitting if value != chosen),
        )

    def _try_rates(self, now: Explanation) -> list[Explanation]:
        """Another base rate or schedule, where a learning rate is what differs."""
        target = now.standing.decisive
        if target is None or target.address.kind != "learning_rate":
            return []
        place, name = ("consume", "learning_rate"), target.address.name
        sides = [
            {row.address.update: row.content for row in trace.rows_at(place) if row.address.name == name}
            for trace in (now.replay.trace, self.candidate)
        ]
        rates = [(sides[0][update], sides[1][update]) for update in sorted(sides[0].keys() & sides[1].keys())]
        choices = other_rates(now.reading, rates)
        told = len({candidate for _, candidate in rates if candidate})
        constant = len(rates) > 1 and len(set(rates)) == 1  # then the rate is a plain number, read and not fitted
        thin = "" if constant or told >= ENOUGH_RATES else f"it rests on {told} different rates"
        ends = []
        for (label, old, new, reading), replay in zip(choices, self.replays.run(*(c[3] for c in choices)), strict=True):
            if isinstance(replay, Replay) and self._rates_agree(replay):
                cause = Found(
                    knob=f"hyperparameter.{label}",
                    reference=old,
                    candidate=new,
                    effect="semantic",
                    at=target,
                    thin=thin,
                )
                standing = self.stand(replay)
                ends.append(
                    replace(now, reading=reading, replay=replay, standing=standing, causes=(*now.causes, cause))
                )
        others = tuple(f"{end.causes[-1].knob} = {end.causes[-1].candidate}" for end in ends[1:])
        return [
            replace(end, causes=(*end.causes[:-1], replace(end.causes[-1], alternatives=others))) for end in ends[:1]
        ]

    def _rates_agree(self, replay: Replay) -> bool:
        """Whether every learning rate is the candidate's, to the end."""
        found = differences(replay.trace, self.candidate, RULES, decisive_only=True)
        return not any(difference.address.kind == "learning_rate" for difference in found)

    # Where nothing helps

    def _note_latent(self, now: Explanation) -> Explanation:
        """Leave a witness that differs without effect, and look for the next one."""
        first = now.standing.first
        assert first is not None
        self.unsteady = self.unsteady | {first.address[2:4]}
        return replace(now, standing=self.stand(now.replay), latent=(*now.latent, first))

    def _with_gap(self, now: Explanation) -> Explanation:
        target = now.standing.decisive
        assert target is not None
        through = max(target.address.update, 0)
        tried = tuple(
            f"{name} = {value}"
            for name, value in options(now.reading, now.replay.samples, through)
            if _key(now.reading.with_knob(name, value), through) in self._known
        )
        return replace(now, gaps=(*now.gaps, Gap(at=target, trace=now.replay.trace, tried=tried)))

    def _pin(self, now: Explanation) -> Explanation | None:
        """Note a gap, take the candidate's values there and go on behind it; None if that does not lead on."""
        target = now.standing.decisive
        assert target is not None
        moment, update = target.address.moment, max(target.address.update, 0)
        if not self.can_pin or moment not in PINS or len(now.gaps) >= 3:
            return None
        first = -1 if moment == "start" else update
        pins = tuple(Pin(at, kind, first) for at, kind in PINS[moment])
        reading = replace(now.reading, pins=now.reading.pins + pins)
        if moment == "batch":
            self.passed |= {("batch", "batch_ids"), ("batch", "input"), ("end", "count")}
            self.unsteady |= {(at, kind) for at in ("forward", "backward") for kind in MOMENTS[at]}
        try:
            replay = self.replays.one(reading)
        except ReplayFailed:
            return None
        standing = self.stand(replay)
        if standing.key <= now.standing.key:
            return None
        return replace(self._with_gap(now), reading=reading, replay=replay, standing=standing)

    def _prune(self, found: Explanation) -> Explanation:
        """Drop every cause without which the replay stands just as well."""
        if len(found.causes) < 2:
            return found
        for cause in found.causes:
            if cause.knob not in KNOBS or len(found.causes) < 2:
                continue
            reading = found.reading.with_knob(cause.knob, cause.reference)
            (replay,) = self.replays.run(reading)
            if isinstance(replay, Replay):
                standing = self.stand(replay)
                if standing.key >= found.standing.key:
                    causes = tuple(other for other in found.causes if other is not cause)
                    found = replace(found, reading=reading, replay=replay, standing=standing, causes=causes)
        return found

    def stand(self, replay: Replay, through: int | None = None) -> Standing:
        """How a replay compares with the candidate, up to an update or to the end."""
        silent = self.unsteady | self.passed
        return stand(replay.trace, self.candidate, silent=silent, through=through)


def _key(reading: Reading, through: int | None) -> str:
    """What tells one replay from another."""
    return f"{through} {reading}"


def _same_place(one: Difference | None, other: Difference | None) -> bool:
    return one is not None and other is not None and one.address[2:4] == other.address[2:4]


def _removed(before: Standing, after: Standing) -> Difference | None:
    """The first difference of any kind, if it is there no longer."""
    return before.first if after.key[1] > before.key[1] else None


def _other_kind(reading: Reading, number: Number) -> str | None:
    """The kind of clip that the candidate applies the recipe's own threshold with, if it is another kind."""
    clip, kind = reading.recipe.clip, number.name.removeprefix("max_")
    if kind not in ("norm", "value") or clip is None or kind == reading.semantics.clip.kind:
        return None
    return kind if number.candidate == clip.threshold else None


def _label(causes: tuple[Found, ...]) -> str:
    return " and ".join(f"{cause.knob} = {cause.candidate}" for cause in causes)


def _default_decay(reading: Reading, number: Number) -> Any:
    stated = reading.recipe.optimizer.weight_decay
    return number.reference if stated is None else stated
