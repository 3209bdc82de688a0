"""Where a trainer's values come from: its arguments' defaults, what the adapter passes, or its code alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from oracle.adapters.levers import TABLES, Table
from oracle.profile.schema import Source
from oracle.profile.signatures import Signatures

WITH = ", with "
"""Between a probe's name and the setting that it was run under."""


class Sources:
    """The sources of one trainer's values; a trainer of which no arguments are known has none.

    probes: the names of the probes whose recipes `signatures` was read for, in that order.
    environment: the variables that the trainer ran with.
    """

    def __init__(
        self,
        trainer: str,
        signatures: Signatures,
        probes: Sequence[str],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.environment = environment
        self.table: Table | None = TABLES.get(trainer)
        self.defaults = signatures.defaults
        self.passed: Mapping[str, Mapping[str, str]] = dict(zip(probes, signatures.passed, strict=False))

    def of(self, name: str, value: str, probes: Sequence[str], asked: bool) -> Source | None:
        """The source of a value that probes have shown.

        name: the knob, or "hyperparameter.name".
        asked: whether it is the value that the recipe asks for.
        """
        if self.table is None or (self.table.carries and not self.defaults):
            return None
        carriers = self.table.carries.get(f"{name} = {value}", self.table.carries.get(name, ()))
        known = [argument for argument in carriers if argument in self.defaults]
        for argument in known:
            told = [self.passed.get(probe.partition(WITH)[0], {}).get(argument) for probe in probes]
            if told and None not in told:  # what the trainer was told, and does otherwise, no argument says
                return Source(kind="argument", name=argument, value=told[0]) if asked else Source(kind="hidden")
            if any(told):
                return None
        chosen = self.table.chosen.get(f"{name} = {value}")
        if chosen is not None and not known:
            return Source(kind="argument", name=chosen[0], value=chosen[1])
        for argument in known:
            variable = self.table.variables.get(argument)
            if variable is not None and variable in self.environment:
                return Source(kind="variable", name=variable, value=self.environment[variable])
        if known:
            return Source(kind="default", name=known[0], value=self.defaults[known[0]])
        return Source(kind="loop" if name in self.table.loop else "hidden")
