"""The exact moments at which an optimizer's own step begins and ends, inside all hooks that others put around it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from oracle.recorder.optimizers import parameters_of
from oracle.recorder.patches import Patches, unless_compiling

HOOKED_IN = register_optimizer_step_pre_hook.__module__  # whose frame calls the hooks and runs the step


class Step:
    """A step that is going on.

    gradients: copies of what it takes, by the identity of the parameter; None where they can be read at its end.
    rates: the learning rate of each group; None where a closure may still change it.
    taken: how many steps there were when it began.
    """

    def __init__(
        self,
        optimizer: Any,
        frame: FrameType,
        taken: int,
        closure: bool,
        gradients: dict[int, Tensor | None] | None = None,
    ) -> None:
        self.optimizer, self.taken = optimizer, taken
        self._frame = frame
        self.again = False  # inside a step of the same optimizer, as when a class calls its parent's
        self.gradients = gradients
        self.rates: list[float] | None = None
        if closure:  # whose forwards and backwards come first
            return
        self.rates = [float(group["lr"]) if "lr" in group else 0.0 for group in optimizer.param_groups]
        if gradients is None and not _leaves_gradients(optimizer):
            grads = {id(parameter): parameter.grad for parameter in parameters_of(optimizer)}
            self.gradients = {key: None if grad is None else grad.detach().clone() for key, grad in grads.items()}

    def goes_on(self) -> bool:
        """Whether it is still running: one that raised tells nobody."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None


class Steps:
    """Knows all optimizers of the process, and the steps that go on, the outermost first.

    begins, ends: called with the step, at its very beginning and end. taken: tells how many steps there were.
    """

    def __init__(self, begins: Callable[[Step], None], ends: Callable[[Step], None], taken: Callable[[], int]) -> None:
        self._begins, self._ends, self._taken = begins, ends, taken
        self._running: list[Step] = []
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inner: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        self._hooked: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Put the hooks in place."""
        patches.method(torch.optim.Optimizer, "__init__", self._make)
        patches.also(register_optimizer_step_pre_hook(unless_compiling(self._approach)).remove)
        patches.also(self._release)

    @property
    def inside(self) -> bool:
        """Whether a step goes on."""
        self._running = [step for step in self._running if step.goes_on()]
        return bool(self._running)

    def serves(self, optimizers: list[Any]) -> bool:
        """Whether a step of one of these goes on, so that what just ended was a part of it."""
        return any(step.optimizer is optimizer for step in self._running for optimizer in optimizers)

    def made(self) -> Iterator[Any]:
        """Yield the optimizers that there are."""
        yield from self._made

    def inner(self, optimizer: Any) -> list[Any]:
        """The optimizers that did the work in earlier steps of this one; none if it does it itself."""
        found = [one() for one in self._inner.get(optimizer, ())]
        return [one for one in found if one is not None and one is not optimizer and not self.inner(one)]

    def begin(
        self, optimizer: Any, frame: FrameType, closure: bool, gradients: dict[int, Tensor | None] | None = None
    ) -> None:
        """A step begins.

        closure: whether it was given one. frame: what runs for as long as it. gradients: what it takes, where known.
        """
        again = self.inside and any(step.optimizer is optimizer for step in self._running)
        step = Step(optimizer, frame, self._taken(), closure, gradients)
        step.again = again
        self._running.append(step)
        if not again:
            self._begins(step)

    def end(self, optimizer: Any) -> None:
        """The innermost step of an optimizer ended."""
        if self.inside and self._running[-1].optimizer is optimizer:
            step = self._running.pop()
            for outer in self._running:
                known = self._inner.setdefault(outer.optimizer, [])
                if all(one() is not optimizer for one in known):
                    known.append(weakref.ref(optimizer))
            if not step.again:
                self._ends(step)

    def _make(self, original: Callable[..., None], optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._made.add(optimizer)

    def _approach(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A step is about to run: be the last of its own hooks before it, and the first behind it."""
        if optimizer not in self._made:  # made before anybody looked, and perhaps not alone
            self._made.update(one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer))
        if optimizer not in self._hooked:
            before = optimizer.register_step_pre_hook(unless_compiling(self._before))
            self._hooked[optimizer] = (before, optimizer.register_step_post_hook(unless_compiling(self._after)))
        before, after = self._hooked[optimizer]
        optimizer._optimizer_step_pre_hooks.move_to_end(before.id)
        optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)

    def _before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_globals.get("__name__") != HOOKED_IN:
            frame = frame.f_back
        self.begin(optimizer, frame, closure is not None)

    def _after(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.end(optimizer)

    def _release(self) -> None:
        for handles in self._hooked.values():
            for handle in handles:
                handle.remove()
        self._hooked.clear()


def _leaves_gradients(optimizer: Any) -> bool:
    """Whether a step is torch's own, which leaves gradients as they are, or is to unscale them first."""
    own = getattr(type(optimizer), "step", None)
    return getattr(own, "__module__", "").startswith("torch.optim.") or hasattr(optimizer, "grad_scale")
