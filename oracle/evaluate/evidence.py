"""What checks read: artifacts of experiments, run when they are asked for and not there yet.

Whatever a check reads is noted, so a row's artifacts are what it rests on. Without a session nothing is run, and the
same checks judge what a stored evaluation holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from oracle.evaluate.experiments import experiments
from oracle.evaluate.record import ARTIFACTS, Record, digest
from oracle.evaluate.scenario import Scenario
from oracle.evaluate.schema import Effort, Quantity
from oracle.evaluate.session import Session
from oracle.result import Result, write_text


class NotRun(Exception):
    """An experiment that was not run, with the reason."""


@dataclass(frozen=True)
class Run:
    """One training by both sides; see `oracle.evaluate.experiments.runs`."""

    content: Mapping[str, Any]

    @property
    def refused(self) -> str | None:
        """Why the trainer did not train it."""
        return self.content["refused"]

    @cached_property
    def result(self) -> Result | None:
        """What `oracle check` says; None where causes were not looked for."""
        plain = self.content.get("result")
        return None if plain is None else Result.from_dict(plain)

    @property
    def repeats(self) -> bool | None:
        """Whether two runs of the candidate were equal."""
        return self.content.get("repeats")

    @property
    def ended(self) -> bool:
        """Whether the candidate trained to its end."""
        return bool(self.content.get("ended"))

    @property
    def reference(self) -> Mapping[str, Any]:
        """What the reference's trace says."""
        return self.content["reference"]

    @property
    def candidate(self) -> Mapping[str, Any]:
        """What the candidate's trace says; empty where it recorded nothing."""
        return self.content.get("candidate") or {"updates": 0, "tensors": [], "moved": False, **dict.fromkeys(
            ("ids", "losses", "rates", "logged", "evaluated", "scales"), ())}  # fmt: skip

    @property
    def log(self) -> str:
        """The end of what the candidate printed."""
        return self.content.get("log", "")

    def ends(self, metric: str = "loss") -> tuple[float, float] | None:
        """The metric of both models at the end, the reference's first; measured alike for both."""
        found = self.content.get("ends")
        if not found:
            return None
        name = metric if metric in found["reference"] else next(iter(found["reference"]))
        return float(found["reference"][name]), float(found["candidate"][name])

    def tensors(self, kind: str) -> dict[int, dict[str, Sequence[float]]]:
        """The candidate's small tensors: update to name to elements; -1 is the start."""
        found: dict[int, dict[str, Sequence[float]]] = {}
        for update, what, name, elements in self.candidate["tensors"]:
            if what == kind:
                found.setdefault(update, {})[name] = elements
        return found


@dataclass
class Evidence:
    """The evidence of one evaluation.

    surroundings: what was fixed. session: runs what is missing; None for a stored evaluation.
    opened: artifacts read since the last `begin`. conditions: those of the numbers so far, by name.
    """

    record: Record
    scenario: Scenario
    surroundings: Mapping[str, Any]
    session: Session | None = None
    opened: list[str] = field(default_factory=list)
    conditions: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def experiments(self) -> dict[str, Any]:
        """What can be run."""
        return experiments(self.scenario)

    def begin(self) -> None:
        """A new check begins."""
        self.opened = []

    def get(self, name: str) -> dict[str, Any]:
        """The artifact of an experiment.

        Raises:
            NotRun: it is not there, and nothing may be run.
        """
        if not self.record.has(name):
            if self.session is None:
                raise NotRun(f"{name} was not run")
            self.session.progress(f"running: {name}")
            self.record.write(name, self.experiments[name].make(self.session))
        self._note(self.record.path(name))
        return self.record.read(name)

    def run(self, name: str) -> Run:
        """A training by both sides."""
        return Run(self.get(name))

    def effort(self, feature: str) -> Effort:
        """What it took to switch a feature on."""
        found = self.get("settings")["features"].get(feature, {})
        return Effort(settings=tuple(found.get("settings", ())), lines=found.get("lines"))

    def draw(self, name: str, picture: str) -> None:
        """Keep a picture."""
        path = f"{ARTIFACTS}/{name}.svg"
        if self.session is not None:
            write_text(self.record.folder / path, picture)
        self._note(path)

    def quantity(self, name: str, value: float, unit: str, of: Mapping[str, Any], **more: Any) -> Quantity:
        """A number with its conditions. of: the artifact of its experiment."""
        facts = {
            "task": of["task"],
            "recipe": of["recipe"],
            "processor": self.surroundings["hardware"]["processor"],
            "cores": self.surroundings["hardware"]["cores"],
            **{key: self.surroundings["runtime"][key] for key in ("python", "torch", "threads")},
            "data": self.surroundings["data"]["task"],
            "baseline": self.surroundings["baseline"]["digest"],
        }
        under = digest(facts)
        self.conditions[under] = facts
        return Quantity(name=name, value=value, unit=unit, under=under, **more)

    def _note(self, path: str) -> None:
        if path not in self.opened:
            self.opened.append(path)
