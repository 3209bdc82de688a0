"""Finds the readings under which the reference becomes the candidate, one cause after another.

The loop is always the same. A replay differs from the candidate at some place. Numbers that the candidate recorded are
taken over. Otherwise every decision whose plan departs by then is tried, alone, and the one after which the two agree
furthest is adopted; if several do equally well, each is followed. Where nothing helps, the place is noted as
unexplained, the candidate's values are pinned there, and the search goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from diffs.address import Address
from diffs.first import Difference
from diffs.trace import Trace
from oracle.explain.explanation import Explanation, Found, Gap, Places
from oracle.explain.noise import Floor
from oracle.explain.options import Option, Scene, by_units, options, pairs
from oracle.explain.standing import Key, Standing
from oracle.explain.takeover import Takeover
from oracle.explain.trials import Trials
from oracle.replays import Pin, Reading, Replay, Replays
from reference_loop.moments import MOMENTS
from reference_loop.semantics import KNOBS

MOST_CAUSES = 10
MOST_GAPS = 3
MOST_PAIRS = 96
MOST_BRANCHES = 4

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

UNDER_PINS = frozenset(
    ("accumulation.normalise", "accumulation.units", "accumulation.counted", "accumulation.tail_divisor",
     "gradient.clear", "clip.moment", "clip.kind", "clip.formula",
     "clip.kernel")
)  # fmt: skip
"""Decisions that show in nothing that decides once an update takes the candidate's gradient: none can be proven."""

FINE = frozenset(("clip.formula", "optimizer.epsilon", "optimizer.velocity"))
"""Decisions that some numbers make smaller than rounding: the noise floor is asked before them."""

Choice = tuple[Option, ...]
"""Decisions that are tried together: one, or two."""


class Trial(NamedTuple):
    """A choice that was replayed to the end."""

    standing: Standing
    choice: Choice
    reading: Reading
    replay: Replay


@dataclass
class Explainer:
    """Explains one candidate.

    candidate: its trace. floor: tells rounding. unsteady: witnesses that it does not repeat itself.
    can_pin: whether its tensors are there in full.
    progress: told in a few words what is tried.
    """

    replays: Replays
    candidate: Trace
    floor: Floor
    unsteady: Places = frozenset()
    can_pin: bool = True
    progress: Callable[[str], None] = lambda words: None
    trials: Trials = field(init=False)
    takeover: Takeover = field(init=False)
    likened: dict[Address, tuple[str, ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.trials = Trials(self.replays, self.candidate)
        self.takeover = Takeover(self.trials, self.can_pin)

    def begin(self, reading: Reading, replay: Replay) -> Explanation:
        """Where the search sets out: at `replay`, the reference under `reading`."""
        standing = self.trials.stand(replay, self.unsteady)
        return Explanation(reading=reading, replay=replay, standing=standing, silent=self.unsteady)

    def explain(self, reading: Reading, replay: Replay) -> Explanation:
        """Follow the differences from `replay`, the reference under `reading`, to the end."""
        return self._prune(self._follow(self.begin(reading, replay)))

    # One step

    def _follow(self, now: Explanation, *, whole: bool = False) -> Explanation:
        """The explanation carried on until nothing differs or nothing helps.

        whole: give up at the first decisive difference that nothing explains, instead of going on behind it.
        """
        while not now.standing.clean and len(now.causes) + len(now.gaps) < MOST_CAUSES:
            read = self.takeover.hyperparameters(now) or self.takeover.scaler(now)
            if read is not None:
                now = read
                continue
            best = self._adopt(now)
            firm = [step for step in best if _is_firm(step, now) or _is_style(step, now)]
            if not firm and self._rounds(now):  # nothing sure, and nothing to be sure of
                left = self._with_gap(now.untouched)
                if self.floor.measure(left).covers:
                    return left
                best = [step for step in best if _passes(step, now)]
            if best and _contradicts(best[0].standing.key, now.standing.key):
                end = self._in_spite(now, best)
                if end is not None:
                    return end
                best = []
            if len(best) == 1:
                now = best[0]
            elif best:
                return self._branch(now, best)
            elif now.standing.decisive is None:
                now = self._note_latent(now)
            elif whole:
                return now
            else:
                now = now.untouched
                pinned = self._pin(now)
                if pinned is None:
                    return self._with_gap(now)
                now = pinned
        return now

    def _in_spite(self, now: Explanation, steps: list[Explanation]) -> Explanation | None:
        """Where a step leads that changes what agreed before, if it leads to an explanation of the whole run.

        It is proven if the others that are found behind it undo that change. What leads nowhere is noted as a clue.
        """
        for step in steps[:MOST_BRANCHES]:
            end = self._follow(step, whole=True)
            if end.standing.decisive is None and end.gaps == now.gaps:
                if end.latent == now.latent:
                    return end
                assert step.standing.first is not None
                _, _, moment, kind, *_ = step.standing.first.address
                thin = f"it changes what agreed before ({kind} at {moment}), so something else may have the same effect"
                added = range(len(now.causes), len(step.causes))
                causes = (replace(c, thin=thin) if place in added else c for place, c in enumerate(end.causes))
                return replace(end, causes=tuple(causes))
        self.likened.setdefault(now.target.address, tuple(_label(step.causes[len(now.causes) :]) for step in steps))
        return None

    def _rounds(self, now: Explanation) -> bool:
        """Whether the decisive difference at hand is no more than rounding."""
        decisive = now.untouched.standing.decisive
        return decisive is not None and self.floor.within(now.untouched.reading, decisive.address)

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
        through = _horizon(now.target)
        every: list[Choice] = [(option,) for option in options(now.reading, now.replay.samples, through)]
        if now.standing.decisive is None:
            every = [choice for choice in every if KNOBS[choice[0][0]].effect == "style"]
        if _takes_gradients(now):
            every = [choice for choice in every if choice[0][0] not in UNDER_PINS]
        if now.blind:
            every = [choice for choice in every if choice[0][0].partition(".")[0] in ("schedule", "optimizer", "log")]
        tried: dict[Choice, None] = {}
        rated = False
        for choices, complete in self._by_promise(now, every):
            fresh = [choice for choice in choices if choice not in tried]
            tried.update(dict.fromkeys(fresh))
            steps = self._try(now, fresh, complete)
            if now.standing.decisive is None:  # a witness is only explained where it differs nowhere any more
                steps = [step for step in steps if not _same_place(step.standing.first, now.standing.first)]
            if not steps and not rated:
                rated, steps = True, self.takeover.rates(now)
            if steps:
                return steps
        return []

    def _by_promise(self, now: Explanation, every: list[Choice]) -> Iterator[tuple[list[Choice], bool]]:
        """Choices in the order in which they are worth a replay, and whether they are all that there are of their kind.

        First those that can act where something first differs, then those that can act at the decisive difference, then
        two of them at once; and whatever is left, if the candidate's records do not show what enters the site.
        """
        sites = [site for site in dict.fromkeys((now.standing.first, now.standing.decisive)) if site is not None]
        replay = now.replay
        scenes = [
            Scene(now.reading, replay.samples, site, replay.trace, self.candidate, replay.units) for site in sites
        ]
        for scene in scenes:
            yield scene.likely(every), True
        if now.standing.decisive is not None:
            for scene in scenes:
                two = scene.likely(list(pairs(scene.acting([option for (option,) in every]))))
                yield two[:MOST_PAIRS], len(two) <= MOST_PAIRS
            for scene in scenes if not _takes_gradients(now) else ():
                yield scene.likely(list(by_units(now.reading))), True
        if not all(self.candidate.has(place) for place in ENTERING):  # what enters the site is not known to agree
            yield every, True

    def _try(self, now: Explanation, choices: list[Choice], complete: bool) -> list[Explanation]:
        """Replay each choice through the difference, the ones that get past it to the end, and return the best."""
        if not choices or self.trials.exhausted:
            return []
        through = _horizon(now.target)
        self.progress(f"trying {len(choices)} decisions at update {through}")
        readings = [_with(now.reading, choice) for choice in choices]
        better = []
        for choice, reading, replay in zip(choices, readings, self.trials.run(readings, through), strict=True):
            if replay is not None and _meets(replay, now.standing):
                standing = self.trials.stand(replay, now.silent, through)
                if standing.key > now.standing.key:
                    better.append((standing.key, choice, reading))
        agreeing = [one for one in better if not _contradicts(one[0], now.standing.key)]
        better = agreeing or better
        if not better:
            return []
        furthest = max(key for key, _, _ in better)
        leading = [(choice, reading) for key, choice, reading in better if key == furthest]
        full = self.trials.run([reading for _, reading in leading])
        ends = [
            Trial(self.trials.stand(replay, now.silent), choice, reading, replay)
            for (choice, reading), replay in zip(leading, full, strict=True)
            if replay is not None
        ]
        ends = [end for end in ends if end.standing.key > now.standing.key]
        if not ends:
            return []
        best = max(end.standing.key for end in ends)
        tied = [end for end in ends if end.standing.key == best]
        return [self._step(now, end, [other.choice for other in tied if other is not end], complete) for end in tied]

    def _step(self, now: Explanation, end: Trial, others: Sequence[Choice], complete: bool) -> Explanation:
        thin = "" if complete else "it was found together with another one, and not all pairs were tried"
        causes = tuple(
            Found(
                knob=name,
                reference=now.reading.semantics.value(name),
                candidate=value,
                effect=KNOBS[name].effect,
                at=now.target,
                origin=_removed(now.standing, end.standing),
                alternatives=tuple(_said(other) for other in others),
                thin=thin,
            )
            for name, value in end.choice
        )
        return replace(
            now,
            reading=end.reading,
            replay=end.replay,
            standing=end.standing,
            causes=now.causes + causes,
            before=now.untouched,
        )

    # Where nothing helps

    def _note_latent(self, now: Explanation) -> Explanation:
        """Leave a witness that differs without effect, and look for the next one."""
        first = now.target
        silent = now.silent | {first.address[2:4]}
        return replace(now, standing=self.trials.stand(now.replay, silent), latent=(*now.latent, first), silent=silent)

    def _with_gap(self, now: Explanation) -> Explanation:
        through = max(now.target.address.update, 0)
        tried = tuple(
            f"{name} = {value}"
            for name, value in options(now.reading, now.replay.samples, through)
            if self.trials.made(now.reading.with_knob(name, value), _horizon(now.target))
        )
        return replace(
            now,
            gaps=(
                *now.gaps,
                Gap(
                    at=now.target,
                    reading=now.reading,
                    trace=now.replay.trace,
                    tried=tried,
                    like=self.likened.get(now.target.address, ()),
                ),
            ),
        )

    def _pin(self, now: Explanation) -> Explanation | None:
        """Note a gap, take the candidate's values there and go on behind it; None if that does not lead on."""
        moment, update = now.target.address.moment, max(now.target.address.update, 0)
        if not self.can_pin or moment not in PINS or len(now.gaps) >= MOST_GAPS:
            return None
        first = -1 if moment == "start" else update
        pins = tuple(Pin(at, kind, first) for at, kind in PINS[moment])
        silent, blind = now.silent, now.blind or moment == "batch"
        if moment == "batch":
            silent = silent | {("batch", "batch_ids"), ("batch", "input"), ("end", "count")}
            silent |= {(at, kind) for at in ("forward", "backward") for kind in MOMENTS[at]}
        reading = replace(now.reading, pins=now.reading.pins + pins)
        replay = self.trials.one(reading)
        if replay is None:
            return None
        standing = self.trials.stand(replay, silent)
        if standing.key <= now.standing.key:
            return None
        return replace(
            self._with_gap(now), reading=reading, replay=replay, standing=standing, silent=silent, blind=blind
        )

    def _prune(self, found: Explanation) -> Explanation:
        """Drop every decision without which the replay stands just as well; the others show where they then do."""
        decisions = [cause for cause in found.causes if cause.knob in KNOBS]
        if len(found.causes) < 2 or not decisions:
            return found
        self.trials.run([_without(found.reading, cause) for cause in decisions])  # at once: they share most of a run
        for cause in decisions:
            reading = _without(found.reading, cause)
            replay = self.trials.one(reading)
            if replay is None:
                continue
            standing = self.trials.stand(replay, found.silent)
            if standing.key < found.standing.key:
                placed = replace(cause, at=standing.decisive or cause.at)
                found = replace(found, causes=tuple(placed if one is cause else one for one in found.causes))
            elif len(found.causes) > 1:
                others = tuple(one for one in found.causes if one is not cause)
                found = replace(found, reading=reading, replay=replay, standing=standing, causes=others)
        return found


def _horizon(target: Difference) -> int | None:
    """The update through which a replay shows whether it gets past a difference; None for the end."""
    return None if target.address.moment == "end" else max(target.address.update, 0)


def _with(reading: Reading, choice: Choice) -> Reading:
    for name, value in choice:
        reading = reading.with_knob(name, value)
    return reading


def _without(reading: Reading, cause: Found) -> Reading:
    return reading.with_knob(cause.knob, cause.reference)


def _meets(replay: Replay, standing: Standing) -> bool:
    """Whether a replay has the values at which the two differed; without them, it would agree by saying nothing."""
    sites = [site for site in (standing.first, standing.decisive) if site is not None and site.candidate is not None]
    return all(replay.trace.row(site.address) is not None for site in sites)


def _is_firm(step: Explanation, now: Explanation) -> bool:
    """Whether a step passes the decisive difference by more than a decision that rounding can stand for."""
    return _passes(step, now) and any(cause.knob not in FINE for cause in step.causes[len(now.causes) :])


def _passes(step: Explanation, now: Explanation) -> bool:
    """Whether a step gets past the decisive difference, and neither rests on little nor changes what agreed."""
    key, before = step.standing.key, now.standing.key
    return key[0] != before[0] and not step.causes[-1].thin and not _contradicts(key, before)


def _takes_gradients(now: Explanation) -> bool:
    """Whether updates take the candidate's gradients, from some on."""
    return any(pin.moment == "consume" and pin.kind == "gradient" for pin in now.reading.pins)


def _is_style(step: Explanation, now: Explanation) -> bool:
    """Whether a step brings styles alone, and leaves what agreed: it can change no meaning."""
    styles = all(cause.effect == "style" for cause in step.causes[len(now.causes) :])
    return styles and not _contradicts(step.standing.key, now.standing.key)


def _contradicts(key: Key, before: Key) -> bool:
    """Whether a replay differs from the candidate earlier than the one before, at a place where that one agreed."""
    return key[1] < before[1]


def _same_place(one: Difference | None, other: Difference | None) -> bool:
    return one is not None and other is not None and one.address[2:4] == other.address[2:4]


def _removed(before: Standing, after: Standing) -> Difference | None:
    """The first difference of any kind, if it is there no longer."""
    return before.first if after.key[1] > before.key[1] else None


def _said(choice: Choice) -> str:
    return " and ".join(f"{name} = {value}" for name, value in choice)


def _label(causes: tuple[Found, ...]) -> str:
    return " and ".join(cause.label for cause in causes)
