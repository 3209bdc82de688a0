"""The pytest plugin: passes and fails as the commands do, with their reports, also under xdist and on GitHub."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

LOOP = """
from pathlib import Path

import torch


class Loop:
    def train(self, job):
        model, begun = job.model(), 0
        if job.resume_from:
            saved = torch.load(Path(job.resume_from) / "saved.pt")
            model.load_state_dict(saved["model"])
            begun = saved["epochs"]
        optimizer = job.optimizer(model)
        for epoch in range(begun, job.recipe.epochs):
            for batch in job.loader():
                job.loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
            if job.recipe.checkpoint:
                torch.save({"model": model.state_dict(), "epochs": epoch + 1}, Path(job.workdir) / "saved.pt")
"""
NO_RUN = """
import pytest
import oracle.check
from oracle.result import Compared, Result

@pytest.fixture(autouse=True)
def canned(monkeypatch):
    def check(asked):
        passed = asked.recipe.optimizer.lr < 1
        return Result(
            command="check", verdict="match" if passed else "not_comparable", policy=str(asked.policy), passed=passed,
            reference={}, candidate={"trainer": asked.trainer}, compared=Compared(updates=2, addresses=9),
            rerun=asked.rerun, reason=None if passed else "a canned reason, 100% made up",
        )
    monkeypatch.setattr(oracle.check, "check", check)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test suite of somebody else, with a trainer, in processes of its own."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    (pytester.path / "loop.py").write_text(LOOP)
    return pytester


@pytest.fixture
def canned(suite: pytest.Pytester) -> pytest.Pytester:
    """One whose checks are not run: a learning rate of 1 or more fails."""
    suite.makeconftest(NO_RUN)
    suite.makepyfile(
        """
        def test_passes(oracle_check):
            result = oracle_check("regression", "loop.py:Loop", epochs=1, optimizer={"lr": 0.5})
            assert result.rerun.endswith("--set epochs=1 --set optimizer.lr=0.5")

        def test_fails(oracle_check):
            oracle_check("regression", "loop.py:Loop", policy="exact", **{"optimizer.lr": 2.0})
        """
    )
    return suite


def test_pytest_starts_without_torch_and_with_the_plugin(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import sys

        def test_start(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("oracle")
            ours = {name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "click", "diffs"}
            assert not ours
            assert {name for name in sys.modules if name.startswith("oracle")} == {"oracle", "oracle.pytest_plugin"}
        """
    )
    suite.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_a_failure_shows_the_report_and_its_command(canned: pytest.Pytester) -> None:
    ran = canned.runpytest_subprocess("-p", "no:xdist", "--junit-xml=junit.xml")
    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(
        [
            "E   *NOT COMPARABLE: a canned reason, 100% made up",
            "E   *Run again:",
            "E   *oracle check regression --trainer loop.py:Loop --set optimizer.lr=2.0 --policy exact",
        ]
    )
    ran.stdout.no_fnmatch_line("*::error*")
    assert "pytest_plugin.py" not in ran.stdout.str()  # no frame of ours
    assert "NOT COMPARABLE: a canned reason" in (canned.path / "junit.xml").read_text()


@pytest.mark.parametrize("workers", [["-p", "no:xdist"], ["-n", "1"]], ids=["alone", "xdist"])
def test_on_github_a_failure_is_annotated_and_summarised(
    canned: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    summary = canned.path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(canned.path))
    ran = canned.runpytest_subprocess(*workers)
    ran.assert_outcomes(passed=1, failed=1)
    (line,) = [line for line in ran.stdout.lines if "::error" in line]
    file = "file=test_on_github_a_failure_is_annotated_and_summarised.py,line=5"
    assert line.startswith(
        f"::error {file},title=oracle check%3A NOT COMPARABLE%3A a canned reason%2C 100%25 made up::"
    )
    assert summary.read_text().count("### NOT COMPARABLE: a canned reason, 100% made up") == 1


def test_what_cannot_be_asked_fails_with_one_message(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("words", [
            dict(task="none", trainer="loop.py:Loop"),
            dict(task="regression", trainer="none.py:Loop"),
            dict(task="regression", trainer="loop.py:Loop", batchsize=3),
            dict(task="regression", trainer="loop.py:Loop", policy="near"),
        ])
        def test_usage(oracle_check, words):
            oracle_check(**words)

        def test_cut(oracle_resume):
            oracle_resume("regression", "loop.py:Loop", cut="soon")

        def test_golden(oracle_golden):
            oracle_golden("none.golden.json")
        """
    )
    ran = suite.runpytest_subprocess("-p", "no:xdist")
    ran.assert_outcomes(failed=6)
    said = [line for line in ran.stdout.lines if line.startswith("error: ")]
    assert len(said) == 6
    ran.stdout.no_fnmatch_line("*exception*")
    assert "did you mean batch_size?" in said[2] and "oracle golden record" in said[5]


@pytest.mark.slow
def test_the_fixtures_run_the_oracle(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        from oracle.testing import Differs

        def test_check(oracle_check):
            assert oracle_check("regression", "loop.py:Loop", epochs=1, accumulation=1).verdict == "match"

        def test_check_fails(oracle_check):
            with pytest.raises(Differs, match="DIVERGED at update 0") as failed:
                oracle_check("regression", "loop.py:Loop", epochs=1, accumulation=2)
            assert failed.value.result.causes[0].knob == "accumulation.cadence"

        whole = dict(epochs=3, accumulation=1, batch_size=64)  # one update an epoch

        def test_resume(oracle_resume):
            assert oracle_resume("regression", "loop.py:Loop", cut="1:saved", **whole).verdict == "match"

        def test_resume_fails(oracle_resume):
            with pytest.raises(Differs, match="does not restore the optimizer"):
                oracle_resume("regression", "loop.py:Loop", cut="1:saved", optimizer={"name": "adam"}, **whole)

        def test_golden(oracle_golden):
            assert oracle_golden("loop.golden.json").verdict == "match"
        """
    )
    line = [
        "golden",
        "record",
        "regression",
        "--trainer",
        "loop.py:Loop",
        "--set",
        "epochs=1",
        "-o",
        "loop.golden.json",
    ]
    subprocess.run([sys.executable, "-m", "oracle", *line], check=True, cwd=suite.path)
    suite.runpytest_subprocess("-n", "2").assert_outcomes(passed=5)
