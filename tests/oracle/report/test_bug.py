"""A bug report: the recipe in it can be read back, and nothing is left out silently."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from oracle.report import markdown
from oracle.report.bug import toml
from oracle.result import Result
from reference_loop.recipe import from_dict, load, to_dict


@pytest.mark.parametrize("path", sorted(Path("fixtures/recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_in_a_report_is_the_recipe(path: Path) -> None:
    entry = "accept=[{cause='data.order', reason='say \"yes\"', until=2030-01-01}]"
    recipe = load(path, [entry, "semantics.accumulation.normalise=unit_mean"])
    assert from_dict(tomllib.loads("\n".join(toml(to_dict(recipe))))) == recipe


def test_the_script_stands_in_a_block_that_it_cannot_end(samples: dict[str, Result]) -> None:
    lines = markdown.render(samples["bug_report"]).splitlines()
    start = lines.index("````python")
    assert lines[start + 1 : start + 4] == ['"""What ``` shows."""', "import torch", "````"]


def test_a_report_without_a_script_says_why(samples: dict[str, Result]) -> None:
    report = markdown.render(samples["no_script"])
    assert "No script: no plain loop is written for scaler.unit = micro." in report
    assert "Not made smaller" in report


def test_a_match_is_no_bug_report(samples: dict[str, Result]) -> None:
    assert "####" not in markdown.render(samples["match"])
    assert "####" not in markdown.render(samples["rounding"])


def test_a_divergence_without_a_reproduction_still_has_its_versions(samples: dict[str, Result]) -> None:
    report = markdown.render(replace(samples["diverged"], reproduction=None))
    assert "transformers 4.54.0" in report
    assert "Smallest recipe" not in report
