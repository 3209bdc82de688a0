"""The command line starts without torch, and every error is one message with exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest

from oracle import cli
from oracle.cli import main
from oracle.errors import OracleError
from oracle.tasks import TaskError, find_task, load_task
from oracle.trainers import TrainerError, absolute, load_trainer


@pytest.fixture
def command():
    """Adds a command for one test: `command(function)` makes `oracle try` run it."""
    added = []

    def add(function):
        cli.cli.add_command(click.Command("try", callback=function))
        added.append("try")

    yield add
    for name in added:
        cli.cli.commands.pop(name)


def raising(error):
    def function():
        raise error

    return function


@pytest.mark.parametrize("line", ["--help", "list knobs", "list trainers", "list tasks --json"])
def test_start_does_not_import_torch(line, root):
    code = f"import sys; from oracle.cli import main; main({line.split()}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True).returncode == 0


def test_python_m_oracle_works(root):
    done = subprocess.run([sys.executable, "-m", "oracle", "--version"], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "oracle,")


def test_list_knobs_shows_name_effect_and_values(capsys):
    assert main(["list", "knobs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["accumulation.tail_divisor", "semantic", "actual,", "configured"] in lines
    assert any(line[:4] == ["optimizer.kernel", "style", "loop,", "fused,"] for line in lines)


def test_list_knobs_as_json_says_why_for_every_value(capsys):
    assert main(["list", "knobs", "--json"]) == 0
    for knob in json.loads(capsys.readouterr().out)["knobs"]:
        for value in knob["values"]:
            assert value["motive"] and value["citation"].startswith("https://"), (knob["name"], value)


def test_list_trainers_shows_versions(capsys, tmp_path):
    assert main(["list", "trainers", "--json", str(tmp_path / "out.json")]) == 0
    assert capsys.readouterr().out == ""
    found = {one["name"]: one for one in json.loads((tmp_path / "out.json").read_text())["trainers"]}
    assert found["accelerate"]["version"][0].isdigit()
    assert found["transformers"]["package"] == "transformers"


def test_list_tasks_says_what_each_trains(capsys):
    assert main(["list", "tasks"]) == 0
    assert "regression   Linear regression" in capsys.readouterr().out


def test_specimens_are_offered_only_where_there_is_a_zoo(capsys, root):
    assert (main(["list", "specimens"]) == 0) is (root / "fixtures" / "zoo").is_dir()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lst"], "no command 'lst': did you mean 'list'? known:"),
        (["list", "knob"], "'knob' is not one of"),
        (["list"], "Missing argument"),
        (["list", "tasks", "--jsn"], "No such option"),
        (["list", "tasks", "--json", "/nowhere/x.json"], "cannot write /nowhere/x.json: No such file or directory"),
        (["list", "tasks", "--json", "/dev/full"], "cannot write /dev/full: No space left on device"),
    ],
)
def test_usage_errors_are_one_message(arguments, words, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OracleError("asked a, found b: do c"), 2, "error: asked a, found b: do c"),
        (TaskError("no task"), 2, "error: no task"),
        (OSError(28, "No space left on device", "/x"), 2, "error: cannot use /x: No space left on device: "),
        (KeyboardInterrupt(), 130, "interrupted"),
        (AssertionError("odd"), 3, "error: AssertionError: odd\nThis is a fault of the oracle"),
    ],
)
def test_what_a_command_raises_is_one_message(error, code, message, command, capsys):
    command(raising(error))
    assert main(["try"]) == code
    assert capsys.readouterr().err.lstrip().startswith(message)


@pytest.mark.parametrize("arguments", [["--debug", "try"], ["try", "--debug"]])
def test_debug_shows_the_traceback(arguments, command):
    command(raising(OracleError("no")))
    with pytest.raises(OracleError):
        main(arguments)


def test_debug_after_two_dashes_belongs_to_the_script(command, capsys):
    command(raising(OracleError("no")))
    assert main(["try", "--", "--debug"]) == 2


def test_a_command_s_return_is_the_exit_code(command):
    command(lambda: 3)
    assert main(["try"]) == 3


def test_doctor_finds_two_runs_equal(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["able"] is True
    found = {check["name"]: check for check in report["checks"]}
    assert found["equal bit for bit"]["ok"] is True
    assert found["flags"]["found"] == "threads 1, deterministic algorithms True, hash seed 0"


def test_doctor_says_no_where_runs_differ(monkeypatch, capsys):
    from oracle import doctor

    no = doctor.Check(name="equal bit for bit", found="3 of 40 values differ", ok=False, advice="first: x")
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Check(name="python", found="3"), no])
    assert main(["doctor"]) == 3
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "equal bit for bit: first: x",
        "This machine cannot decide exactly.",
    ]


# Tasks and trainers by name and by path

FIELDS = 'name="t", model=print, train_data=print'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no `task`: write task = Task("),
        ("task = 3", "`task` is of type int, not Task"),
        (f"task = Task({FIELDS})", "the task lacks loss: add loss=..."),
        (f"task = Task({FIELDS}, loss=print, unit=print)", "a task has no field unit: did you mean 'units'?"),
        (f"task = Task({FIELDS}, loss=3)", "loss must be a function, found int"),
        ("1 / 0", "raised ZeroDivisionError in line 2: division by zero"),
        ("import nosuchmodule", "needs the package nosuchmodule, which this environment lacks"),
        ("def (", "raised SyntaxError"),
    ],
)
def test_a_bad_task_file_says_what_to_change(text, words, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"from reference_loop.task import Task\n{text}\n")
    with pytest.raises(TaskError) as refused:
        load_task(str(file))
    assert words in str(refused.value) and "mine.py" in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("regresion", "unknown task 'regresion': did you mean 'regression'? known: "),
        ("nowhere/task.py", "there is no file /"),
        ("/tmp/", "/tmp is a folder"),
    ],
)
def test_an_unknown_task_names_what_there_is(asked, words):
    with pytest.raises(TaskError) as refused:
        find_task(asked)
    assert words in str(refused.value)


def test_built_in_tasks_load_by_name():
    assert load_task("regression").name == "regression"


TRAINERS = """
class Good:
    def train(self, job): ...
class NeedsArguments:
    def __init__(self, lr): ...
    def train(self, job): ...
class Trains:
    pass
value = 3
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (":Goood", "has no class 'Goood': did you mean 'Good'? known: Good, NeedsArguments"),
        ("", "name its class, "),
        (":value", "'value' is of type int, not a class; classes with `train`: Good, NeedsArguments"),
        (":Trains", "class 'Trains' has no train(self, job)"),
        (":NeedsArguments", "a trainer is constructed without arguments"),
    ],
)
def test_a_bad_trainer_class_names_the_good_ones(name, words, tmp_path):
    (tmp_path / "mine.py").write_text(TRAINERS)
    with pytest.raises(TrainerError) as refused:
        load_trainer(f"{tmp_path / 'mine.py'}{name}")
    assert words in str(refused.value)


def test_a_trainer_file_loads_its_class(tmp_path):
    (tmp_path / "mine.py").write_text(TRAINERS)
    assert type(load_trainer(f"{tmp_path / 'mine.py'}:Good")).__name__ == "Good"


def test_an_unknown_trainer_names_the_near_one():
    with pytest.raises(TrainerError, match="unknown trainer 'transfomers': did you mean 'transformers'"):
        load_trainer("transfomers")


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("oracle.trainers.installed", lambda package: None)
    with pytest.raises(TrainerError) as refused:
        load_trainer("transformers")
    assert str(refused.value) == (
        "trainer 'transformers' needs the package transformers, which this environment lacks: "
        "pip install transformers, or --with 'transformers==...'"
    )


def test_a_trainer_s_file_means_the_same_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("mine.py:Good") == f"{tmp_path / 'mine.py'}:Good"
    assert absolute("transformers") == "transformers"
