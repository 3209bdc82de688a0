"""The table of releases names every adapter, and the newest release last."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.version import Version

from oracle.releases import RELEASES, newest
from oracle.trainers import list_trainers


def test_every_adapter_has_a_release() -> None:
    assert {one.name for one in list_trainers()} == {trainer for trainer, _ in RELEASES}


def test_the_newest_release_is_a_trainers_last() -> None:
    assert newest("accelerate") == () and newest("unheard_of") == ()
    (requirement,) = newest("transformers")
    listed = [Version(one.partition("==")[2]) for name, (one, *_) in filter(lambda r: r[1], RELEASES)
              if name == "transformers"]  # fmt: skip
    assert listed == sorted(listed)
    assert Version(next(iter(Requirement(requirement).specifier)).version) == listed[-1]
