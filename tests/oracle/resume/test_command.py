"""A run that resumes as it should is silent, whatever it died of; one that does not is named with the part it lacks."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest

from oracle import zoo
from oracle.cli import main
from oracle.report import text
from oracle.resume import cuts
from oracle.resume.command import resume, saving
from oracle.resume.cuts import CutError, parse
from reference_loop.recipe import Evaluate, from_dict

SPECIMENS = {one.name: one for one in zoo.specimens(zoo.folder()) if one.cut}
# What a fault comes to at some places: restored before the order is drawn lazily, the generators move with it, so at an
# epoch's edge they alone are at fault; what is saved on the way out of a window begins it again, with later generators.
ELSEWHERE = {"h_restores_generators_too_early": {"rng"}, "h_saves_on_its_way_out": {"rng"}}
UNEVALUATED = {"h_saves_on_its_way_out"}  # an evaluation that never was is at fault, too
DEATHS = ("exception", "SIGTERM", "SIGINT", "SIGKILL")
FEW = ("h_forgets_the_optimizer", "h_skips_a_batch_too_many", "h_forgets_the_gradient")


@pytest.mark.parametrize("death", ["exception", "SIGTERM", "SIGINT", "SIGKILL", "full-disk", "read-only"])
def test_a_whole_save_is_gone_on_from_whatever_the_run_died_of(interrupt, death):
    result = interrupt("Whole", "3:save", death)
    (one,) = result.resumptions
    assert (result.verdict, one.death, one.saved, one.began) == ("match", death, 2, 2)
    assert result.passed and result.exit_code == 0


@pytest.mark.parametrize(
    ("cut", "began"), [("2", 1), ("2:saved", 2), ("2.1", 2), ("3:save+100", 2), ("1", 0), ("1:saved,3", 2)]
)
def test_the_resumed_run_carries_the_numbers_of_the_state_it_starts_with(interrupt, cut, began):
    result = interrupt("Whole", cut)
    assert (result.verdict, result.resumptions[0].began) == ("match", began)


def test_every_cut_makes_a_map(interrupt):
    result = interrupt("Whole", "all")
    assert {one.verdict for one in result.resumptions} == {"match"}
    assert {"1", "1:save", "1:saved", "1.1"} <= {one.cut for one in result.resumptions}
    lines = text.render(result)
    assert "cut" in lines and "1:saved" in lines


def test_what_is_saved_and_what_saving_does_is_said(interrupt):
    result = interrupt("Whole", "2")
    assert any(note.startswith("what is saved equals what is live") for note in result.notes)
    assert any(note.endswith("is its uninterrupted run, bit for bit") for note in result.notes)
    result = interrupt("Half", "2")
    assert "saved parameter: 16 of 16 cast to bfloat16, first 0.weight" in result.notes
    assert result.verdict == "diverged" and result.first_divergence.moment == "start"
    result = interrupt("Disturbs", "3", task="decoder")
    assert not result.passed
    assert any(note.startswith("saving changes the training") for note in result.notes)


def test_a_run_that_saves_on_a_signal_goes_on_from_there(interrupt):
    result = interrupt("SavesOnTerm", "2", "SIGTERM")
    assert (result.verdict, result.resumptions[0].began) == ("match", 2)


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        ("9", "--cut 9: the run is over after 4 updates: cut it after 1 to 4"),
        ("2.99", "--cut 2.99: the window after 2 updates has 3 micro-batches: write 2.M, M from 1 to 3"),
        ("4.1", "--cut 4.1: the run is over after 4 updates"),
        ("1,2:evaluate", "--cut 2:evaluate: the model is not evaluated there, but after 3 updates"),
    ],
)
def test_a_place_to_which_the_run_does_not_come_is_refused(interrupt, cut, said):
    with pytest.raises(CutError, match=f"^{said}"):
        interrupt("Evaluates", cut)


def test_an_evaluation_that_is_not_there_is_said(interrupt):
    result = interrupt("Whole", "2:evaluate")
    assert (result.verdict, result.exit_code) == ("not_comparable", 3)
    assert result.reason == "the run never came to the cut: no evaluation was seen after 2 updates"


def test_a_run_that_gets_over_it_was_not_interrupted(interrupt):
    result = interrupt("Deaf", "2", "SIGTERM")
    assert (result.verdict, result.exit_code) == ("not_comparable", 3)
    assert result.reason == "the run was not interrupted: it got over SIGTERM and trained to the end"


def test_a_run_that_ends_later_goes_on_from_where_it_ended(interrupt):
    for cut in ("2", "2:save"):
        result = interrupt("EndsLater", cut, "SIGTERM")
        assert (result.verdict, result.resumptions[0].began) == ("match", 3)


def test_states_that_are_equal_are_told_apart_by_what_comes_of_them(server):
    # The first learning rate is 0, so that the parameters are the initial ones after the first update, too.
    one = SPECIMENS["h_loads_the_optimizer_if_it_is_there"]
    (found,) = resume(zoo.request(one), [parse("1:save")], server=server).resumptions
    assert (found.began, found.missing, found.status) == (1, "optimizer", "confirmed")
    one = SPECIMENS["h_forgets_the_gradient"]
    (found,) = resume(zoo.request(one), [parse("1")], server=server).resumptions
    assert (found.began, found.began_micro, found.missing) == (0, 2, "accumulated_gradient")


def test_a_run_that_trains_on_behind_the_end_diverges(server):
    one = SPECIMENS["h_starts_the_epoch_again"]
    (found,) = resume(zoo.request(one), [parse("6:saved")], server=server).resumptions
    assert (found.verdict, found.saved, found.status) == ("diverged", 6, None)


def test_a_run_that_begins_anew_though_something_was_saved_restores_nothing(interrupt):
    result = interrupt("Anew", "3")
    assert (result.verdict, result.exit_code) == ("diverged", 1)
    (cause,) = result.causes
    assert cause.candidate == "counter,cursor,optimizer,order,parameter,rng" and cause.status == "confirmed"
    (one,) = result.resumptions
    assert (one.saved, one.began) == (2, 0)
    said = text.render(result)
    assert "the candidate restores nothing of what was saved." in said
    assert "nothing restored (confirmed): the resumed run began with the first update again" in said


def test_nothing_to_resume_is_said_in_the_first_line(interrupt):
    result = interrupt("Whole", "1")
    assert result.verdict == "match"
    assert text.render(result).partition("\n")[0].endswith("; nothing was resumed, as nothing had been saved")
    assert "nothing was resumed" not in text.render(interrupt("Whole", "2"))
    result = interrupt("SavesNowhere", "3")
    assert (result.verdict, result.exit_code) == ("not_comparable", 3)
    assert result.reason.startswith("the uninterrupted run wrote nothing in its workdir")


def test_a_failing_save_that_is_survived_is_no_end(interrupt):
    assert interrupt("Carries", "2:save", "full-disk").verdict == "match"


@pytest.mark.parametrize(
    ("name", "good", "loud", "wrong"),
    [
        ("Whole", 4, 0, 0),
        ("InPlace", 0, 4, 0),
        ("Anew", 0, 0, 4),
        pytest.param("TwoFiles", 1, 0, 3, marks=pytest.mark.slow),
    ],
)
def test_kills_over_the_bytes_of_a_save(interrupt, name, good, loud, wrong):
    result = interrupt(name, "3", kills=4)
    count = [one.verdict for one in result.resumptions]
    assert [count.count(verdict) for verdict in ("match", "not_comparable", "diverged")] == [good, loud, wrong]
    assert [one.cut.partition("+")[0] for one in result.resumptions] == ["3:save"] * 4
    assert result.passed is (good == 4)


def test_a_place_where_nothing_is_saved_is_refused(interrupt):
    with pytest.raises(CutError, match=r"--cut 2.1:save: the trainer saves nothing there: it writes after 1 to 4 upd"):
        interrupt("Whole", "2.1:save")


def test_more_kills_than_bytes_are_refused(interrupt):
    with pytest.raises(CutError, match=r"^--kill-sweep 9999999: the save writes [\d,]+ bytes in all: choose fewer"):
        interrupt("Whole", "2", kills=9_999_999)


def judged(name, server):
    one = SPECIMENS[name]
    return zoo.judge(one, zoo.tried(one, server), 0.0)


@pytest.mark.parametrize("name", FEW)
def test_a_part_that_is_not_restored_is_named(name, server):
    outcome = judged(name, server)
    assert outcome.good and outcome.confirmed


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(SPECIMENS) - set(FEW)))
def test_every_resume_specimen_is_named(name, server):
    assert judged(name, server).good


def named(name, chains, server, every):
    """The parts that are named of a specimen which is cut at several places; it must show at one of them."""
    one = SPECIMENS[name]
    asked = zoo.request(one)
    evaluate = None if name in UNEVALUATED else Evaluate(every=every)
    asked = replace(asked, recipe=replace(asked.recipe, evaluate=evaluate))
    result = resume(asked, chains, server=server)
    assert one.causes[0][2] in {each.missing for each in result.resumptions}
    return {each.missing for each in result.resumptions if each.verdict == "diverged"} - ELSEWHERE.get(name, set())


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name, one in SPECIMENS.items() if one.causes])
def test_a_part_is_named_at_every_cut_at_which_it_shows(name, server):
    assert named(name, None, server, every=2) == {SPECIMENS[name].causes[0][2]}


def everywhere(name):
    """Chains of one cut that make a specimen die of everything at each kind of place."""
    (cut,) = parse(SPECIMENS[name].cut)
    places = dict.fromkeys(
        (cut.name, str(cut.updates), *(f"{cut.updates}:{at}" for at in ("evaluate", "save", "saved")))
    )
    dying = [parse(place, death) for death in DEATHS for place in places]
    return dying + [parse(f"{cut.updates}:save", death) for death in ("full-disk", "read-only")]


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name, one in SPECIMENS.items() if one.causes])
def test_a_part_is_named_whatever_the_run_died_of(name, server):
    assert named(name, everywhere(name), server, every=1) == {SPECIMENS[name].causes[0][2]}


def test_one_part_is_named_whatever_the_run_died_of(server):
    dying = [parse("4:save", "full-disk"), parse("4:save", "read-only"), parse("4:evaluate", "SIGKILL")]
    assert named("h_forgets_the_optimizer", dying, server, every=1) == {"optimizer"}


def test_what_rights_itself_is_silent_whatever_the_run_died_of(interrupt):
    for death in DEATHS:
        assert interrupt("Evaluates", "3:evaluate", death).verdict == "match"
    assert interrupt("Whole", "3.1", "SIGKILL").verdict == "match"


def test_the_result_fits_the_schema(interrupt, root):
    result = interrupt("InPlace", "3", kills=2)
    schema = json.loads((root / "docs/result.schema.json").read_text())
    jsonschema.validate(json.loads(result.to_json()), schema)
    assert result.command == "resume"


def test_a_recipe_without_saves_saves_after_every_update():
    assert saving(from_dict({"updates": 2})).checkpoint.every == 1
    assert saving(from_dict({"updates": 2, "checkpoint": {"every": 5}})).checkpoint.every == 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--cut", "0"], "before the first update there is nothing to resume"),
        (["--cut", "three"], "names no place"),
        (["--cut", "3:never"], "names no place"),
        (["--cut", "5,2"], "in the order in which it trains"),
        (["--cut", "2", "--death", "boredom"], "there is no such death"),
        (["--cut", "all", "--death", "boredom"], "there is no such death"),
        (["--cut", "all", "--kill-sweep", "3"], "a sweep kills in one save: write --cut N"),
        (["--cut", "2,3", "--kill-sweep", "3"], "a sweep kills in one save: write --cut 2, then the next"),
        (["--cut", "2:saved", "--kill-sweep", "3"], "over all bytes of a save: write --cut 2"),
        (["--cut", "2:save+7", "--kill-sweep", "3"], "over all bytes of a save: write --cut 2"),
        (["--cut", "2", "--kill-sweep", "3", "--death", "SIGTERM"], "a sweep kills by SIGKILL"),
        (["--cut", "3:evaluate", "--death", "full-disk"], "not at 3:evaluate: write 3:save"),
        (["--cut", "3.1:saved"], "names no place"),
    ],
)
def test_what_cannot_be_asked_is_refused(line, said, capsys):
    assert main(["resume", "regression", "--trainer", "accelerate", *line]) == 2
    assert said in capsys.readouterr().err


def test_a_cut_is_named_as_it_is_asked_for():
    for name in ("3", "3.1", "3:save", "3:saved", "3:evaluate", "3:save+17", "3.1:save", "3.1:save+17"):
        (cut,) = parse(name)
        assert cut.name == name
    assert [cut.updates for cut in parse("2,5:saved")] == [2, 5]
    assert [cut.name for cut in parse("2,2.1", "full-disk")] == ["2:save", "2.1:save"]


def test_numbers_are_listed_as_people_would():
    assert cuts.listed([1, 2, 3, 4, 6]) == "1 to 4, 6"
    assert cuts.listed(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10, 12, 14..."
