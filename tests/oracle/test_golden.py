"""Goldens: what a check of one says moved, what it refuses, and what update keeps."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffs.verdict import Policy
from oracle.check import Request
from oracle.cli import main
from oracle.errors import OracleError
from oracle.golden import command
from oracle.golden.file import Seen, StaleGolden, read
from oracle.golden.fingerprint import first_moved
from oracle.golden.judgement import judge
from oracle.golden.sketch import alike, sketch
from oracle.recipes import load_recipe
from oracle.replays import Server
from oracle.report import text

LOOP = """
    class Loop:
        def train(self, job):
            model, window = job.model(), job.recipe.accumulation
            optimizer = job.optimizer(model)
            for epoch in range(job.recipe.epochs):
                batches = list(job.loader())
                for i, batch in enumerate(batches):
                    left = len(batches) - i // window * window
                    (job.loss(model, batch) / min(window, left)).backward()
                    if (i + 1) % window == 0 or i + 1 == len(batches):
                        optimizer.step()
                        optimizer.zero_grad()
"""
TASK = """
    import torch
    from reference_loop.task import Task

    def build_model():
        return torch.nn.Linear(3, 1)

    def build_data():
        generator = torch.Generator().manual_seed(7)
        return [{"id": i, "x": torch.randn(3, generator=generator), "y": torch.ones(1)} for i in range(10)]

    def loss(model, batch, reduction):
        return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"], reduction=reduction)

    task = Task(name="own", model=build_model, train_data=build_data, loss=loss, units=lambda batch: len(batch["x"]))
"""
RECIPE = "epochs = 1\nbatch_size = 2\naccumulation = 4\n[optimizer]\nname = 'sgd'\nlr = 0.1\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, server):
    """A folder with a task, a trainer, a recipe, and their golden."""
    folder = tmp_path_factory.mktemp("recorded")
    for name, source in {"loop.py": LOOP, "task.py": TASK, "recipe.toml": RECIPE}.items():
        (folder / name).write_text(textwrap.dedent(source))
    task, recipe = str(folder / "task.py"), str(folder / "recipe.toml")
    request = Request(
        task=task,
        trainer=f"{folder}/loop.py:Loop",
        recipe=load_recipe(task, recipe, ["seed=3"]),
        rerun="oracle golden record",
    )
    command.record(request, folder / "loop.golden.json", "first", recipe_file=recipe, sets=["seed=3"], server=server)
    return folder


@pytest.fixture
def here(recorded, tmp_path):
    """A copy of it that a test may change."""
    for file in recorded.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def check(here, server):
    def check(policy="exact"):
        return command.check(here / "loop.golden.json", command.Options(policy=Policy.parse(policy)), server=server)

    return check


def edit(path: Path, old: str, new: str) -> None:
    source = path.read_text()
    assert old in source
    path.write_text(source.replace(old, new))


def edit_json(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# A whole check


def test_what_did_not_move_is_a_match_wherever_the_folder_is(check, here):
    edit(here / "loop.py", "class Loop:", "class Loop:  # the same by another text")
    result = check()
    assert (result.verdict, result.exit_code, result.golden.moved, result.golden.at) == ("match", 0, "nothing", None)
    assert text.render(result).startswith(f"MATCH with {here}/loop.golden.json: nothing moved\n")


def test_code_that_moves_is_named_with_its_place_and_both_decisions(check, here):
    edit(here / "loop.py", "min(window, left)", "window")
    result = check("noise")
    golden = result.golden
    assert (result.verdict, result.exit_code, golden.moved, golden.reference_at) == ("diverged", 1, "code", None)
    assert (golden.at.update, golden.at.moment, golden.at.kind) == (1, "consume", "gradient")
    assert [(one.knob, one.old, one.new, one.confirmed) for one in golden.changes] == [
        ("accumulation.tail_divisor", "actual", "configured", True)
    ]
    report = text.render(result)
    assert "at update 1, consume: gradients: the code moved" in report
    assert "accumulation.tail_divisor: actual -> configured, semantic" in report
    assert f"oracle golden update {here}/loop.golden.json --reason" in report


def test_code_that_only_rounds_otherwise_is_rounding(check, here, server):
    edit(here / "recipe.toml", "accumulation = 4", "accumulation = 3")
    command.update(here / "loop.golden.json", "windows of three", command.Options(), server=server)
    divide = "[p.grad.div_(min(window, left)) for p in model.parameters()]"
    edit(here / "loop.py", " / min(window, left)", "")
    edit(here / "loop.py", "optimizer.step()", f"{divide}; optimizer.step()")
    result = check("noise")
    assert (result.verdict, result.exit_code, result.golden.moved) == ("rounding", 0, "code")
    assert [(one.knob, one.new, one.effect) for one in result.golden.changes] == [
        ("accumulation.divide", "gradient", "style")
    ]
    assert check("exact").exit_code == 1


def test_another_environment_is_told_from_code_by_the_reference(check, here):
    """Elsewhere, both gave other bits: as the golden of another torch would have it."""

    def elsewhere(golden):
        golden["seen"]["surroundings"]["torch"] = "2.0.0"
        for side in ("reference", "candidate"):
            golden["seen"][side]["1"] = (
                "0" * 16 if side == "reference" else dict.fromkeys(golden["seen"][side]["1"], "0" * 16)
            )

    edit_json(here / "loop.golden.json", elsewhere)
    result = check("noise")
    assert (result.verdict, result.exit_code, result.golden.moved) == ("rounding", 0, "environment")
    assert [(fact.name, fact.old) for fact in result.golden.facts] == [("torch", "2.0.0")]
    assert replace(result, policy="exact", passed=False).exit_code == 1
    edit(here / "loop.py", "min(window, left)", "window")
    moved = check("noise")
    assert (moved.verdict, moved.golden.moved) == ("diverged", "both")
    assert [one.knob for one in moved.golden.changes] == ["accumulation.tail_divisor"]


def test_a_task_that_changed_decides_nothing(check, here):
    edit(here / "task.py", "manual_seed(7)", "manual_seed(8)")
    result = check("noise")
    assert (result.verdict, result.exit_code, result.golden.moved) == ("not_comparable", 3, "task")
    assert "the task's file changed" in text.render(result).splitlines()[0]


def test_a_recipe_that_changed_says_how_to_renew(check, here):
    edit(here / "recipe.toml", "lr = 0.1", "lr = 0.2")
    with pytest.raises(
        StaleGolden, match=r"optimizer\.lr 0\.1 -> 0\.2\): run oracle golden update .*loop\.golden\.json"
    ):
        check()


def test_a_crash_decides_nothing_unless_something_moved_before_it(check, here):
    edit(here / "loop.py", "optimizer.zero_grad()", "optimizer.zero_grad(); assert i < 4, 'enough'")
    result = check()
    assert (result.verdict, result.exit_code) == ("not_comparable", 3)
    assert "AssertionError: enough" in text.render(result).splitlines()[0]
    edit(here / "loop.py", "optimizer = job", "self.x = [p.data.mul_(2) for p in model.parameters()]; optimizer = job")
    result = check()
    assert (result.verdict, result.exit_code, result.golden.at.moment) == ("diverged", 1, "start")


def test_update_keeps_the_reason_and_then_matches(check, here, server):
    path = here / "loop.golden.json"
    before = path.read_text()
    golden, moved = command.update(path, "again", command.Options(), server=server)
    assert moved == "nothing moved: left as it is" and path.read_text() == before
    edit(here / "loop.py", "min(window, left)", "window")
    edit(here / "recipe.toml", "lr = 0.1", "lr = 0.2")
    golden, moved = command.update(path, "the tail is meant so", command.Options(), server=server)
    assert "the recipe changed" in moved and "accumulation.tail_divisor: actual -> configured" in moved
    assert [entry.reason for entry in golden.history] == ["first", "the tail is meant so"]
    assert check().verdict == "match"


def test_nothing_is_written_of_a_trainer_that_fails(here, server):
    edit(here / "loop.py", "optimizer.step()", "raise ValueError('no')")
    before = (here / "loop.golden.json").read_text()
    with pytest.raises(command.NothingRecorded):
        command.update(here / "loop.golden.json", "why", command.Options(), server=server)
    assert (here / "loop.golden.json").read_text() == before


# The file


def test_a_golden_is_small_and_says_what_made_it(recorded):
    path = recorded / "loop.golden.json"
    assert path.stat().st_size < 4000
    golden = read(path)
    assert (golden.asked.task, golden.asked.trainer, golden.asked.sets) == ("task.py", "loop.py:Loop", ("seed=3",))
    assert {"oracle", "python", "torch", "cpu capability"} <= golden.seen.surroundings.keys()
    golden.write()
    assert read(path) == golden


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            lambda golden: golden.update(format=2),
            StaleGolden,
            "format 2, this version reads 1: remove it and run oracle",
        ),
        (lambda golden: golden.pop("format"), OracleError, "is no golden"),
        (lambda golden: golden["seen"].pop("given"), StaleGolden, "cannot be read .*given.*remove it and run oracle"),
        (lambda golden: golden["seen"]["candidate"].update(x={}), StaleGolden, "cannot be read"),
        (lambda golden: golden["seen"]["candidate"]["0"].update({"a b": ""}), StaleGolden, "update 0 has unknown"),
        (lambda golden: golden["seen"].update(losses=[[1.0, "load"]]), StaleGolden, "a loss is"),
        (lambda golden: golden.update(history=[]), StaleGolden, "its history is empty"),
    ],
)
def test_what_is_no_golden_of_this_version_is_refused(here, change, kind, message):
    edit_json(here / "loop.golden.json", change)
    with pytest.raises(kind, match=message):
        read(here / "loop.golden.json")


def test_what_is_not_there_or_no_json_is_refused(tmp_path):
    with pytest.raises(OracleError, match="oracle golden record TASK"):
        read(tmp_path / "none.golden.json")
    (tmp_path / "bad.golden.json").write_text("{")
    with pytest.raises(OracleError, match="it is not JSON"):
        read(tmp_path / "bad.golden.json")


def test_goldens_are_found_by_their_ending(tmp_path, monkeypatch):
    for name in ("a.golden.json", "b/c.golden.json", ".venv/d.golden.json", "e.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert [str(path) for path in command.find(Path())] == ["a.golden.json", "b/c.golden.json"]


# The judgement

OLD = Seen(
    surroundings={"torch": "2.12.0"},
    sources={"task": "1"},
    verdict="match",
    causes=[],
    understood=True,
    given="a",
    form="f",
    sketch=[1.0, -2.0, 0.5, 3.0],
    losses=[[1.0, "float32"]],
    reference={"-1": "r", "0": "r0", "end": "re"},
    candidate={"-1": {"start parameter": "s"}, "0": {"consume gradient": "g", "update parameter": "p"}},
)
OTHER = {"-1": {"start parameter": "s"}, "0": {"consume gradient": "g", "update parameter": "q"}}
CLIP = ["clip.moment", "unscaled", "off", "semantic", "confirmed"]
DIVIDE = ["accumulation.divide", "loss", "gradient", "style", "confirmed"]
MOVED = {"reference": {**OLD.reference, "0": "x"}, "candidate": OTHER}
NEWER = {**MOVED, "surroundings": {"torch": "2.13.0"}}


@pytest.mark.parametrize(
    ("now", "verdict", "moved"),
    [
        ({}, "match", "nothing"),
        ({"surroundings": {"torch": "2.13.0"}}, "match", "nothing"),
        ({"reference": MOVED["reference"]}, "match", "environment"),
        ({"candidate": OTHER}, "rounding", "code"),
        ({"candidate": OTHER, "causes": [DIVIDE]}, "rounding", "code"),
        ({"candidate": OTHER, "causes": [CLIP]}, "diverged", "code"),
        ({"candidate": OTHER, "understood": False}, "diverged", "code"),
        (NEWER, "rounding", "environment"),
        ({**NEWER, "causes": [DIVIDE]}, "rounding", "environment"),
        ({**NEWER, "causes": [CLIP]}, "diverged", "both"),
        ({**NEWER, "understood": False}, "diverged", "both"),
        ({**NEWER, "given": "b"}, "rounding", "environment"),
        ({**NEWER, "given": "b", "sketch": [1.0001, -2.0, 0.5, 3.0]}, "rounding", "environment"),
        ({**NEWER, "given": "b", "sketch": [1.01, -2.0, 0.5, 3.0]}, "not_comparable", "environment"),
        ({**NEWER, "given": "b", "sketch": []}, "not_comparable", "environment"),
        ({**NEWER, "given": "b", "form": "g"}, "not_comparable", "environment"),
        ({**NEWER, "losses": [[1.01, "float32"]]}, "not_comparable", "environment"),
        ({**NEWER, "losses": [[float("nan"), "float32"]]}, "not_comparable", "environment"),
        ({**NEWER, "losses": []}, "not_comparable", "environment"),
        ({**NEWER, "losses": [[1.0, "bfloat16"]]}, "not_comparable", "environment"),
        ({**NEWER, "losses": [[1.0001, "float32"]]}, "rounding", "environment"),
        (MOVED, "not_comparable", "unknown"),
        ({**NEWER, "sources": {"task": "2"}}, "not_comparable", "task"),
    ],
)
def test_the_reference_tells_code_from_environment(now, verdict, moved):
    found = judge(OLD, replace(OLD, **now), epsilon=2.0**-23)
    assert (found.verdict, found.moved) == (verdict, moved)
    assert (found.reason is not None) is (verdict == "not_comparable")


def test_a_cause_that_stays_is_no_change_and_one_that_goes_is():
    old, other = replace(OLD, causes=[CLIP]), {"candidate": OTHER}
    assert judge(old, replace(old, **other), epsilon=2.0**-23).verdict == "rounding"
    (change,) = judge(old, replace(OLD, **other), epsilon=2.0**-23).changes
    assert (change.knob, change.old, change.new) == ("clip.moment", "off", "unscaled")


def test_what_was_not_understood_before_is_not_called_rounding():
    old = replace(OLD, understood=False)
    assert judge(old, replace(old, **NEWER), epsilon=2.0**-23).verdict == "not_comparable"
    assert judge(old, replace(old, candidate=OTHER), epsilon=2.0**-23).verdict == "diverged"


def test_the_first_place_is_the_first_in_causal_order():
    old = {"9": {"update parameter": "a"}, "10": {"consume gradient": "a"}, "end": {"end count": "a"}}
    assert first_moved(old, old) is None
    end = first_moved(old, {**old, "end": {}})
    assert end is not None and (end.update, end.moment, end.kind) == (10, "end", "count")
    both = first_moved(old, {"end": {}, "9": {"update parameter": "b"}})
    assert both is not None and (both.update, both.kind) == (9, "parameter")


# The sketch


def values() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(300, 400, generator=generator), torch.zeros(3), torch.randn(7, generator=generator) / 50]


def test_rounding_leaves_a_sketch_as_it_is():
    rounded = [x * (1 + 6e-8 * torch.randn(x.shape)) for x in values()]
    assert alike(sketch(values()), sketch(rounded), 2e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y, z: [torch.randn(x.shape), y, z],
        lambda x, y, z: [x, y, torch.randn(z.shape) / 50],
        lambda x, y, z: [x.flip(0), y, z],
        lambda x, y, z: [x, y, -z],
        lambda x, y, z: [x, y, z * 1.01],
        lambda x, y, z: [x, y + 1, z],
        lambda x, y, z: [z, y, x],
        lambda x, y, z: [x * float("nan"), y, z],
        lambda x, y, z: [],
    ],
)
def test_other_values_move_every_sketch(change):
    assert not alike(sketch(values()), sketch(change(*values())), 3.5e-4)


def test_a_tensor_of_many_blocks_is_one_tensor(monkeypatch):
    whole = sketch(values())
    monkeypatch.setattr("oracle.golden.sketch.BLOCK", 1000)
    assert alike(whole, sketch(values()), 1e-9)


# The command line


@pytest.mark.slow
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="there is no other to move from")
def test_other_kernels_of_torch_round_otherwise_and_hide_no_decision(here, capsys, monkeypatch):
    monkeypatch.chdir(here)
    line = ["record", "decoder", "--trainer", "loop.py:Loop", "--epochs", "1", "-o", "decoder.golden.json"]
    assert main(["golden", *line]) == 0
    check = ["golden", "check", "decoder.golden.json", "--policy", "noise"]
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert main(check) == 0
    assert "by rounding alone" in capsys.readouterr().out
    edit(here / "loop.py", "min(window, left)", "(2 * window)")
    assert main(check) == 1
    assert "the environment and the code moved" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.slow
def test_the_commands_record_check_and_update(here, capsys, monkeypatch):
    monkeypatch.chdir(here)
    (here / "loop.golden.json").unlink()
    line = ["record", "task.py", "--trainer", "loop.py:Loop", "--recipe", "recipe.toml", "-o", "new.golden.json"]
    assert main(["golden", *line]) == 0
    assert main(["golden", *line]) == 2
    assert "new.golden.json is there already: oracle golden update" in capsys.readouterr().err
    edit(here / "loop.py", "min(window, left)", "window")
    assert main(["golden", "check", "--json", "result.json"]) == 1
    assert capsys.readouterr().out.startswith("DIVERGED from new.golden.json at update 1, consume: gradients")
    assert json.loads((here / "result.json").read_text())["golden"]["moved"] == "code"


def test_a_stale_golden_has_exit_code_3(here, capsys, monkeypatch):
    monkeypatch.chdir(here)
    edit(here / "recipe.toml", "lr = 0.1", "lr = 0.2")
    assert main(["golden", "check"]) == 3
    assert "not comparable: loop.golden.json is stale" in capsys.readouterr().err


def test_a_damaged_golden_does_not_hide_the_others(here, capsys, monkeypatch):
    monkeypatch.chdir(here)
    for name in ("a", "z"):
        (here / f"{name}.golden.json").write_text("no JSON")
    code = main(["golden", "check"])
    told = capsys.readouterr()
    assert "a.golden.json is no golden" in told.err and "z.golden.json is no golden" in told.err
    assert code == 2 and "MATCH" in told.out


def test_what_cannot_be_asked_is_usage(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["golden", "check"]) == 2
    assert main(["golden", "check", "none.golden.json"]) == 2
    assert main(["golden", "check", "x", "--policy", "ulp:3"]) == 2
    assert main(["golden", "check", "x", "y", "--json", "-"]) == 2
    said = capsys.readouterr().err
    assert "there is no *.golden.json" in said and "holds digests" in said and "takes the result of one" in said
