"""What an optimizer holds, by the bare names of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from oracle.recorder.names import Models
from oracle.recorder.values import leaves, plain, readable

# Not arguments of the algorithm: the learning rate has a kind of its own, the rest chooses among implementations.
UNRECORDED = frozenset(
    {"params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"}
)


class Optimizer:
    """A torch optimizer's parameters under their names. Only what requires a gradient counts.

    of: the optimizer, or anything else with its `param_groups` and `state`.
    prefix: goes before every name; "" for the first optimizer of a run.
    nameless: whether it holds tensors that belong to no model, as copies of parameters in another type or shape do.
    models: knows the names. written: the arguments that were yielded, by name; all optimizers of a run share it.
    """

    def __init__(self, of: Any, prefix: str, models: Models, written: dict[str, dict[str, Any]]) -> None:
        self.of = of
        self.prefix = prefix
        self._models = models
        self.steps = 0
        self.nameless = False
        self._identities: list[int] = []
        self._members = 0
        self._names: list[str] = []
        self._arguments = written

    def parameters(
        self, groups: Sequence[dict[str, Any]] | None = None
    ) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """Yield (name, parameter, group). Names are looked up again only when the groups or the models changed.

        groups: the optimizer's, where they were read already: another library's may be made anew at each reading.
        """
        parameters = parameters_of(self.of)
        identities, members = [id(parameter) for parameter in parameters], len(self._models.members)
        if identities != self._identities or members != self._members:
            found = enumerate(self._models.names(parameters))
            self._names = [self.prefix + (name or f"parameter[{index}]") for index, name in found]
            self._identities, self._members = identities, members
            self.nameless = any(name.endswith("]") and "parameter[" in name for name in self._names)
        names = iter(self._names)
        for group in self.of.param_groups if groups is None else groups:
            for parameter in group["params"]:
                name = next(names)
                if parameter.requires_grad:
                    yield name, parameter, group

    def takes(self, optimizer: Any, held: set[int]) -> bool:
        """Whether this is `optimizer`, or becomes it because it has held one of its parameters.

        held: the identities of the optimizer's parameters.
        """
        if self.of is not optimizer and held.isdisjoint(self._identities):
            return False
        self.of = optimizer
        return True

    def gradients(self, taken: Mapping[int, Tensor | None] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield the gradient that the optimizer took, by parameter. One that is None is zeros.

        taken: gradients by the identity of their parameter; None where they are still there.

        A fused kernel undoes the loss scale itself, and leaves the gradient as it is when it skips a step; what it
        would have taken is yielded then.
        """
        unscale = _left_undone(self.of)
        for name, parameter, _ in self.parameters():
            gradient = parameter.grad if taken is None else taken.get(id(parameter))
            if gradient is None:
                gradient = torch.zeros_like(readable(parameter))
            yield name, gradient if unscale is None else gradient * unscale.to(gradient.device)

    def rates(self, taken: Sequence[float] | None = None) -> Iterator[tuple[str, float]]:
        """Yield the learning rate of each parameter; `taken` has those of the groups at another time."""
        groups = self.of.param_groups
        if taken is not None:
            at_hand = {id(group): rate for group, rate in zip(groups, taken, strict=False)}
        for name, _, group in self.parameters(groups):
            yield name, float(group["lr"]) if taken is None else at_hand.get(id(group), float(group["lr"]))

    def state(self) -> Iterator[tuple[str, Any]]:
        """Yield the state of each parameter as `<parameter>.<key>`, down into lists and dicts."""
        states = self.of.state
        for name, parameter, _ in self.parameters():
            for key, value in states.get(parameter, {}).items():
                if isinstance(value, Tensor):  # nearly always, and many
                    yield f"{name}.{key}", value
                else:
                    yield from leaves(f"{name}.{key}", value)

    def arguments(self) -> Iterator[tuple[str, Any]]:
        """Yield `<parameter>.<argument>` where it is new or changed since the last call.

        A parameter that was not there before also has `<parameter>.optimized`: True.
        """
        groups = self.of.param_groups
        arguments = {id(group): _arguments(group) for group in groups}
        for name, _, group in self.parameters(groups):
            now, before = arguments[id(group)], self._arguments.get(name, {})
            if now != before:
                self._arguments[name] = now
                changed = ((key, value) for key, value in now.items() if key not in before or before[key] != value)
                yield from ((f"{name}.{key}", value) for key, value in changed)


def parameters_of(optimizer: Any) -> list[Tensor]:
    """All parameters in an optimizer's groups, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _arguments(group: dict[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in group.items() if key not in UNRECORDED} | {"optimized": True}


def _left_undone(optimizer: Any) -> Tensor | None:
    """What a fused kernel did not multiply the gradients by because it skipped the step; None if it did not skip.

    `torch.amp.GradScaler` lends the optimizer these two attributes for the time of the step.
    """
    scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    if scale is None or found_inf is None or not found_inf.item():
        return None
    return scale.double().reciprocal().float()
