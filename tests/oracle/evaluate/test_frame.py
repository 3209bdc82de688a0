"""The frame of an evaluation, on evidence that is made by hand: nothing is trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oracle.evaluate import archive, check, compare, conclusions, conditions, frame, observations, scenario
from oracle.evaluate.check import About, Check, Found
from oracle.evaluate.conditions import ConditionsDiffer
from oracle.evaluate.evidence import Evidence, NotRun
from oracle.evaluate.record import Record
from oracle.evaluate.schema import (
    DIMENSIONS,
    Evaluation,
    EvaluationError,
    Observation,
    Quantity,
    Row,
    Setting,
    from_dict,
)
from oracle.report import evaluations

RESEARCH = scenario.load("research")


def row(name: str, status: Any = "pass", says: str = "it is so", **more: Any) -> Row:
    dimension, _, check_name = name.partition(".")
    return Row(
        check=check_name, dimension=dimension, step=2, status=status, says=says, artifacts=("artifacts/a.json",), **more
    )


def evaluation(
    *rows: Row, conditions: dict[str, Any] | None = None, observed: tuple[Observation, ...] = ()
) -> Evaluation:
    return Evaluation(
        trainer="t",
        title="t 1.0",
        scenario={"name": "research", "about": "this"},
        conditions=conditions or {},
        surroundings={"versions": {"torch": "1"}},
        rows=rows,
        left_out={},
        observations=observed,
        conclusions=conclusions.conclude("t 1.0", RESEARCH, rows, {}, observed, "a machine"),
        date="2026-12-01",
        seconds=1.0,
        command="oracle evaluate",
        oracle="0",
    )


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    record = Record(tmp_path)
    record.write("there", {"task": "t", "recipe": {}})
    return Evidence(record, RESEARCH, {})


def judged(evidence: Evidence, judge: Any) -> Row:
    return Check("some", About(dimension="functional", step=1, needs=()), judge).row(evidence)


def test_every_filled_cell_names_what_it_rests_on(evidence: Evidence) -> None:
    def judge(evidence: Evidence) -> Found:
        evidence.get("there")
        return Found(status="pass", says="so it is")

    assert judged(evidence, judge).artifacts == ("artifacts/there.json",)


def test_a_cell_filled_without_evidence_is_refused(evidence: Evidence) -> None:
    with pytest.raises(ValueError, match=r"functional\.some filled a cell without evidence"):
        judged(evidence, lambda evidence: Found(status="pass", says="believe me"))


def test_what_was_not_run_says_so(evidence: Evidence) -> None:
    found = judged(evidence, lambda evidence: evidence.get("absent"))
    assert (found.status, found.says) == ("not_run", "not run: absent was not run")


def test_each_check_is_one_file_of_a_known_dimension() -> None:
    found = check.every()
    assert {one.about.dimension for one in found} == set(DIMENSIONS)
    assert len({one.name for one in found}) == len(found)
    assert [one.about.step for one in found] == sorted(one.about.step for one in found)
    for name in scenario.names():
        known = frame.check.every()
        assert set(scenario.load(name).required) <= {one.full_name for one in known}


def test_every_need_of_a_check_is_an_experiment(evidence: Evidence) -> None:
    for one in check.every():
        needs = one.needs(evidence.experiments, "large")
        assert needs and set(needs) <= set(evidence.experiments), one.full_name


def test_a_scenario_names_what_is_wrong_with_it(tmp_path: Path) -> None:
    with pytest.raises(scenario.ScenarioError, match="did you mean 'research'"):
        scenario.load("reserch")
    own = tmp_path / "own.toml"
    own.write_text((scenario.FOLDER / "research.toml").read_text().replace('"decides"', '"rules"'))
    with pytest.raises(scenario.ScenarioError, match="informs, matters, decides"):
        scenario.load(str(own))


def quantity(under: str, value: float = 1.0) -> Quantity:
    return Quantity(name="time", value=value, unit="s", under=under)


def test_numbers_under_different_conditions_are_refused_side_by_side() -> None:
    ours, theirs = {"a": {"cores": 2, "task": "t"}}, {"b": {"cores": 16, "task": "t"}}
    with pytest.raises(ConditionsDiffer, match="cores: 2 and 16"):
        conditions.side_by_side(quantity("a"), quantity("b"), ours, theirs)
    conditions.side_by_side(quantity("a"), quantity("a"), ours, ours)


def test_a_number_without_conditions_is_not_shown() -> None:
    found = evaluation(row("performance.time", quantities=(quantity("nowhere"),)))
    with pytest.raises(EvaluationError, match="without its conditions"):
        list(evaluations.lines(found))
    with pytest.raises(EvaluationError, match="without its conditions"):
        evaluations.markdown(found)


def test_two_evaluations_are_compared_and_unlike_numbers_refused(tmp_path: Path) -> None:
    facts = {"a": {"cores": 2}}
    first = evaluation(row("performance.time", quantities=(quantity("a"),)), conditions=facts)
    second = evaluation(row("performance.time", "fail", quantities=(quantity("b"),)), conditions={"b": {"cores": 4}})
    assert compare.rows(first, second)[0]["row"] == "performance.time"
    (entry,) = compare.quantities(first, second)
    assert "refused" in entry and "reference" not in entry
    (entry,) = compare.quantities(first, first)
    assert (entry["reference"], entry["candidate"]) == (1.0, 1.0)


def adoption(*rows: Row, left_out: dict[str, str] | None = None) -> str:
    return conclusions.adoption("t", RESEARCH, rows, left_out or {}).says


def test_a_fast_trainer_that_is_shifted_is_no_pass() -> None:
    assert "is not to be adopted as it is" in adoption(row("performance.time"), row("consistency.same_seed", "fail"))


def test_what_only_informs_is_no_condition() -> None:
    assert adoption(row("semantic.rates"), row("performance.time", "fail")).endswith("can be adopted")
    assert "under the conditions below" in adoption(row("functional.logging", "fail"))


def test_what_decides_and_is_not_known_leaves_it_open() -> None:
    assert "cannot be judged before" in adoption(row("semantic.rates", "cannot_tell"))
    assert "functional.training" in adoption(row("semantic.rates"), left_out={"functional.training": "no time"})


def test_a_setting_that_nobody_set_is_named_first() -> None:
    unset = Setting(
        name="hyperparameter.max_norm", asked="none", acts="1", source="default of A.max=1", argument="A.max"
    )
    found = evaluation(row("semantic.hidden", "conditional", unset=(unset,)), row("functional.logging", "fail"))
    said = [one.says for one in found.conclusions if one.kind == "condition"]
    assert said[0].startswith("If A.max is not set, hyperparameter.max_norm is 1")


def test_conclusions_quote_no_measured_number() -> None:
    first, second = (
        evaluation(row("performance.time", quantities=(quantity("a", value),)), conditions={"a": {}})
        for value in (1.0, 1.7)
    )
    assert first.conclusions == second.conclusions


OBSERVED = """
[[observation]]
date = 2026-11-20
kind = "canary"
row = "functional.resume"
outcome = "fail"
says = "a node was lost and the run began anew"
source = "https://example.com/runs/7"
"""


def test_an_observation_says_what_it_changed(tmp_path: Path) -> None:
    file = tmp_path / "seen.toml"
    file.write_text(OBSERVED)
    seen = observations.load(file, ["functional.resume"])
    found = evaluation(row("functional.resume"), row("functional.training"), observed=seen)
    (said,) = (one.says for one in found.conclusions if one.kind == "observation")
    assert "functional.resume goes from pass to fail" in said
    assert "the conclusion on adoption changes" in said
    assert "can be adopted under the conditions below" in found.conclusions[0].says


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("functional.resume", "functional.resum"), "did you mean 'functional.resume'"),
        (("2026-11-20", '"yesterday"'), "isoformat"),
        (('"canary"', '"rumour"'), "canary"),
    ],
)
def test_observations_that_say_nothing_are_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    file = tmp_path / "seen.toml"
    file.write_text(OBSERVED.replace(*change))
    with pytest.raises(observations.ObservationsRefused, match=message):
        observations.load(file, ["functional.resume"])


def test_an_evaluation_survives_being_written() -> None:
    found = evaluation(row("performance.time", quantities=(quantity("a"),)), conditions={"a": {"cores": 2}})
    assert from_dict(json.loads(found.to_json())) == found
    with pytest.raises(EvaluationError, match="of schema 1 was expected"):
        from_dict({"evaluation": 9})


def test_a_record_of_something_else_is_not_continued(tmp_path: Path) -> None:
    record = Record(tmp_path)
    assert record.begin({"trainer": "a"}) is False
    assert record.begin({"trainer": "a"}) is True
    with pytest.raises(EvaluationError, match="another trainer"):
        record.begin({"trainer": "b"})


def test_a_budget_chooses_the_same_checks_each_time_and_says_what_it_left_out(evidence: Evidence) -> None:
    def laid_out(minutes: float | None) -> tuple[list[str], dict[str, str]]:
        asked = frame.Asked(
            trainer="t", scenario=RESEARCH, folder=evidence.record.folder, dimensions=DIMENSIONS, budget=minutes
        )
        chosen, left_out = frame.laid_out(check.every(), asked, evidence)
        return [one.full_name for one in chosen], left_out

    every, nothing = laid_out(None)
    assert nothing == {} and laid_out(20)[1] == {}
    few, left_out = laid_out(1)
    assert laid_out(1) == (few, left_out)
    assert {*few, *left_out} == set(every) and "functional.training" in few
    assert all("--budget 1 allows" in reason for reason in left_out.values())


def sealed(folder: Path) -> Path:
    Record(folder).write("a", {"task": "t"})
    found = evaluation(row("functional.gone"))
    (folder / archive.EVALUATION).write_text(found.to_json())
    archive.seal(folder, found, "a report")
    return folder


def test_a_changed_a_missing_and_an_added_file_are_found(tmp_path: Path) -> None:
    folder = sealed(tmp_path / "record")
    (folder / "artifacts" / "a.json").write_text("{}")
    (folder / "report.md").unlink()
    (folder / "new.txt").write_text("")
    said = archive.verify(folder)
    assert {"report.md is missing", "new.txt was added", "artifacts/a.json is not what was sealed"} <= set(said)


def test_a_zip_is_an_archive_too(tmp_path: Path) -> None:
    folder = sealed(tmp_path / "record")
    archive.pack(folder, tmp_path / "one.zip")
    archive.pack(folder, tmp_path / "other.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "other.zip").read_bytes()
    assert archive.recognises(tmp_path / "one.zip") and archive.recognises(folder)
    assert archive.read(tmp_path / "one.zip") == archive.read(folder)
    with pytest.raises(EvaluationError, match="no archive"):
        archive.verify(tmp_path)


def test_not_run_is_no_failure(evidence: Evidence) -> None:
    def judge(evidence: Evidence) -> Found:
        raise NotRun("ranks are not there")

    assert judged(evidence, judge).says == "not run: ranks are not there"
