"""A cell says no more than its result proves, and is asked again when what it rests on has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oracle import cluster, environment
from oracle.matrix import cell, recipes
from oracle.matrix.cell import Answer, Cell, answered
from oracle.result import At, CandidateOutcome, Cause, Compared, FirstDivergence, Result, Site, Unexplained

FIRST = FirstDivergence(update=1, micro=-1, moment="consume", kind="gradient", name="w")
CELL = Cell(trainer="accelerate", requirements=(), task="regression", variant="own")


def result(verdict: str, *causes: Cause, **more) -> Result:
    return Result(
        command="check", verdict=verdict, policy="noise", passed=False, reference={}, rerun="", causes=causes,
        candidate={"versions": {"python": "3.11", "accelerate": "1.15.0"}}, compared=Compared(updates=4, addresses=100),
        **{"candidate_outcome": CandidateOutcome(status="completed"), **more},
    )  # fmt: skip


def cause(knob: str, value: str, status: str = "confirmed", effect: str = "semantic", **more) -> Cause:
    return Cause(
        knob=knob, reference="other", candidate=value, status=status, effect=effect,
        at=At(update=1, moment="consume"), **{"identical_through_update": 3, **more},
    )  # fmt: skip


TAIL = cause("accumulation.tail", "drop")
KERNEL = cause("optimizer.kernel", "fused", effect="style")
DROP, PLACE, IDLE = ("accumulation.tail = drop",), "update 1, consume: gradient of w", "every gradient is zero"
GAP = Unexplained(site=Site(update=2, micro=0, moment="backward", kind="gradient", name="w"))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (result("match"), {"state": "match"}),
        (
            result("rounding", KERNEL, first_divergence=FIRST),
            {"state": "rounding", "causes": ("optimizer.kernel = fused",)},
        ),
        (result("rounding", first_divergence=FIRST), {"state": "rounding", "rounds": PLACE}),
        (result("diverged", TAIL, first_divergence=FIRST), {"state": "explained", "causes": DROP}),
        (
            result("diverged", replace(TAIL, identical_through_update=2), first_divergence=FIRST),
            {"state": "explained", "causes": DROP, "rounds": "from update 3 on"},
        ),
        (
            result("diverged", replace(TAIL, status="suggested", indistinguishable=("accumulation.tail = leak",))),
            {"state": "explained", "causes": ("accumulation.tail = drop or 1 like it",)},
        ),
        (
            result("diverged", replace(TAIL, status="suggested", evidence=("it shows once",))),
            {"state": "suggested", "doubts": DROP, "reason": "accumulation.tail = drop: it shows once"},
        ),
        (
            result("diverged", replace(TAIL, status="suggested", identical_through_update=None)),
            {
                "state": "suggested",
                "doubts": DROP,
                "reason": "accumulation.tail = drop: what it leaves is not bit-identical",
            },
        ),
        (
            result("diverged", TAIL, unexplained=(GAP,)),
            {
                "state": "unexplained",
                "causes": DROP,
                "places": ("update 2, micro 0, backward: gradient of w",),
            },
        ),
        (
            result("nondeterministic", first_divergence=FIRST),
            {"state": "failed", "reason": "it does not repeat itself at update 1, consume: gradient of w"},
        ),
        (result("not_comparable", reason=IDLE), {"state": "failed", "reason": IDLE}),
        (
            result("diverged", candidate_outcome=CandidateOutcome(status="raised", error="ValueError: no\nreally")),
            {"state": "failed", "reason": "ValueError: no"},
        ),
    ],
)
def test_what_a_result_proves(found: Result, expected: dict) -> None:
    assert answered(found) == Answer(key="", versions={"accelerate": "1.15.0"}, **expected)


def test_an_answer_comes_back_from_its_file(tmp_path) -> None:
    file = CELL.file(tmp_path)
    assert cell.kept(file) is None
    answer = Answer(
        key="k", state="explained", causes=("a = b",), places=("here",), versions={"torch": "2"}, seconds=1.5
    )
    cell.keep(answer, file)
    assert cell.kept(file) == answer
    file.write_text(file.read_text()[:-20])
    assert cell.kept(file) is None
    file.write_text('{"key": "k"}')
    assert cell.kept(file) is None


def test_cells_have_files_of_their_own(tmp_path) -> None:
    every = [
        Cell(trainer=trainer, requirements=requirements, task=task, variant=variant)
        for trainer, requirements in (("a", ()), ("a", ("x==1",)), ("a", ("x==2",)))
        for task in ("t", "u") for variant in ("own", "clip")
    ]  # fmt: skip
    assert len({one.file(tmp_path) for one in every}) == len(every)


def test_what_an_answer_rests_on_is_in_its_key(monkeypatch) -> None:
    place = environment.prepare()
    known = cell.key(CELL, place)
    assert known == cell.key(CELL, place)
    assert known != cell.key(replace(CELL, variant="clip"), place) != cell.key(replace(CELL, task="tokens"), place)
    assert known != cell.key(CELL, replace(place, holds={"accelerate": "1.0"}))
    assert known != cell.key(CELL, replace(place, versions={**place.versions, "torch": "2.6.0"}))
    monkeypatch.setattr(cell.source, "digest", lambda: "another")
    assert known != cell.key(CELL, place)


def test_a_tasks_packages_join_those_of_the_trainer() -> None:
    newest = cell.NEEDS["llama"]
    assert replace(CELL, task="llama").all_requirements == newest
    old = Cell(trainer="transformers", requirements=("transformers==4.54.0",), task="llama", variant="own")
    assert old.all_requirements == ("transformers==4.54.0",)
    assert CELL.all_requirements == ()


def test_the_command_asks_the_same() -> None:
    one = replace(CELL, variant="float16", requirements=("accelerate==1.15.0",))
    words = one.command
    assert words.startswith("oracle check regression --trainer accelerate --with accelerate==1.15.0 --set ")
    assert words.endswith("--argument float16.on_cpu=true")
    assert words.count("--set") == len(recipes.sets("float16", "regression"))


def test_a_trainer_that_is_not_installed_is_absent() -> None:
    worker = cluster.Worker()
    try:
        found = cell.run(worker, replace(CELL, trainer="transformers"))
        assert found.state == "absent" and found.key == ""
        assert found.reason.startswith("transformers is not installed here: add a release of transformers")
        there = cell.run(worker, CELL)
        assert there.state == "match" and there.key and there.seconds > 0
    finally:
        worker.close()
