"""Recorded scripts: nothing of them is disturbed, two recordings are equal, a changed line shows where it acts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from diffs.trace import open_trace
from diffs.verdict import Policy
from oracle import record, recording
from oracle.cli import main
from oracle.diff import Request, diff
from oracle.errors import OracleError, OutputError
from oracle.recorder.session import Options
from oracle.recorder.trace import TraceError
from oracle.recording import Recording
from oracle.result import encode

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/recordings.schema.json").read_text())
ORACLE = [sys.executable, "-m", "oracle"]


@pytest.fixture
def script(root: Path) -> str:
    return str(root / "tests/scripts/plain.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ORACLE, *arguments], capture_output=True, text=True, timeout=300)


def recorded(folder: Path, *command: str, **options: Any) -> Recording:
    argv = (sys.executable, *command)
    return recording.record(argv, Options(folder=str(folder), command=argv, **options))


def compared(reference: Path, candidate: Path) -> dict[str, Any]:
    content = diff(Request(reference=reference, candidate=candidate, policy=Policy.parse("exact"))).content
    jsonschema.validate(json.loads(json.dumps(encode(content))), SCHEMA)
    return content


def notes(found: Recording) -> list[str]:
    return [note for trace in found.traces for note in trace.notes]


def edited(script: str, place: Path, old: str, new: str) -> str:
    source = Path(script).read_text()
    assert old in source
    place.write_text(source.replace(old, new))
    return str(place)


@pytest.fixture(scope="module")
def original(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of the plain script, and beside it the state that it ends with."""
    place = tmp_path_factory.mktemp("original")
    recorded(place / "trace", str(root / "tests/scripts/plain.py"), str(place / "state.pt"))
    return place


def test_a_recorded_script_ends_as_it_does_alone(original: Path, script: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, script, str(tmp_path / "alone.pt")], check=True, timeout=60)
    alone, ours = torch.load(tmp_path / "alone.pt"), torch.load(original / "state.pt")
    assert all(torch.equal(alone[name], ours[name]) for name in alone)
    facts = json.loads((original / "trace" / "recording.json").read_text())
    jsonschema.validate(facts, SCHEMA)
    assert facts["exit_code"] == 0
    assert [(one["complete"], one["updates"], one["rank"]) for one in facts["traces"]] == [(True, 6, 0)]
    with open_trace(original / "trace") as trace:
        assert trace.complete and trace.last_update == 5


def test_the_commands(original: Path, script: str, tmp_path: Path) -> None:
    done = run("record", "-o", str(tmp_path / "two"), "--", "python", script, str(tmp_path / "s.pt"))
    assert done.returncode == 0 and "6 updates" in done.stderr, done.stderr
    same = run("diff", str(original / "trace"), str(tmp_path / "two"))
    assert same.returncode == 0 and same.stdout.startswith("MATCH"), same.stdout
    done = run("record", "-o", str(tmp_path / "none"), "--", "python", "-c", "print(1)")
    assert done.returncode == 3 and "nothing was recorded" in done.stderr


def test_a_gradient_that_is_not_cleared_is_found_where_it_acts(original: Path, script: str, tmp_path: Path) -> None:
    changed = edited(script, tmp_path / "c.py", "optimizer.zero_grad()", "_epoch or optimizer.zero_grad()")
    recorded(tmp_path / "two", changed, str(tmp_path / "s.pt"), level="full")
    content = compared(original / "trace", tmp_path / "two")
    assert content["verdict"] == "diverged" and not content["passed"]
    assert content["first_divergence"]["update"] == 4 and content["first_divergence"]["moment"] == "consume"
    assert content["site"]["moment"] == "backward" and content["site"]["kind"] == "gradient"
    assert [one["differing"] > 0 for one in content["growth"]] == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("old", "new", "update", "moment"),
    [
        ("lr=0.01", "lr=0.02", 0, "consume"),
        ("total_iters=6", "total_iters=5", 0, "schedule"),
        ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), 0.5)", -1, "start"),
        ("shuffle=True", "shuffle=False", 0, "batch"),
        ("Linear(4, 8)", "Linear(4, 8, bias=False)", -1, "start"),
    ],
)
def test_a_changed_line_shows_where_it_acts(
    original: Path, script: str, tmp_path: Path, old: str, new: str, update: int, moment: str
) -> None:
    recorded(tmp_path / "two", edited(script, tmp_path / "c.py", old, new), str(tmp_path / "s.pt"))
    first = compared(original / "trace", tmp_path / "two")["first_divergence"]
    assert (first["update"], first["moment"]) == (update, moment)


def test_another_accumulation_is_joined_on_updates(original: Path, script: str, tmp_path: Path) -> None:
    whole = edited(script, tmp_path / "w.py", "batch_size=4", "batch_size=8")
    whole = edited(whole, tmp_path / "w.py", "/ 2\n", "\n")
    whole = edited(whole, tmp_path / "w.py", "if index % 2 == 1:", "if True:")
    recorded(tmp_path / "two", whole, str(tmp_path / "s.pt"))
    content = compared(original / "trace", tmp_path / "two")
    assert content["joined"] == "updates"
    assert content["first_divergence"]["moment"] == "consume"  # dropout draws otherwise in one batch than in two


OUTER = """
class Outer(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


model = Outer(model)
data = """


def test_a_nan_is_written_as_json_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate in (("one", 0.1), ("two", float("nan"))):
        with record(tmp_path / name):
            train(2, lr=rate)
    assert main(["diff", str(tmp_path / "one"), str(tmp_path / "two"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    jsonschema.validate(told, SCHEMA)
    assert told["first_divergence"]["candidate"] == "NaN"


@pytest.mark.slow
def test_a_rerun_of_both_commands_gives_the_elements(script: str, tmp_path: Path) -> None:
    changed = edited(script, tmp_path / "c.py", "optimizer.zero_grad()", "_epoch or optimizer.zero_grad()")
    for name, source in (("one", script), ("two", changed)):
        recorded(tmp_path / name, source, str(tmp_path / "s.pt"))
    request = Request(reference=tmp_path / "one", candidate=tmp_path / "two", policy=Policy.parse("exact"))
    assert diff(request).content["first_divergence"]["differing"] is None
    found = diff(replace(request, again=True)).content["first_divergence"]
    assert (found["update"], found["kind"], found["total"]) == (4, "gradient", 32) and found["differing"] == 32
    edited(changed, Path(changed), "manual_seed(0)", "manual_seed(1)")
    with pytest.raises(OracleError, match="trains otherwise now"):
        diff(replace(request, again=True))
    (tmp_path / "two" / "recording.json").unlink()
    with pytest.raises(OracleError, match="only what oracle record made"):
        diff(replace(request, again=True))


def test_names_can_be_changed(original: Path, script: str, tmp_path: Path) -> None:
    nested = edited(script, tmp_path / "n.py", "data = ", OUTER)
    assert recorded(tmp_path / "two", nested, str(tmp_path / "s.pt")).exit_code == 0
    assert compared(original / "trace", tmp_path / "two")["verdict"] == "diverged"
    request = Request(reference=original / "trace", candidate=tmp_path / "two", policy=Policy.parse("exact"),
                      rename=(r"^net\.=",))  # fmt: skip
    assert diff(request).verdict == "match"
    with pytest.raises(OracleError, match="--rename"):
        diff(replace(request, rename=("(=",)))


def test_an_unseeded_generator_is_told_where_something_draws_from_it(tmp_path: Path) -> None:
    source = (
        "import random, torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor _ in range(2):\n    optimizer.zero_grad()\n"
        "    (FACTOR * model(torch.ones(1, 2))).sum().backward()\n    optimizer.step()\n"
    )
    for name, factor in (("drawn", "random.random()"), ("fixed", "0.5")):
        (tmp_path / f"{name}.py").write_text(source.replace("FACTOR", factor))
        for number in "12":
            recorded(tmp_path / name / number, str(tmp_path / f"{name}.py"))
    drawn, fixed = (compared(tmp_path / name / "1", tmp_path / name / "2") for name in ("drawn", "fixed"))
    assert drawn["verdict"] == "diverged" and "rng" not in drawn["site"]["agreeing_inputs"]
    assert drawn["notes"] == ["the generator of python begins with another state on each side: seed it"]
    assert fixed["verdict"] == "match" and fixed["notes"] == []


def test_names_that_become_one_are_refused(original: Path) -> None:
    request = Request(reference=original / "trace", candidate=original / "trace", policy=Policy.parse("exact"))
    for rules in ((r".*weight=w",), ("weight",)):
        with pytest.raises(OracleError, match="--rename"):
            diff(replace(request, rename=rules))


def test_recordings_in_part_are_compared_where_both_are(original: Path, script: str, tmp_path: Path) -> None:
    recorded(tmp_path / "some", script, str(tmp_path / "s.pt"), first=2, last=3)
    content = compared(original / "trace", tmp_path / "some")
    assert content["verdict"] == "match" and content["joined"] == "micro-batches"
    assert any("only the 2 updates" in note for note in content["notes"])
    recorded(tmp_path / "none", script, str(tmp_path / "s.pt"), first=90)
    assert compared(tmp_path / "some", tmp_path / "none")["verdict"] == "not_comparable"
    other = edited(script, tmp_path / "o.py", "lr=0.01", "lr=0.02")
    recorded(tmp_path / "other", other, str(tmp_path / "s.pt"), first=3)
    assert compared(tmp_path / "some", tmp_path / "other")["first_divergence"]["update"] == 3
    death = "            _epoch and __import__('os').kill(__import__('os').getpid(), 9)"
    killed = edited(script, tmp_path / "k.py", "            scheduler.step()", f"{death}\n            scheduler.step()")
    recorded(tmp_path / "killed", killed, str(tmp_path / "s.pt"))
    assert compared(original / "trace", tmp_path / "killed")["verdict"] == "match"
    short = edited(script, tmp_path / "h.py", "range(2)", "range(1)")
    recorded(tmp_path / "short", short, str(tmp_path / "s.pt"))
    assert compared(original / "trace", tmp_path / "short")["verdict"] == "diverged"


def test_a_full_disk_ends_the_recording_and_not_the_training(script: str, tmp_path: Path) -> None:
    limited = edited(script, tmp_path / "l.py", "import sys\n", "import resource\nimport signal\nimport sys\n"
                     "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
                     "resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, -1))\n")  # fmt: skip
    found = recorded(tmp_path / "t", limited, str(tmp_path / "s.pt"))
    assert found.exit_code == 0 and (tmp_path / "s.pt").exists()


def test_an_edit_outside_the_optimizer_is_noted(original: Path, script: str, tmp_path: Path) -> None:
    changed = edited(
        script, tmp_path / "c.py", "    for index,", "    model[0].bias.data.add_(0.5 * _epoch)\n    for index,"
    )
    found = recorded(tmp_path / "one", changed, str(tmp_path / "s.pt"))
    assert notes(found) == ["parameter changed outside an optimizer: 0.bias, before update 3"]
    assert json.loads((original / "trace" / "recording.json").read_text())["traces"][0]["notes"] == []


def test_bounds_on_what_is_kept(script: str, tmp_path: Path) -> None:
    recorded(tmp_path / "some", script, str(tmp_path / "s.pt"), first=2, last=3, kinds=("parameter", "gradient"))
    with open_trace(tmp_path / "some") as trace:
        rows = [row.address for row in trace.rows()]
        assert {a.update for a in rows if a.moment not in ("start", "end")} == {2, 3}
        assert {a.kind for a in rows if a.moment != "end"} == {"parameter", "gradient"}
    recorded(tmp_path / "taken", script, str(tmp_path / "s.pt"), last=1, kinds=("consume.gradient", "objective"))
    with open_trace(tmp_path / "taken") as trace:
        rows = [row.address for row in trace.rows() if row.address.moment != "end"]
        assert {(a.moment, a.kind) for a in rows} == {("consume", "gradient"), ("backward", "objective")}
    recorded(tmp_path / "each", script, str(tmp_path / "s.pt"), every=3)
    with open_trace(tmp_path / "each") as trace:
        assert {row.address.update for row in trace.rows_at(("update", "parameter"))} == {0, 3}
    found = recorded(tmp_path / "little", script, str(tmp_path / "s.pt"), limit_bytes=30_000)
    assert any("recording stopped after update" in note for note in notes(found))
    with open_trace(tmp_path / "little") as trace:
        assert trace.complete and len(list(trace.rows_at(("update", "parameter")))) < 4 * 6


def test_a_script_that_fails_or_is_killed_leaves_what_it_did(script: str, tmp_path: Path) -> None:
    raises = edited(script, tmp_path / "r.py", "            scheduler.step()", "            assert _epoch == 0, 'no'")
    assert recorded(tmp_path / "raised", raises, str(tmp_path / "s.pt")).exit_code == 1
    with open_trace(tmp_path / "raised") as trace:
        assert trace.manifest["error"] == "AssertionError: no" and not trace.manifest["ended"]
    death = "            _epoch and __import__('os').kill(__import__('os').getpid(), 9)"
    killed = edited(script, tmp_path / "k.py", "            scheduler.step()", death)
    found = recorded(tmp_path / "killed", killed, str(tmp_path / "s.pt"))
    assert found.exit_code == -9 and not found.traces[0].complete
    with open_trace(tmp_path / "killed") as trace:
        assert not trace.complete
        assert len(list(trace.rows_at(("update", "parameter")))) == 4 * 3


def test_processes_of_a_command_get_a_trace_each(script: str, tmp_path: Path) -> None:
    starter = tmp_path / "starter.py"
    command = f"[sys.executable, {script!r}, {str(tmp_path / 's.pt')!r}]"
    starter.write_text(f"import subprocess, sys\nfor n in (1, 2): subprocess.run({command}, check=True)\n")
    found = recorded(tmp_path / "both", str(starter))
    assert [Path(trace.folder).name for trace in found.traces] == ["both", "process2"]
    assert compared(tmp_path / "both", tmp_path / "both/process2")["verdict"] == "match"


def test_a_loader_s_workers_record_nothing(original: Path, script: str, tmp_path: Path) -> None:
    workers = edited(script, tmp_path / "w.py", "shuffle=True", "shuffle=True, num_workers=2")
    recorded(tmp_path / "two", workers, str(tmp_path / "s.pt"))
    assert compared(original / "trace", tmp_path / "two")["verdict"] == "match"
    assert [path.name for path in (tmp_path / "two").glob("trace*")] == ["trace.db"]


def test_what_cannot_be_recorded_is_said(tmp_path: Path, script: str) -> None:
    with pytest.raises(OracleError, match="no such program"):
        recording.record(["no-such-program"], Options(folder=str(tmp_path / "none")))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(OutputError, match="there already"):
        recorded(tmp_path / "full", script)
    foreign = tmp_path / "foreign.py"
    foreign.write_text(
        "import torch\nmodel = torch.nn.Linear(2, 1)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    with torch.no_grad():\n        [p.sub_(0.1 * p.grad) for p in model.parameters()]\n"
    )
    assert "no step of an optimizer was seen" in notes(recorded(tmp_path / "foreign", str(foreign)))[0]


@pytest.mark.parametrize(
    ("text", "meant"), [("3:5", (3, 5)), ("3", (3, 3)), ("3:", (3, None)), (":5", (None, 5)), (None, (None, None))]
)
def test_updates(text: str | None, meant: tuple[int | None, int | None]) -> None:
    assert recording.updates(text) == meant


def test_words_that_are_none() -> None:
    for wrong in ("", ":", "a", "5:3", "-1", "1:2:3"):
        with pytest.raises(OracleError):
            recording.updates(wrong)
    for wrong in ("", "2 potatoes", "GB"):
        with pytest.raises(OracleError):
            recording.size(wrong)
    assert recording.size("1.5GB") == 1_500_000_000 and recording.size("10") == 10 and recording.size(None) is None
    with pytest.raises(OracleError, match="gradient"):
        recording.kinds("gradiant")
    with pytest.raises(OracleError, match=r"did you mean 'consume\.gradient'"):
        recording.kinds("consum.gradient")
    assert recording.kinds("loss, update.parameter") == ("loss", "update.parameter")


def train(steps: int, lr: float = 0.1) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()


def test_a_block_is_recorded(tmp_path: Path) -> None:
    with record(tmp_path / "one"):
        train(3)
    train(2)  # not recorded any more
    with open_trace(tmp_path / "one") as trace:
        assert trace.complete and trace.last_update == 2
    with pytest.raises(TraceError, match="not empty"), record(tmp_path / "one"):
        pass
    with pytest.raises(ValueError, match="no"), record(tmp_path / "two"):
        train(1)
        raise ValueError("no")
    with open_trace(tmp_path / "two") as trace:
        assert trace.manifest["error"] == "ValueError: no"


@pytest.mark.parametrize(
    "wrong", [{"level": "foo"}, {"every": 0}, {"kinds": ("foo",)}, {"kinds": "loss"}, {"kinds": ()}]
)
def test_wrong_options_are_refused_before_training(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use"), record(tmp_path / "one", **wrong):
        raise AssertionError("nothing runs")
    assert not (tmp_path / "one").exists()


def test_options_come_back_from_json() -> None:
    options = Options(folder="x", kinds=("parameter",), command=("python", "a.py"), first=3)
    assert Options.of(json.loads(json.dumps({**vars(options), "root": "/"}))) == options


def test_an_interrupt_reaches_the_script(script: str, tmp_path: Path) -> None:
    endless = edited(script, tmp_path / "e.py", "range(2)", "iter(int, 1)")
    process = subprocess.Popen(
        [*ORACLE, "record", "-o", str(tmp_path / "t"), "--", "python", endless, "x"], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "t" / "trace.db").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 3 and "KeyboardInterrupt" in words
    with open_trace(tmp_path / "t") as trace:
        assert trace.last_update >= 0


def test_an_output_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no name"):
        recording.record(["true"], Options(folder=""))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        recording.record(["true"], Options(folder=str(tmp_path / "file" / "under")))
