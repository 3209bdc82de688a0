"""Scripts: each is run where nothing of ours can be imported, and shows its cause or fails."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import tomllib

import pytest

from oracle import reproduction
from oracle.check import Request, opened
from oracle.replays import Server
from oracle.report.loop import NoScript
from oracle.report.script import script
from reference_loop.recipe import from_dict

ZOO = "fixtures/zoo"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The script about the first semantic cause of a specimen."""
    server = Server(tmp_path_factory.mktemp("server"))

    @functools.cache
    def write(name, trainer=None):
        spec = importlib.util.spec_from_file_location(name, f"{ZOO}/{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        recipe = from_dict(tomllib.loads(module.RECIPE))
        request = Request(task=module.TASK, trainer=trainer or f"{ZOO}/{name}.py:Trainer", recipe=recipe, timeout=30.0)
        with opened(request, lambda words: None, server) as case:
            result = case.judge()
            cause = next(cause for cause in result.causes if cause.effect == "semantic")
            return script(reproduction._facts(case, case.found, cause))

    yield write
    server.close()


def run(text, tmp_path):
    """Run a script in a process of its own that can import nothing of ours."""
    path = tmp_path / "shows.py"
    path.write_text(text)
    blocked = [sys.executable, "-c", reproduction.BLOCKED, str(path)]
    return subprocess.run(blocked, cwd=tmp_path, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "name, line",
    [
        ("a_tail_divided_by_k", "(loss / 4).backward()  # <-"),
        ("a_labels_weigh_the_same_unasked", "units = sum("),
        ("g_own_seed_each_epoch", "torch.Generator().manual_seed(SEED + epoch)"),
        pytest.param("b_leaks_the_tail", "if (index + 1) % ", marks=pytest.mark.slow),
        pytest.param("c_steps_before_the_optimizer", "scheduler.step()  # <-", marks=pytest.mark.slow),
        pytest.param("d_schedule_advances_on_skip", "scaler.unscale_(optimizer)", marks=pytest.mark.slow),
        pytest.param("e_never_clips", "clip_grad_norm_(model.parameters(), ", marks=pytest.mark.slow),
        pytest.param("f_spares_biases", "weight_decay=", marks=pytest.mark.slow),
    ],
)
def test_a_script_shows_the_cause_and_nothing_of_ours_is_needed(written, tmp_path, name, line):
    text = written(name)
    assert line in text
    assert "  # <-" in text
    assert not any(word in text for word in ("import oracle", "reference_loop", "import diffs"))
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The plain loop and the trainer differ from update" in done.stdout
    assert "bit for bit" in done.stdout


def test_a_script_fails_where_the_trainer_does_not_do_it(written, tmp_path):
    text = written("a_tail_divided_by_k")
    mended = text.replace("scaler.scale(loss / recipe.accumulation)", "scaler.scale(loss / window)")
    done = run(mended, tmp_path)
    assert done.returncode != 0
    assert "nothing to show" in done.stderr


def test_a_script_fails_where_the_trainer_does_something_else_besides(written, tmp_path):
    text = written("a_tail_divided_by_k")
    other = text.replace("clip(model, recipe.clip)", "clip(model, types.SimpleNamespace(max_norm=0.01))")
    done = run(other, tmp_path)
    assert done.returncode != 0
    assert "the marked loop is not the trainer" in done.stderr


def test_nothing_of_ours_can_be_imported_where_a_script_runs(tmp_path):
    assert "may not import" in run("import reference_loop", tmp_path).stderr


def test_a_name_that_both_files_define_does_not_collide(written, tmp_path, root):
    source = (root / ZOO / "a_tail_divided_by_k.py").read_text()
    trainer = tmp_path / "mine.py"
    trainer.write_text(f"{source}\n\ndef loss(anything):\n    raise AssertionError\n")
    text = written("a_tail_divided_by_k", trainer=f"{trainer}:Trainer")
    assert "spec_from_file_location" in text
    assert run(text, tmp_path).returncode == 0


def test_what_trains_alike_gets_no_script(written):
    with pytest.raises(NoScript, match="train alike"):
        written("j_logs_the_last_micro_batch")


def test_what_no_template_writes_is_refused_by_name(written):
    with pytest.raises(NoScript, match=r"scaler\.unit = micro"):
        written("d_growth_counted_by_micro_batch")
