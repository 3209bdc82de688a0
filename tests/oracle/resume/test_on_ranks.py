"""A trainer on two ranks is interrupted and resumed; what is not restored is found, and never more than suggested."""

from __future__ import annotations

import pytest

from diffs.verdict import Policy
from oracle.check import Request
from oracle.replays import Server
from oracle.resume import cuts
from oracle.resume.command import resume
from oracle.tasks import fixtures
from reference_loop.recipe import from_dict

RECIPE = {"updates": 4, "batch_size": 2, "shuffle": True, "optimizer": {"momentum": 0.9}, "checkpoint": {"every": 1}}
RECIPE |= {"parallel": {"ranks": 2}}
FORGETS = """
import importlib.util
spec = importlib.util.spec_from_file_location("loop", {file!r})
loop = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loop)
kept = loop.load
class Forgets(loop.Loop):
    def train(self, job):
        loop.load = lambda job, parts, place: kept(job, {{k: v for k, v in parts.items() if k != "model"}}, place)
        super().train(job)
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def resumed(tmp_path):
    """Interrupt a trainer of a file on two ranks after two updates are saved."""
    server = Server(tmp_path / "server")

    def resumed(trainer):
        request = Request(
            task="regression", trainer=trainer, recipe=from_dict(RECIPE), policy=Policy.parse("exact"), timeout=120.0
        )
        return resume(request, [cuts.parse("2:saved")], server=server)

    yield resumed
    server.close()


def test_a_whole_save_of_each_rank_is_gone_on_from(resumed):
    result = resumed(f"{fixtures()}/trainers/loop.py:Loop")
    assert (result.verdict, result.resumptions[0].began) == ("match", 2)
    assert "no control: the reference loop is not resumed on several ranks" in result.notes
    assert result.passed


def test_what_is_not_restored_is_suggested(resumed, tmp_path):
    file = tmp_path / "forgets.py"
    file.write_text(FORGETS.format(file=f"{fixtures()}/trainers/loop.py"))
    result = resumed(f"{file}:Forgets")
    assert result.verdict == "diverged" and result.first_divergence.moment == "start"
    (cause,) = result.causes
    assert (cause.candidate, cause.status) == ("parameter", "suggested")
