"""Compares two recordings of any kind that is known: the dispatcher of `oracle diff`.

Each kind is known by what lies in a file or folder, and brings its own comparison; nothing else branches on kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffs.verdict import NotComparable, Policy, Verdict
from oracle.errors import OracleError


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be compared.

    reference, candidate: files or folders. policy: which verdicts pass. trust: whether pickles may run their code.
    everything: whether the report is to be left unshortened. rename: rules for names in recordings, each
    "pattern=replacement". again: whether recorded commands are run again, for the elements at the first difference.
    rerun: the command that was given.
    """

    reference: Path
    candidate: Path
    policy: Policy
    trust: bool = False
    everything: bool = False
    rename: tuple[str, ...] = ()
    again: bool = False
    rerun: str = ""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a comparison found: its verdict, whether the policy passes it, its JSON, and the lines of its report."""

    verdict: Verdict
    passed: bool
    content: dict[str, Any]
    lines: Iterable[str]


@dataclass(frozen=True)
class Kind:
    """A kind of recording that two of can be compared.

    name: as messages have it. recognises: whether a file or folder is one. compare: compares two of them.
    """

    name: str
    recognises: Callable[[Path], bool]
    compare: Callable[[Request], Found]


def _compare_checkpoints(request: Request) -> Found:
    from oracle.checkpoints import compare

    return compare(request)


def _is_profile(path: Path) -> bool:
    from oracle.profile.compare import recognises

    return recognises(path)


def _compare_profiles(request: Request) -> Found:
    from oracle.profile.compare import compare_files

    return compare_files(request)


def _is_evaluation(path: Path) -> bool:
    from oracle.evaluate.archive import recognises

    return recognises(path)


def _compare_evaluations(request: Request) -> Found:
    from oracle.evaluate.compare import compare

    return compare(request)


def _is_recording(path: Path) -> bool:
    return path.is_dir() and any(path.glob("trace*.db"))


def _compare_recordings(request: Request) -> Found:
    from oracle.traces import compare_recordings

    return compare_recordings(request)


# In this order; the last one knows everything, and says itself what it cannot read.
KINDS = (
    Kind("profile", _is_profile, _compare_profiles),
    Kind("evaluation", _is_evaluation, _compare_evaluations),
    Kind("recording", _is_recording, _compare_recordings),
    Kind("checkpoint", lambda path: True, _compare_checkpoints),
)


def kind_of(path: Path) -> Kind:
    """What kind of recording lies at a path.

    Raises:
        OracleError: nothing lies there.
    """
    if not path.exists():
        raise OracleError(f"there is no file or folder {str(path)!r}: name a checkpoint")
    return next(kind for kind in KINDS if kind.recognises(path))


def diff(request: Request) -> Found:
    """Compare two recordings of one kind.

    Raises:
        OracleError: one does not exist. NotComparable: they are of two kinds, or cannot be read.
    """
    reference, candidate = kind_of(request.reference), kind_of(request.candidate)
    if reference is not candidate:
        raise NotComparable(
            f"{request.reference} is a {reference.name}, {request.candidate} is a {candidate.name}: "
            "compare two of one kind"
        )
    return reference.compare(request)
