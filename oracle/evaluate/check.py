"""What a check is: one file in `checks/`, a function from evidence to a finding."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oracle.evaluate import checks
from oracle.evaluate.evidence import Evidence, NotRun
from oracle.evaluate.experiments import LOGGED
from oracle.evaluate.schema import Effort, Quantity, Row, Setting, Status


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a check says; the fields are those of a row."""

    status: Status
    says: str
    quantities: tuple[Quantity, ...] = ()
    unset: tuple[Setting, ...] = ()
    effort: Effort | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class About:
    """What a check is about; each file has one as `ABOUT`.

    dimension: that it belongs to. step: of the method, 1 to 6. needs: experiments; one that ends in * stands for all
    that begin so.
    """

    dimension: str
    step: int
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """A check with its name."""

    name: str
    about: About
    judge: Callable[[Evidence], Found]

    @property
    def full_name(self) -> str:
        """Dimension and name."""
        return f"{self.about.dimension}.{self.name}"

    def needs(self, known: Mapping[str, Any], size: str) -> list[str]:
        """The experiments that it reads. known: all there are. size: of the model that a scenario is timed on."""
        found: list[str] = []
        for need in (need.format(size=size) for need in self.about.needs):
            found += [name for name in known if name.startswith(need[:-1])] if need.endswith("*") else [need]
        return list(dict.fromkeys([*found, *(LOGGED if "profile" in found else ())]))

    def row(self, evidence: Evidence) -> Row:
        """The row of this check.

        A cell without an artifact would be a claim without evidence, and is refused.
        """
        evidence.begin()
        try:
            found = self.judge(evidence)
        except NotRun as reason:
            found = Found(status="not_run", says=f"not run: {reason}")
        if found.status != "not_run" and not evidence.opened:
            raise ValueError(f"check {self.full_name} filled a cell without evidence")
        return Row(
            check=self.name,
            dimension=self.about.dimension,
            step=self.about.step,
            **vars(found),
            artifacts=tuple(evidence.opened),
        )


def every() -> list[Check]:
    """The checks, in the order of the method."""
    found = []
    for module in pkgutil.iter_modules(checks.__path__):
        loaded = importlib.import_module(f"{checks.__name__}.{module.name}")
        found.append(Check(module.name, loaded.ABOUT, loaded.judge))
    return sorted(found, key=lambda check: (check.about.step, check.full_name))
