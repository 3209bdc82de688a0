"""Numbers that the candidate uses, taken over from its records: each is a number, or a decision that it shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose
from typing import Any

from diffs.first import Difference, differences
from oracle.explain.explanation import Explanation, Found
from oracle.explain.numbers import (
    Number,
    decay_as_a_whole,
    foreseen_rates,
    numbers,
    other_rates,
    rates_apart,
    scaler_numbers,
    taken,
)
from oracle.explain.standing import Standing, rates_of, rules, skipped
from oracle.explain.trials import Trials
from oracle.replays import Pin, Reading, Replay
from reference_loop.semantics import KNOBS

CLIPS = frozenset({"hyperparameter.max_norm", "hyperparameter.max_value"})
DECAY = "hyperparameter.weight_decay"
HIGH = 1e6  # of a gradient's norm; a limit below may act in a longer run
ENOUGH_RATES = 3  # different learning rates that a fitted number has to meet


@dataclass(frozen=True)
class Takeover:
    """Takes numbers over; `can_pin` as in `oracle.explain.engine.Explainer`."""

    trials: Trials
    can_pin: bool

    def hyperparameters(self, now: Explanation) -> Explanation | None:
        """Take over the hyperparameters that differ by the update at hand; None if there are none."""
        target = now.standing.decisive
        if target is None:
            return None
        through = max(target.address.update, 0)
        found = [d for d in self.trials.decisive(now.replay, through) if d.address.kind == "hyperparameter"]
        if not found:
            return None
        from_start = [difference for difference in found if difference.address.moment == "start"]
        if not from_start:
            return self._changing(now, found)
        reading, read = now.reading, []
        known = {cause.knob for cause in now.causes}
        for number in numbers(from_start):
            if f"hyperparameter.{number.name}" in known:
                continue
            cause, reading = self._read(now, reading, number, target)
            read.append(cause)
        replay = self.trials.one(reading)
        if replay is None:
            return None
        if any(cause.knob == DECAY for cause in read):
            for number in self._spared(replay):  # whom it leaves out, once it is known how much decays
                by_set = self._decay_set(replace(now, reading=reading), number, target)
                changed = reading.with_knob(by_set.knob, by_set.candidate) if by_set else taken(reading, number)
                other = self.trials.one(changed)
                if other is not None:
                    reading, replay, read = changed, other, [*read, *([by_set] if by_set else [])]
        standing = self.trials.stand(replay, now.silent)
        if standing.key == now.standing.key:  # taken over, and still the same: the record is not what it trains with
            return None
        if all(_measures(cause) for cause in read) and _idle(now.replay, replay):
            read = [replace(cause, effect="style") for cause in read]
        return replace(now, reading=reading, replay=replay, standing=standing, causes=(*now.causes, *read))

    def scaler(self, now: Explanation) -> Explanation | None:
        """Take over an argument of the gradient scaler with which the replay stands better; None if there is none."""
        how = rules(now.replay.trace, self.trials.candidate)
        start = differences(now.replay.trace, self.trials.candidate, how, through_update=-1)
        found = [difference for difference in start if difference.address[2:4] == ("start", "scaler")]
        known = {cause.knob for cause in now.causes}
        for name, old, new, reading in scaler_numbers(now.reading, found):
            knob = f"hyperparameter.{name}"
            replay = self.trials.one(reading) if knob not in known else None
            if replay is None:
                continue
            standing = self.trials.stand(replay, now.silent)
            if _further(standing, now.standing):
                cause = Found(knob=knob, reference=old, candidate=new, effect="semantic", at=now.target)
                return replace(now, reading=reading, replay=replay, standing=standing, causes=(*now.causes, cause))
        return None

    def rates(self, now: Explanation) -> list[Explanation]:
        """Another base rate or schedule, where a learning rate is what differs; the first that fits all rates."""
        target = now.standing.decisive
        if target is None or target.address.kind != "learning_rate":
            return []
        apart = self._rates_apart(now, target)
        if apart:
            return apart
        ours, theirs = ({u: rates[target.address.name] for u, rates in side.items()} for side in self._rates(now))
        rates = [(ours[update], theirs[update]) for update in sorted(ours.keys() & theirs.keys())]
        told = len({candidate for _, candidate in rates if candidate})
        constant = len(rates) > 1 and len(set(rates)) == 1  # then the rate is a plain number, read and not fitted
        thin = "" if constant or told >= ENOUGH_RATES else f"it rests on {told} different rates"
        choices = other_rates(now.reading, rates)
        if now.reading.recipe.precision.dtype != "float16":  # no update is skipped, so the rates can be calculated
            seen = [candidate for _, candidate in rates]
            choices = [choice for choice in choices if _fits(foreseen_rates(choice[3], now.replay.samples), seen)]
        ends = []
        for (label, old, new, reading), replay in zip(choices, self.trials.run([c[3] for c in choices]), strict=True):
            if replay is not None and self._rates_agree(replay):
                name = f"hyperparameter.{label}"
                cause = Found(knob=name, reference=old, candidate=new, effect="semantic", at=target, thin=thin)
                standing = self.trials.stand(replay, now.silent)
                ends.append(
                    replace(now, reading=reading, replay=replay, standing=standing, causes=(*now.causes, cause))
                )
        others = tuple(end.causes[-1].label for end in ends[1:])
        return [
            replace(end, causes=(*end.causes[:-1], replace(end.causes[-1], alternatives=others))) for end in ends[:1]
        ]

    def _spared(self, replay: Replay) -> list[Number]:
        """The weight decay that still differs at the start of a replay."""
        at_start = [d for d in self.trials.decisive(replay, -1) if d.address[2:4] == ("start", "hyperparameter")]
        return [number for number in numbers(at_start) if number.name == "weight_decay"]

    def _read(self, now: Explanation, reading: Reading, number: Number, target: Difference) -> tuple[Found, Reading]:
        """What one number means, and the reading with it."""
        other = _other_kind(reading, number)
        if other is not None:
            kind = reading.semantics.clip.kind
            cause = Found(knob="clip.kind", reference=kind, candidate=other, effect="semantic", at=target)
            return cause, reading.with_knob("clip.kind", other)
        if number.name == "weight_decay":
            whole = decay_as_a_whole(reading, number)
            if whole is not None:
                values = (_default_decay(reading, number), whole.recipe.optimizer.weight_decay)
                return self._number(number, target, values), whole
            by_set = self._decay_set(now, number, target)
            if by_set is not None:
                return by_set, reading.with_knob(by_set.knob, by_set.candidate)
        return self._number(number, target), taken(reading, number)

    def _changing(self, now: Explanation, found: list[Difference]) -> Explanation | None:
        """Note numbers that change in the course of the run; what they lead to is pinned: no replay follows it."""
        if not self.can_pin:
            return None
        target = found[0]
        causes = tuple(
            replace(self._number(number, target), thin="it changes in the course of the run")
            for number in numbers(found)
        )
        places = (
            *(("consume", kind) for kind in ("gradient", "learning_rate")),
            *(("update", kind) for kind in ("parameter", "buffer", "optimizer_state")),
        )
        pins = tuple(Pin(moment, kind, target.address.update) for moment, kind in places)
        reading = replace(now.reading, pins=now.reading.pins + pins)
        replay = self.trials.one(reading)
        if replay is None:
            return None
        silent = now.silent | {("consume", "hyperparameter")}
        standing = self.trials.stand(replay, silent)
        return replace(
            now, reading=reading, replay=replay, standing=standing, causes=now.causes + causes, silent=silent
        )

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
        rows = (row.address.name for row in self.trials.candidate.rows_at(("start", "hyperparameter")))
        return {row.rpartition(".")[0] for row in rows if row.rpartition(".")[2] == name}

    def _decay_set(self, now: Explanation, number: Number, target: Difference) -> Found | None:
        """The value of `optimizer.decay_set` that explains which parameters decay, if one does."""
        current = now.reading.semantics.optimizer.decay_set
        values = [value for value in KNOBS["optimizer.decay_set"].values if value != current]
        readings = [now.reading.with_knob("optimizer.decay_set", value) for value in values]
        fitting = [
            value
            for value, replay in zip(values, self.trials.run(readings, through=-1), strict=True)
            if replay is not None
            and not any(d.address.name.endswith(".weight_decay") for d in self.trials.decisive(replay, -1))
        ]
        if not fitting:
            return None
        chosen = "names" if "names" in fitting else fitting[0]
        return Found(
            knob="optimizer.decay_set",
            reference=current,
            candidate=chosen,
            effect="semantic",
            at=target,
            parameters=tuple(number.values),
            alternatives=tuple(f"optimizer.decay_set = {value}" for value in fitting if value != chosen),
        )

    def _rates(self, now: Explanation) -> list[dict[int, dict[str, float]]]:
        """The learning rate of every parameter at every update, of the replay and of the candidate."""
        return [rates_of(trace, "consume") for trace in (now.replay.trace, self.trials.candidate)]

    def _rates_apart(self, now: Explanation, target: Difference) -> list[Explanation]:
        """Base rates of single parameters, where not all parameters' rates differ alike."""
        number = rates_apart(now.reading, *self._rates(now))
        if number is None:
            return []
        reading = taken(now.reading, number)
        replay = self.trials.one(reading)
        if replay is None or not self._rates_agree(replay):
            return []
        cause = replace(self._number(number, target), parameters=tuple(number.values))
        standing = self.trials.stand(replay, now.silent)
        return [replace(now, reading=reading, replay=replay, standing=standing, causes=(*now.causes, cause))]

    def _rates_agree(self, replay: Replay) -> bool:
        """Whether every learning rate is the candidate's, to the end."""
        return not any(difference.address.kind == "learning_rate" for difference in self.trials.decisive(replay))


def _fits(planned: list[float], seen: list[float]) -> bool:
    """Whether planned rates are those seen, up to the rounding of a last digit."""
    return all(isclose(ours, theirs, rel_tol=1e-6, abs_tol=1e-12) for ours, theirs in zip(planned, seen, strict=False))


def _further(standing: Standing, before: Standing) -> bool:
    """Whether a replay gets past the first decisive difference, or the first of any kind where none is decisive."""
    return standing.key[0] > before.key[0] or (before.decisive is None and standing.key > before.key)


def _measures(cause: Found) -> bool:
    """Whether a clip that nobody asked for has a limit so high that it is called for the norm it returns."""
    return cause.knob in CLIPS and cause.reference is None and (cause.candidate or 0) >= HIGH


def _idle(without: Replay, within: Replay) -> bool:
    """Whether a clip changed no gradient that an optimizer took in a whole run."""
    left_out = skipped(within.trace)
    both = (run.trace.rows_at(("consume", "gradient")) for run in (without, within))
    ours, theirs = ([row.digest for row in rows if row.address.update not in left_out] for rows in both)
    return ours == theirs


def _other_kind(reading: Reading, number: Number) -> str | None:
    """The kind of clip that the candidate applies the recipe's own threshold with, if it is another kind."""
    clip, kind = reading.recipe.clip, number.name.removeprefix("max_")
    if kind not in ("norm", "value") or clip is None or kind == reading.semantics.clip.kind:
        return None
    return kind if number.candidate == clip.threshold else None


def _default_decay(reading: Reading, number: Number) -> Any:
    stated = reading.recipe.optimizer.weight_decay
    return number.reference if stated is None else stated
