"""`oracle resume` on one page: train to the end; train to a cut, die, resume; compare what both have."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from diffs.first import Comparison, Difference, compare, differences
from diffs.trace import Trace, open_trace
from oracle.candidate import Runs
from oracle.check import Case, Progress, Request, opened
from oracle.explain.engine import Explanation
from oracle.explain.evidence import described
from oracle.explain.site import find_site
from oracle.explain.standing import Standing, rules
from oracle.findings import compared, one_sided
from oracle.replays import Server
from oracle.result import At, Cause, Latent, Result, Resumption, Unexplained
from oracle.resume import runs, tail
from oracle.resume.cuts import IN_A_SAVE, Cut, CutError, listed
from oracle.resume.parts import Naming, Pair, everything
from oracle.resume.tail import Point
from reference_loop.recipe import Checkpoint, Recipe

ABREAST = 2
"""How many interruptions go on at a time."""
BEGINNING = Point(0)
NOTHING_SAVED = "the uninterrupted run wrote nothing in its workdir, so there was nothing to resume"
UNRESTRICTED = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""torch's own variable for trainers that were written before `torch.load` refused pickles; runs see it as it is set."""


@dataclass(frozen=True)
class Attempts:
    """A run that died, and the one that went on from its files.

    last: None if the first did not die. source: the workdir that it went on from. began: where the first one began.
    """

    died: runs.Attempt
    last: runs.Attempt | None
    source: Path
    began: Point


@dataclass(frozen=True)
class Found:
    """What came of one interruption, or of a chain of them.

    comparison: of both sides from where the resumed run began; None if there was nothing to compare. reason: why then.
    anew: it is the uninterrupted run from the first update on, though there was something to resume.
    """

    cuts: tuple[Cut, ...]
    last: runs.Attempt
    saved: Point | None = None
    pair: Pair | None = None
    comparison: Comparison | None = None
    causes: tuple[Cause, ...] = ()
    reason: str | None = None
    notes: tuple[str, ...] = ()
    anew: bool = False

    @property
    def verdict(self) -> str:
        """As a result has it."""
        if self.comparison is None:
            return "not_comparable"
        return "match" if self.comparison.first is None else "diverged"


def resume(
    request: Request,
    chains: Sequence[tuple[Cut, ...]] | None,
    progress: Progress = lambda words: None,
    server: Server | None = None,
    death: str = "exception",
    kills: int = 0,
    warm: bool = False,
) -> Result:
    """Interrupt the candidate at each chain of cuts and resume it; hold it against its uninterrupted run.

    chains: None makes every cut that there is, each with `death`.
    kills: in place of the first chain, as many deaths by SIGKILL, spread over the bytes of the save at its first cut.
    warm: run what is interrupted and resumed in forks of a process that has the libraries imported, and nothing else.
    server: as `oracle.check.opened` takes it.

    Raises:
        OracleError: the task, the trainer or the environment cannot be used as asked.
    """
    started = time.monotonic()
    asked = replace(request, recipe=saving(request.recipe), watch=True)
    with opened(asked, progress, server) as case:
        tried = Resume(case, progress, death, kills, warm)
        try:
            result = tried.judge(chains)
        finally:
            tried.launch.close()
    return replace(result, seconds={"total": round(time.monotonic() - started, 3)})


def saving(recipe: Recipe) -> Recipe:
    """The recipe, with a save after every update if it asks for none."""
    return recipe if recipe.checkpoint is not None else replace(recipe, checkpoint=Checkpoint(every=1))


@dataclass
class Resume:
    """An uninterrupted run, and what is held against it."""

    case: Case
    progress: Progress
    death: str
    kills: int = 0
    warm: bool = False
    _folders: Iterator[int] = field(default_factory=itertools.count)
    found: list[Found] = field(default_factory=list)
    disturbed: Difference | None = None

    @cached_property
    def root(self) -> Path:
        """Where the runs and traces of the interruptions are."""
        return self.case.findings.replays.folder.parent / "resume"

    @cached_property
    def launch(self) -> runs.Launcher:
        """Starts runs of the candidate."""
        candidate = self.case.findings.runs
        if self.warm and isinstance(candidate, Runs):
            asked = self.case.request
            warm = runs.warmed(candidate, candidate.spec["task"], asked.trainer, asked.threads, self.root / "server")
            return runs.Launcher(warm, self.root / "runs", warm.server)
        return runs.Launcher(candidate, self.root / "runs")

    @cached_property
    def whole(self) -> Trace:
        """The uninterrupted run, with its tensors in full."""
        candidate = self.case.findings.candidate
        assert candidate.trace is not None
        return open_trace(candidate.full) if candidate.full is not None else candidate.trace

    @cached_property
    def saves(self) -> list[dict[str, Any]]:
        """The files that the uninterrupted run wrote."""
        return list((self.case.findings.candidate.ending.outcome or {}).get("saves", []))

    @cached_property
    def states(self) -> list[tail.State]:
        """What the uninterrupted run held after 0, 1, 2... updates."""
        return tail.states(self.whole)

    @cached_property
    def explanation(self) -> Explanation:
        """The reading under which the reference is the uninterrupted run."""
        return self.case.explanation()

    def judge(self, chains: Sequence[tuple[Cut, ...]] | None) -> Result:
        """The result: of the first chain that did not go well where there are several."""
        candidate = self.case.findings.candidate
        if candidate.trace is None or not candidate.ended:
            return self._result("not_comparable", reason=None if candidate.trace else "the candidate recorded nothing")
        if candidate.wavers is not None:
            return self._result("nondeterministic", first=described(candidate.wavers, None, None))
        self.disturbed = self._disturbed()
        wanted = self.every_cut() if chains is None else [self.settled(chain) for chain in chains]
        if self.kills and chains:
            wanted = self.sweep(chains[0][0], self.kills)
        for chain, attempts in self._attempts(wanted):
            self.found.append(self._named(self.of(chain, attempts)))
        ranks = ("diverged", "match", "not_comparable")
        return self._of_found(min(self.found, key=lambda found: ranks.index(found.verdict)))

    @cached_property
    def windows(self) -> dict[int, int]:
        """How many micro-batches the window after each number of updates has."""
        found: dict[int, int] = {}
        for update, micro in tail.batches(self.whole):
            found[update] = max(found.get(update, 0), micro + 1)
        return found

    @cached_property
    def evaluated(self) -> set[int]:
        """After how many updates the uninterrupted run evaluates the model, as far as it says so."""
        return {row.address.update + 1 for row in self.whole.rows_at(("evaluate", "mode"))}

    def every_cut(self) -> list[tuple[Cut, ...]]:
        """After every update, and what follows it; in the middle of every window, evaluation and save."""
        saved = {(save["updates"], save["micro"]) for save in self.saves}
        found = []
        for updates in range(1, self.whole.last_update + 1):
            found.append(Cut(updates=updates, death=self.death))
            if updates in self.evaluated:
                found.append(Cut(updates=updates, place="evaluate", death=self.death))
            if (updates, 0) in saved:
                found.append(Cut(updates=updates, place="save", death=self.death))
                found.append(Cut(updates=updates, place="saved", death=self.death))
            if self.windows.get(updates, 0) > 1:
                middle = self.windows[updates] // 2
                found.append(Cut(updates=updates, place="micro", micro=middle, death=self.death))
                if (updates, middle) in saved:
                    found.append(Cut(updates=updates, place="save", micro=middle, death=self.death))
        if self.death in IN_A_SAVE:
            found = [cut for cut in found if cut.place == "save"]
        return [self.settled((cut,)) for cut in found]

    def settled(self, chain: tuple[Cut, ...]) -> tuple[Cut, ...]:
        """The cuts with the file and the byte at which a save is interrupted.

        Raises:
            CutError: the uninterrupted run does not come to one of them.
        """
        for cut in chain:
            self._check(cut)
        return tuple(self._placed(cut) if cut.place == "save" and cut.byte is None else cut for cut in chain)

    def _check(self, cut: Cut) -> None:
        made, asked = self.whole.last_update + 1, f"--cut {cut.name}"
        if cut.updates > made:
            raise CutError(f"{asked}: the run is over after {made} updates: cut it after {listed(range(1, made + 1))}")
        there = self.windows.get(cut.updates, 0)
        if self.windows and cut.micro > there:
            after = f"the window after {cut.updates} updates has {there} micro-batches"
            over = f"the run is over after {made} updates"
            raise CutError(f"{asked}: {f'{after}: write {cut.updates}.M, M from 1 to {there}' if there else over}")
        if cut.place == "evaluate" and self.evaluated and cut.updates not in self.evaluated:
            raise CutError(f"{asked}: the model is not evaluated there, but after {listed(self.evaluated)} updates")

    def sweep(self, cut: Cut, count: int) -> list[tuple[Cut, ...]]:
        """Deaths by SIGKILL, spread evenly over the bytes of one save.

        Raises:
            CutError: the uninterrupted run saves nothing there, or fewer bytes than that.
        """
        self._check(cut)
        total = self._placed(cut).size
        if count > total:
            raise CutError(f"--kill-sweep {count}: the save writes {total:,} bytes in all: choose fewer points")
        return [
            self.settled((replace(cut, place="save", death="SIGKILL", offset=(2 * at + 1) * total // (2 * count)),))
            for at in range(count)
        ]

    def _placed(self, cut: Cut) -> Cut:
        """A cut with its place in what is saved there.

        Raises:
            CutError: nothing is.
        """
        written = self.written(cut)
        if not written:
            saved = {save["updates"] for save in self.saves}
            places = f"it writes after {listed(saved)} updates" if saved else "it writes nothing at all in its workdir"
            raise CutError(f"--cut {cut.name}: the trainer saves nothing there: {places}")
        size = sum(size for _, size in written)
        byte = size // 2 if cut.offset is None else cut.offset
        if byte > size:
            raise CutError(f"--cut {cut.name}: the save writes {size} bytes in all: choose one of them")
        return replace(at_byte(cut, written, byte), size=size)

    def written(self, cut: Cut) -> list[tuple[int, int]]:
        """The files that are saved where a cut is, as (order, bytes)."""
        return [(s["order"], s["bytes"]) for s in self.saves if (s["updates"], s["micro"]) == (cut.updates, cut.micro)]

    # One chain

    def _attempts(self, wanted: Sequence[tuple[Cut, ...]]) -> Iterator[tuple[tuple[Cut, ...], Attempts]]:
        """Yield each chain with its first interruption. Fresh processes run ahead of what is compared meanwhile."""

        def told(chain: tuple[Cut, ...]) -> tuple[Cut, ...]:
            self.progress(f"cut {', '.join(cut.name for cut in chain)} ({chain[0].death}): interrupting and resuming")
            return chain

        if self.launch.warm:
            died = self.launch.many([runs.interrupted(chain[0]) for chain in wanted])
            last = self.launch.many([runs.resumed(one.workdir) for one in died])
            for chain, one, other in zip(wanted, died, last, strict=True):
                runs.refuse_usage(one.ending)
                yield told(chain), Attempts(one, other, one.workdir, BEGINNING)
            return
        pool = ThreadPoolExecutor(ABREAST)
        try:
            ahead = [pool.submit(self._attempt, chain[0]) for chain in wanted]
            for chain, attempts in zip(wanted, ahead, strict=True):
                yield told(chain), attempts.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _named(self, found: Found) -> Found:
        """With the parts that the resumed run lacks, if it is another than the uninterrupted one."""
        if found.verdict != "diverged":
            return found
        assert found.pair is not None
        if found.anew:
            return replace(found, causes=everything(found.pair, self.case.request.recipe))
        return replace(found, causes=self.naming(found.pair).causes())

    def of(self, chain: tuple[Cut, ...], attempts: Attempts) -> Found:
        """Compare what was resumed after the first cut; interrupt it again, and resume, for each further cut."""
        point = BEGINNING
        for number, cut in enumerate(chain):
            if number:
                attempts = self._attempt(cut, attempts.source, point)
            if (reason := self._went_on(attempts.died, cut, point)) is not None:
                return Found(chain[: number + 1], attempts.died, reason=reason)
            assert attempts.last is not None
            found = self._compared(chain[: number + 1], attempts.last, self._saved(cut, attempts))
            if found.verdict != "match" or found.pair is None:
                break
            point = found.pair.point
        return found

    def _attempt(self, cut: Cut, source: Path | None = None, began: Point = BEGINNING) -> Attempts:
        """Run to a cut, and go on from what was saved. May be called from a thread.

        source: the workdir to go on from; began: where that run began. None: from the start of training.
        """
        died = self.launch(runs.interrupted(cut, began.updates, source))
        runs.refuse_usage(died.ending)
        if source is None or any(died.workdir.iterdir()):
            source = died.workdir
        last = None if self._went_on(died, cut, began) is not None else self.launch(runs.resumed(source))
        return Attempts(died, last, source, began)

    def _went_on(self, died: runs.Attempt, cut: Cut, began: Point) -> str | None:
        """Why a run, which began at a point, was not interrupted; None if it was."""
        outcome = died.ending.outcome
        if died.ending.status == "hung":
            return f"the run to be interrupted {died.ending.detail}"
        if outcome is None or outcome["interrupted"] or died.ending.status == "raised":
            return None
        if outcome["struck"]:
            over = began.updates + outcome["updates"] > self.whole.last_update
            return f"the run was not interrupted: it got over {cut.death} and trained to the end" if over else None
        if cut.place == "evaluate":
            return f"the run never came to the cut: no evaluation was seen after {cut.updates} updates"
        return f"the run never came to the cut: it ended after {outcome['updates']} updates: choose an earlier one"

    def _saved(self, cut: Cut, attempts: Attempts) -> list[Point]:
        """Where the run had saved before it died, the last first."""
        reached = Point(cut.updates, cut.micro)
        points = {Point(save["updates"], save["micro"]) for save in self.saves}
        points = {p for p in points if p < reached or (cut.place == "saved" and p == reached)}
        own = {Point(save["updates"] + attempts.began.updates, save["micro"]) for save in attempts.died.saves}
        broken = {reached} if cut.place in ("save", "saved") else set()
        return sorted(points | (own - broken), reverse=True)

    def _compared(self, chain: tuple[Cut, ...], last: runs.Attempt, saved: list[Point]) -> Found:
        newest = saved[0] if saved else None
        if last.ending.status == "usage" or last.trace is None or not last.trace.has(("start", "parameter")):
            return Found(chain, last, newest, reason=self._no_start(last, saved))
        pair, comparison = self._nearest(last, self._beginnings(last.trace, saved, chain[-1]), newest)
        notes: tuple[str, ...] = ()
        anew = False
        if pair.point == BEGINNING and comparison.first is None and last.ending.status == "completed":
            if not self.saves:
                return Found(chain, last, None, pair, reason=f"{NOTHING_SAVED}, and the resumed one began anew")
            if newest is None:
                notes = ("nothing had been saved when the run died, and the resumed one began with the first update",)
            elif newest.updates:
                anew = True
                pair, comparison = self._paired(last, Point(newest.updates))
                notes = ("the resumed run began with the first update again, though there was something to resume",)
        if last.ending.status != "completed" and comparison.first is None:
            words = f"the resumed run {last.ending.status}: {last.ending.detail}"
            return Found(chain, last, newest, pair, reason=words)
        return Found(chain, last, newest, pair, comparison, notes=notes, anew=anew)

    def _nearest(
        self, last: runs.Attempt, beginnings: Iterator[Point], newest: Point | None
    ) -> tuple[Pair, Comparison]:
        """The beginning from which the resumed run is the uninterrupted one, else the likeliest.

        Where nothing had been saved as a whole, that is the one from which it is so for longest.
        """
        chosen: tuple[Pair, Comparison] | None = None
        for point in beginnings:
            pair, comparison = self._paired(last, point)
            if comparison.first is None:
                return pair, comparison
            if chosen is None or (
                newest is None and Standing(comparison.first, None).key > Standing(chosen[1].first, None).key
            ):
                chosen = pair, comparison
        assert chosen is not None
        return chosen

    def _beginnings(self, trace: Trace, saved: list[Point], cut: Cut) -> Iterator[Point]:
        """Where the resumed run may take up, the likeliest first, found from the state that it starts with.

        States that are equal are told apart by what comes of them. A run that starts with the initial state though
        there was something to resume, and is not the uninterrupted run from there, lacks the parameters.
        """
        fits = tail.fitting(tail.start_state(trace), self.states)
        usable = [point for point in saved if point.updates in fits]
        if saved and saved[0].updates not in fits and (not fits or fits[0] == 0):
            yield Point(saved[0].updates)
        yield from (self._inside(trace, point) for point in usable)
        if not saved and 0 in fits:
            yield BEGINNING
        yield from (Point(updates) for updates in reversed(fits) if updates <= cut.updates)
        yield from (Point(updates) for updates in fits if updates > cut.updates)  # it went on for a while
        if not fits and not saved:
            yield BEGINNING

    def _no_start(self, last: runs.Attempt, saved: list[Point]) -> str:
        words = f"the resumed run {'raised' if last.ending.outcome else 'ended'}: {last.ending.detail or 'no update'}"
        if not saved:
            return f"nothing had been saved when the run died, and {words}"
        return words

    def _inside(self, trace: Trace, point: Point) -> Point:
        """The point, or the beginning of its window where the resumed run's first batch is the one there."""
        if not point.micro:
            return point
        ours, theirs = tail.batches(self.whole), tail.batches(trace)
        first = next(iter(theirs.values()), None)
        return point if ours.get((point.updates, point.micro)) == first else Point(point.updates)

    def _paired(self, last: runs.Attempt, point: Point) -> tuple[Pair, Comparison]:
        folder = self.root / f"pair{next(self._folders):03d}"
        assert last.trace is not None
        pair = Pair(
            point,
            tail.uninterrupted(self.whole, point, folder / "uninterrupted"),
            tail.resumed(last.trace, point, tail.micros_before(self.whole, point), folder / "resumed"),
            self.whole,
            last.folder,
            self._broken_log(point),
        )
        through = None if last.ending.status == "completed" else pair.resumed.last_whole_update(self.whole.processes)
        return pair, compare(pair.whole, pair.resumed, pair.rules, through_update=through)

    def _broken_log(self, point: Point) -> int | None:
        """The update whose report is on updates before a point, too; None if there is none."""
        log = self.case.request.recipe.log
        if log is None or log.every == 1 or point.updates % log.every == 0:
            return None
        return next((update for update in range(point.updates, self.whole.last_update + 1)
                     if (update + 1) % log.every == 0), None)  # fmt: skip

    def naming(self, pair: Pair) -> Naming:
        """What names the parts that a resumed run lacks."""
        folder = pair.whole.folder.parent / "reference"
        findings = self.case.findings
        return Naming(
            pair, lambda: self.explanation, findings.replays, folder, self.progress, findings.candidate.unsteady
        )

    def _control(self, pair: Pair) -> str:
        """What the reference loop's own resume comes to at the same point, as the recipe asks it to train."""
        findings, folder = self.case.findings, pair.whole.folder.parent / "control"

        def asked() -> Explanation:
            return Explanation(reading=findings.reading, replay=findings.reference, standing=Standing(None, None))

        naming = Naming(pair, asked, findings.replays, folder, self.progress)
        if not naming.alone:
            return "no control: the reference loop is not resumed on several ranks"
        control = naming.control
        words = "is its uninterrupted run, bit for bit" if control else "is not its uninterrupted run"
        return f"control: the reference loop, interrupted and resumed at this point, {words}"

    # Saying

    def _of_found(self, found: Found) -> Result:
        comparison, pair = found.comparison, found.pair
        first = site = None
        unexplained: tuple[Unexplained, ...] = ()
        if comparison is not None and comparison.first is not None and pair is not None:
            first = described(comparison.first, *_tensors(pair, comparison.first))
            site = find_site(pair.whole, pair.resumed, comparison.first)
            unexplained = () if found.causes else (Unexplained(site=site),)
        result = self._result(
            found.verdict,
            comparison,
            first=first,
            site=site,
            causes=found.causes,
            unexplained=unexplained,
            latent=tuple(_latent(comparison)) if comparison else (),
            reason=found.reason,
            notes=found.notes if len(self.found) == 1 else (),
        )
        well = all(each.verdict == "match" or each.saved is None for each in self.found)
        return replace(
            result,
            resumptions=tuple(map(_resumption, self.found)),
            one_sided=tuple(one_sided(comparison)),
            notes=(*result.notes, *self._notes(pair if comparison is not None else None)),
            passed=result.passed and well and self.disturbed is None,
        )

    def _notes(self, pair: Pair | None) -> Iterator[str]:
        yield from self._failures()
        yield from self._saving()
        if pair is not None:
            yield self._control(pair)
        if os.environ.get(UNRESTRICTED):
            yield f"{UNRESTRICTED} is set: whatever the trainer loads is unpickled without restriction"

    def _disturbed(self) -> Difference | None:
        """Where the run differs from one that saves nothing; None if it does not."""
        recipe = {key: value for key, value in self.case.findings.runs.spec["recipe"].items() if key != "checkpoint"}
        plain = self.launch({"recipe": recipe, "watch": False})
        if plain.ending.status != "completed" or plain.trace is None:
            return None
        return next(differences(plain.trace, self.whole, rules(plain.trace, self.whole), decisive_only=True), None)

    def _saving(self) -> Iterator[str]:
        """Say what the saves hold, and whether saving changes the training."""
        items = list(self.whole.rows_at(("checkpoint", "item")))
        unlike = Counter(
            (row.address.name.partition(" ")[0], str(row.content)) for row in items if row.content != "identical"
        )
        total = Counter(row.address.name.partition(" ")[0] for row in items)
        if items and not unlike:
            yield f"what is saved equals what is live, bit for bit: {len(items):,} tensors"
        for (kind, relation), count in unlike.items():
            first = next(row for row in items if (row.content, row.address.name.partition(" ")[0]) == (relation, kind))
            name = first.address.name.partition(" ")[2]
            yield f"saved {kind.replace('_', ' ')}: {count:,} of {total[kind]:,} {relation}, first {name}"
        if self.disturbed is not None:
            address = self.disturbed.address
            place = f"{address.kind} {address.name} at {address.moment} of update {address.update}"
            yield f"saving changes the training: without it, the first difference is {place}"

    def _failures(self) -> Iterator[str]:
        """Say what came of several interruptions: of kills all of it, else how many could not be resumed."""
        if self.kills:
            count = Counter("anew" if found.anew else found.verdict for found in self.found)
            size = self.found[0].cuts[0].size
            went = (
                "from a whole save" if self.found[0].saved else "from the beginning, as nothing had been saved before"
            )
            anew = f", {count['anew']} times it began anew, though something had been saved" if count["anew"] else ""
            yield (
                f"killed at {len(self.found)} points of the {size:,} bytes that a save writes: {count['match']} times "
                f"it went on {went}, {count['not_comparable']} times it failed loudly, {count['diverged']} "
                f"times it trained on from something wrong{anew}"
            )
            return
        lost = [found for found in self.found if found.verdict == "not_comparable" and found.saved is not None]
        if lost and len(self.found) > 1:
            yield f"{len(lost)} of {len(self.found)} runs did not resume, though something whole had been saved before"

    def _result(self, verdict: Any, comparison: Comparison | None = None, **more: Any) -> Result:
        result = self.case._result(verdict, comparison, **more)
        return replace(result, command="resume", compared=compared(comparison))


def at_byte(cut: Cut, written: Sequence[tuple[int, int]], byte: int) -> Cut:
    """A cut in a save, at a byte of all that is written there.

    written: the files as (order, bytes).
    """
    for order, size in written:
        if byte < size:
            return replace(cut, place="save", file=order, byte=byte)
        byte -= size
    order, size = written[-1]
    return replace(cut, place="save", file=order, byte=size)


def _tensors(pair: Pair, difference: Any) -> tuple[Any, Any]:
    from diffs.captured import read_tensors

    found = [read_tensors(trace.folder).get(difference.address) for trace in (pair.whole, pair.resumed)]
    return found[0], found[1]


def _latent(comparison: Comparison) -> Iterator[Latent]:
    if comparison.first is not None:
        return
    for difference in comparison.latent:
        sides = [row.content if row else None for row in (difference.reference, difference.candidate)]
        yield Latent(**difference.address._asdict(), reference=sides[0], candidate=sides[1])


def _resumption(found: Found) -> Resumption:
    first = found.comparison.first if found.comparison is not None else None
    cause = found.causes[0] if found.causes else None
    return Resumption(
        cut=",".join(cut.name for cut in found.cuts),
        death=found.cuts[-1].death,
        verdict=found.verdict,  # type: ignore[arg-type]
        saved=found.saved.updates if found.saved is not None else None,
        began=None if found.pair is None else 0 if found.anew else found.pair.point.updates,
        began_micro=found.pair.point.micro if found.pair is not None else 0,
        at=At(update=first.address.update, moment=first.address.moment) if first is not None else None,
        missing=str(cause.candidate) if cause is not None else None,
        status=cause.status if cause is not None else None,
        reason=found.reason or next(iter(found.notes), None),
    )
