from __future__ import annotations

import torch

from diffs.checkpoints.pairing import pair
from diffs.checkpoints.stored import Stored


def table(**tensors: torch.Tensor) -> dict[str, Stored]:
    return {name.replace("__", "."): Stored.of(tensor) for name, tensor in tensors.items()}


A, B, C = torch.randn(2, 3), torch.randn(3), torch.randn(3)


def test_equal_names_are_paired() -> None:
    found = pair(table(a=A, b=B), table(b=C, a=A))
    assert found.same == [("a", "a"), ("b", "b")] and not found.rule
    assert not (found.renamed or found.tied or found.missing or found.added)


def test_a_prefix_on_one_side_is_a_rule() -> None:
    found = pair(table(a=A, b__w=B), table(module__a=A + 1, module__b__w=C))
    assert found.same == [("a", "module.a"), ("b.w", "module.b.w")]
    assert found.rule is not None and (found.rule.off, found.rule.on, found.rule.names) == ("", "module.", 2)
    assert str(found.rule) == "the candidate has the prefix 'module.'"


def test_two_prefixes_are_one_rule() -> None:
    found = pair(table(model__a=A, model__b=B), table(net__a=A, net__b=B))
    assert found.rule is not None and (found.rule.off, found.rule.on) == ("model.", "net.")


def test_a_prefix_that_pairs_few_is_no_rule() -> None:
    found = pair(table(a=A, b=B, c=torch.ones(5)), table(x__a=A + 1, y__d=torch.ones(6), z__e=torch.ones(7)))
    assert found.rule is None and found.missing == ["a", "b", "c"] and found.added == ["x.a", "y.d", "z.e"]


def test_a_renamed_tensor_is_found_by_its_content() -> None:
    found = pair(table(a=A, old=B), table(a=A, new=B.clone()))
    assert found.renamed == [("old", "new")] and not found.missing and not found.added


def test_another_content_is_no_renaming() -> None:
    found = pair(table(old=B), table(new=C))
    assert not found.renamed and (found.missing, found.added) == (["old"], ["new"])


def test_tied_tensors_are_stored_once_or_twice() -> None:
    found = pair(table(wte=A, head=A), table(wte=A.clone()))
    assert found.tied == [("reference", "head", "wte")] and not found.missing
    found = pair(table(wte=A), table(wte=A.clone(), head=A.clone()))
    assert not found.tied and found.added == ["head"]
