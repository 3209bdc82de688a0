"""What a report says, in order, before it has a format. The only place that puts a result into sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from oracle.report import goldens, phrases, resumptions
from oracle.report.phrases import Count
from oracle.report.sentences import sentence
from oracle.result import (
    BetweenRanks,
    CandidateOutcome,
    Cause,
    FirstDivergence,
    MetricDrift,
    OneSided,
    ParameterDrift,
    Result,
    Site,
    Unexplained,
)

# Longer lists are cut; the JSON has all.
SHOWN = 5


@dataclass(frozen=True)
class Paragraph:
    """A labelled statement. clauses: its reasons, a line each, ready to read on. quote: what somebody else said."""

    label: str
    text: str
    clauses: tuple[str, ...] = ()
    quote: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outline:
    """A report: a line that says it all, facts as (label, text), groups of paragraphs, the command that repeats it."""

    headline: str
    facts: tuple[tuple[str, str], ...]
    groups: tuple[tuple[Paragraph, ...], ...]
    command: str


def outline(result: Result) -> Outline:
    """The report on a result."""
    groups = (
        tuple(_changed(result)),
        *_causes(result),
        *((_unexplained(item),) for item in result.unexplained),
        tuple(_ending(result)),
        tuple(_impact(result)),
        tuple(_interrupted(result)),
        tuple(_aside(result)),
    )
    return Outline(headline(result), tuple(_facts(result)), tuple(filter(None, groups)), result.rerun)


def headline(result: Result) -> str:
    """Verdict and place, or the reason that there is none: enough for a CI log."""
    if result.golden is not None:
        return goldens.headline(result, result.golden, _ended(result.candidate_outcome))
    word = result.verdict.upper().replace("_", " ")
    compared = result.compared
    if result.verdict == "match":
        words = f"{word} over {Count(compared.updates):update}: {Count(compared.addresses):address} agree, bit for bit"
        return f"{words}; nothing was resumed, as nothing had been saved" if resumptions.idle(result) else words
    if result.verdict == "not_comparable" or result.first_divergence is None:
        return f"{word}: {result.reason or _ended(result.candidate_outcome) or 'no reason is known'}"
    return f"{word} at {phrases.place(result.first_divergence)}"


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    """Size and values of the first difference, the last agreement, what was compared."""
    if result.golden is not None:
        yield from goldens.facts(result, result.golden)
    if first := result.first_divergence:
        runs = ("first run", "second run") if result.verdict == "nondeterministic" else _sides(result)
        if not first.missing:
            yield "differs", _size(first)
        for label, side in zip(runs, ("reference", "candidate"), strict=True):
            if first.missing:  # what is there may be a tensor, which has no value to show
                has = getattr(first, side) is None
                there = "has it" if has else phrases.value(getattr(first, side), first.dtype)
                yield label, "lacks this address" if first.missing == side else there
            else:
                yield label, phrases.value(getattr(first, side), first.dtype)
        if first.error is not None and first.allowance is not None:
            error, allowance = phrases.value(first.error), phrases.value(first.allowance)
            yield "error", f"{error} against float64, {allowance} allowed"
    if result.site:
        yield "site", _site(result.site)
    if check := result.self_check:
        same = "are bit-identical" if check.identical else "differ"
        yield "repeated", f"two runs of the candidate {same}, {Count(check.addresses):address}"
    yield "compared", _compared(result)
    if result.verdict == "rounding":
        yield "policy", f"{result.policy}, which {'lets rounding pass' if result.passed else 'refuses rounding'}"


def _sides(result: Result) -> tuple[str, str]:
    return ("uninterrupted", "resumed") if result.command == "resume" else ("reference", "candidate")


def _size(first: FirstDivergence) -> str:
    words = []
    if first.differing is not None and first.total is not None and first.total > 1:
        words.append(f"{Count(first.differing)} of {Count(first.total):element}")
    worst = [f"worst {_distance(first)}" if words else _distance(first)]
    if first.index:
        worst.append(f"at ({', '.join(map(str, first.index))})")
    return ", ".join([*words, " ".join(worst)])


def _distance(first: FirstDivergence) -> str:
    nan = [isinstance(side, float) and math.isnan(side) for side in (first.reference, first.candidate)]
    if any(nan):
        side = "both sides, with other bits" if all(nan) else "the reference" if nan[0] else "the candidate"
        return f"NaN in {side}"
    if first.ulp is not None:
        return f"{Count(first.ulp)} ULP"
    return f"by {phrases.value(first.max_abs)}" if first.max_abs is not None else "in value"


def _site(site: Site) -> str:
    when = phrases.moment(site.update, site.micro, site.moment, site.rank)
    if not site.agreeing_inputs:
        return when
    agreeing = phrases.inputs(site.agreeing_inputs)
    plural = len(agreeing) > 1 or (agreeing[0].endswith("s") and agreeing[0] != "loss")
    return f"{when}: {phrases.listing(agreeing)} {'agree' if plural else 'agrees'}, bit for bit"


def _compared(result: Result) -> str:
    compared = result.compared
    words = [f"{Count(compared.addresses):address} over {Count(compared.updates):update}"]
    if compared.unmatched:
        words.append(f"{Count(compared.unmatched)} on one side alone")
    if result.replays:
        words.append(f"{Count(result.replays):replay}")
    if "total" in result.seconds:
        words.append(f"{result.seconds['total']:.1f} s")
    return ", ".join(words)


def _changed(result: Result) -> Iterator[Paragraph]:
    """The decisions that are not those that a golden holds, and how to renew it."""
    if result.golden is None:
        return
    if result.golden.changes:
        yield Paragraph("Changed decisions", "", tuple(goldens.changes(result.golden)))
    if command := goldens.renewal(result, result.golden):
        yield Paragraph("If this is meant", command)


def _causes(result: Result) -> Iterator[tuple[Paragraph, ...]]:
    for number, cause in enumerate(result.causes, start=1):
        status = f"({cause.status}, style)" if cause.effect == "style" else f"({cause.status})"
        label = f"Cause {status}"
        if len(result.causes) > 1:
            label = f"Cause {number} {status}, from {phrases.moment(cause.at.update, -1, cause.at.moment)}"
        group = [Paragraph(label, f"{sentence(cause)}.", _reasons(cause))]
        if cause.indistinguishable:
            text = f"{'; '.join(cause.indistinguishable)}."
            group.append(Paragraph("Not told apart from", text, _separation(cause)))
        if cause.remedy:
            group.append(Paragraph("Remedy", cause.remedy))
        if number == 1 and result.site and (entering := _entering(result.site)):
            group.append(Paragraph("Ruled out", f"{', '.join(entering)} (identical on entry)."))
        yield tuple(group)


def _reasons(cause: Cause) -> tuple[str, ...]:
    """The evidence and what the replay showed, as lines that read on from the sentence."""
    reasons = list(cause.evidence)
    if cause.identical_through_update is not None:
        setting = f"{cause.knob} = {phrases.value(cause.candidate)}"
        last_one = cause.identical_through_update
        until = f"through update {last_one}" if last_one >= 0 else "up to update 0"
        reasons.append(f"with {setting} the reference is bit-identical {until}")
    last = len(reasons) - 1
    starts = {last: "and ", 0: "because "}
    return tuple(f"{starts.get(i, '')}{reason}{'.' if i == last else ','}" for i, reason in enumerate(reasons))


def _separation(cause: Cause) -> tuple[str, ...]:
    return (f"To tell them apart: {cause.separated_by}",) if cause.separated_by else ()


def _entering(site: Site) -> list[str]:
    """The agreeing inputs that are there before the site's step begins; a loss is computed in it."""
    return phrases.inputs([kind for kind in site.agreeing_inputs if kind not in ("loss", "objective")])


def _unexplained(item: Unexplained) -> Paragraph:
    agreeing = ", ".join(phrases.inputs(item.site.agreeing_inputs))
    ruled_out = ", ".join([*item.ruled_out[:SHOWN], *_cut(len(item.ruled_out))])
    clauses = (
        f"Agree, bit for bit: {agreeing}." if agreeing else "",
        *(f"The numbers say: {clue}." for clue in item.evidence),
        f"Ruled out by replay: {ruled_out}." if ruled_out else "No knob acts there.",
    )
    return Paragraph("Unexplained", f"{phrases.place(item.site)}.", tuple(filter(None, clauses)))


def _impact(result: Result) -> Iterator[Paragraph]:
    """How far the candidate drifts, a line for each metric and one for the parameters."""
    if result.impact is None:
        return
    impact, seeds = result.impact, Count(len(result.impact.seeds))
    text = f"after {Count(impact.updates):update}, against the reference with {seeds:seed}."
    yield Paragraph("Impact", text, (*map(_metric_drift, impact.metrics), _parameter_drift(impact.parameters)))


def _metric_drift(drift: MetricDrift) -> str:
    reference, candidate, mean, sd = map(phrases.rounded, (drift.reference, drift.candidate, drift.mean, drift.sd))
    least, most = phrases.rounded(min(drift.values)), phrases.rounded(max(drift.values))
    count = len(drift.values)
    words = [f"The candidate is {'inside' if drift.inside else 'outside'} their range"]
    if drift.sd > 0:
        words.append(f"{abs(drift.candidate - drift.mean) / drift.sd:.2g} sd from their mean")
    if not drift.inside:
        words.append(f"where one more seed would be in 2 of {count + 1} cases")
    spread = f"{Count(count):seed}: mean {mean}, sd {sd}, from {least} to {most}"
    return f"metric {drift.name}: reference {reference}, candidate {candidate}; {spread}. {', '.join(words)}."


def _parameter_drift(drift: ParameterDrift) -> str:
    distance, moved = phrases.rounded(drift.distance), phrases.rounded(drift.moved)
    least, most = phrases.rounded(min(drift.seeds)), phrases.rounded(max(drift.seeds))
    return (
        f"parameters: the candidate ends {distance} from the reference, which moved {moved} from its start; references "
        f"of other seeds, which start elsewhere, end {least} to {most} from it."
    )


def _ending(result: Result) -> Iterator[Paragraph]:
    """How the candidate's run ended, if not well and not said yet, and what it printed last."""
    outcome = result.candidate_outcome
    if outcome and (ended := _ended(outcome)):
        if ended not in headline(result):
            yield Paragraph("Ended", f"{ended}.")
        if outcome.last_words:
            yield Paragraph("Last words", "", quote=tuple(map(phrases.printable, outcome.last_words)))


def _ended(outcome: CandidateOutcome | None) -> str:
    if outcome is None or outcome.status == "completed":
        return ""
    error = (outcome.error or "an exception").strip().partition("\n")[0]
    how = {
        "raised": f"raised {phrases.printable(error)}",
        "killed": f"was killed by {outcome.signal}"
        if outcome.signal
        else f"ended its own process, exit code {outcome.exit_code}",
        "timed_out": f"was stopped after {phrases.seconds(outcome.timeout)}, its time limit",
    }[outcome.status]
    after = f", {Count(outcome.updates):update} made" if outcome.updates is not None else ""
    where = f"; rank {outcome.rank} was last seen at {outcome.at}" if outcome.rank is not None else ""
    return f"the candidate {how}{after}{where}"


def _interrupted(result: Result) -> Iterator[Paragraph]:
    """Every interruption, a line each."""
    if result.resumptions:
        yield Paragraph("Interrupted", "", quote=resumptions.table(result.resumptions))


def _aside(result: Result) -> Iterator[Paragraph]:
    """What does not make the verdict: latent and one-sided differences, accepted causes, notes."""
    if result.latent:
        total = Count(sum(item.addresses for item in result.latent))
        shown = [f"{_times(item)}{phrases.place(item)}" for item in result.latent[:SHOWN]]
        text = f"{total:address} {'differs' if total == 1 else 'differ'} in witness values alone."
        yield Paragraph("Latent", text, (*shown, *_cut(len(result.latent))))
    for apart in result.between_ranks:
        yield Paragraph("Between ranks", _between(apart))
    if result.one_sided and result.verdict != "not_comparable":
        shown = [_alone(item) for item in result.one_sided[:SHOWN]]
        yield Paragraph("On one side", "listed, not judged.", (*shown, *_cut(len(result.one_sided))))
    for item in result.accepted:
        label = "No longer accepted" if item.expired else "Accepted"
        yield Paragraph(label, f"{item.cause} until {item.until}: {item.reason}.")
    for note in result.notes:
        yield Paragraph("Note", note)


def _between(item: BetweenRanks) -> str:
    when = phrases.moment(item.update, item.micro, item.moment)
    what = phrases.kind(item.kind, item.name)
    if item.agree:
        return f"{when}: all ranks have the same {what}; in the reference each has its own."
    return f"{when}: {what} of rank {item.rank} is not that of the others; in the reference all have the same."


def _times(item: Any) -> str:
    return f"{Count(item.addresses)} places, first " if item.addresses > 1 else ""


def _alone(item: OneSided) -> str:
    return f"{item.side}: {phrases.kind(item.kind, item.name)} at {item.moment}, {Count(item.addresses):address}"


def _cut(length: int) -> tuple[str, ...]:
    return (f"and {Count(length - SHOWN)} more: --json FILE has all",) if length > SHOWN else ()
