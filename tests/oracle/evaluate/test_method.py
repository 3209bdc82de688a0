"""The page about the method says of each check what it proves and does not."""

from __future__ import annotations

import re
from pathlib import Path

from oracle.evaluate import check
from oracle.evaluate.scenario import Settings
from oracle.report.evaluations import TITLES


def described(page: str) -> dict[str, set[str]]:
    """For each section of the page, the checks in its table."""
    sections = re.split(r"(?m)^## ", page)[1:]
    return {part.partition("\n")[0]: set(re.findall(r"(?m)^\| `(\w+)` \|", part)) for part in sections}


def test_every_check_is_described_in_its_dimension(root: Path) -> None:
    known = described((root / "docs/method.md").read_text())
    for one in check.every():
        assert one.name in known[TITLES[one.about.dimension]], one.full_name


def test_nothing_is_described_that_does_not_exist(root: Path) -> None:
    names = {one.name for one in check.every()}
    assert set().union(*described((root / "docs/method.md").read_text()).values()) <= names


def test_the_settings_of_the_page_are_the_defaults(root: Path) -> None:
    page = (root / "docs/method.md").read_text()
    for name, shown in {"overhead": "15 %", "memory_mib": "1024", "growth_kib": "16", "start_up_s": "60"}.items():
        assert f"`{name}`, {shown}" in page
        assert float(shown.rstrip(" %")) in (getattr(Settings(), name), getattr(Settings(), name) * 100)
