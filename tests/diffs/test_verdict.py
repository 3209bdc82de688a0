from __future__ import annotations

import pytest

from diffs.verdict import UNREACHABLE, VERDICTS, Policy, PolicyError, exit_code, passes


def test_the_words_are_those_of_the_design() -> None:
    assert VERDICTS == ("match", "rounding", "diverged", "nondeterministic", "not_comparable")


@pytest.mark.parametrize(
    ("policy", "passing"),
    [("exact", {"match"}), ("noise", {"match", "rounding"}), ("ulp:4", {"match", "rounding", "diverged"})],
)
def test_a_policy_passes_these_verdicts_and_no_other(policy: str, passing: set[str]) -> None:
    assert {verdict for verdict in VERDICTS if passes(verdict, Policy.parse(policy), worst_ulp=4)} == passing


def test_ulp_passes_up_to_its_allowance() -> None:
    policy = Policy.parse("ulp:4")
    assert [passes("diverged", policy, ulp) for ulp in (0, 4, 5)] == [True, True, False]


def test_nan_never_passes() -> None:
    for policy in ("exact", "ulp:0", f"ulp:{UNREACHABLE - 1}"):
        assert not passes("diverged", Policy.parse(policy), UNREACHABLE)


def test_what_was_not_measured_never_passes() -> None:
    assert not passes("diverged", Policy.parse("ulp:1000"), None)


def test_nothing_concluded_never_passes() -> None:
    for policy in ("exact", "noise", "ulp:1000"):
        for verdict in ("nondeterministic", "not_comparable"):
            assert not passes(verdict, Policy.parse(policy), 0)


@pytest.mark.parametrize("text", ["exact", "noise", "ulp:0", "ulp:17"])
def test_a_policy_prints_as_it_was_written(text: str) -> None:
    assert str(Policy.parse(text)) == text


@pytest.mark.parametrize("text", ["", "Exact", "ulp", "ulp:", "ulp:-1", "ulp:1.5", "ulp:nan", f"ulp:{UNREACHABLE}"])
def test_another_policy_is_refused_with_the_valid_ones(text: str) -> None:
    with pytest.raises(PolicyError, match="use exact, noise or ulp:N"):
        Policy.parse(text)


@pytest.mark.parametrize(
    ("verdict", "passed", "code"),
    [
        ("match", True, 0),
        ("rounding", True, 0),
        ("rounding", False, 1),
        ("diverged", False, 1),
        ("diverged", True, 0),
        ("nondeterministic", False, 3),
        ("not_comparable", False, 3),
    ],
)
def test_exit_codes(verdict, passed: bool, code: int) -> None:
    assert exit_code(verdict, passed) == code
