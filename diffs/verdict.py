"""What a comparison concludes, and which conclusions a policy lets pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Verdict = Literal["match", "rounding", "diverged", "nondeterministic", "not_comparable"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

# The count that stands for "no number of floats lies between": a NaN on one side, or two different NaN.
UNREACHABLE = 2**64 - 1


class NotComparable(Exception):
    """Two things that exact comparison cannot judge, with the reason."""


class PolicyError(ValueError):
    """A policy that does not exist, with the valid ones."""


@dataclass(frozen=True)
class Policy:
    """Which verdicts pass.

    name: "exact" passes `match` only, "noise" `rounding` too, "ulp" whatever is measured to be within `ulp`.
    ulp: the allowance of "ulp"; 0 for the others.
    """

    name: Literal["exact", "noise", "ulp"]
    ulp: int = 0

    @classmethod
    def parse(cls, text: str) -> Policy:
        """The policy written as `exact`, `noise` or `ulp:N`.

        Raises:
            PolicyError: anything else, or an N that would let a NaN pass.
        """
        if text == "exact":
            return cls("exact")
        if text == "noise":
            return cls("noise")
        if found := re.fullmatch(r"ulp:([0-9]{1,20})", text):
            ulp = int(found[1])
            if ulp < UNREACHABLE:
                return cls("ulp", ulp)
        raise PolicyError(f"unknown policy {text!r}: use exact, noise or ulp:N, with N a whole number below 2**64 - 1")

    def __str__(self) -> str:
        return f"ulp:{self.ulp}" if self.name == "ulp" else self.name


def passes(verdict: Verdict, policy: Policy, worst_ulp: int | None = None) -> bool:
    """Whether a policy accepts a verdict.

    worst_ulp: the largest distance over everything compared; None where it was not measured or something was missing.

    Acceptance is written in the positive, so that a NaN or an unmeasured distance fails by construction.
    """
    if verdict == "match":
        return True
    if policy.name == "noise":
        return verdict == "rounding"
    if policy.name == "ulp" and verdict in ("rounding", "diverged"):
        return worst_ulp is not None and worst_ulp <= policy.ulp
    return False


def exit_code(verdict: Verdict, passed: bool) -> int:
    """The exit code of a command: 0 passed, 1 differs, 3 nothing could be concluded."""
    if passed:
        return 0
    return 3 if verdict in ("nondeterministic", "not_comparable") else 1
