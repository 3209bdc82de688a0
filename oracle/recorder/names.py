"""The models that train, and the bare name of each of their parameters and buffers, whatever wraps them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

# What wrappers put before the names of the module they hold. A user's own submodule may be called `module`, so that
# one is taken off the front only.
_OUTER = ("module.", "_orig_mod.")
_ANYWHERE = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")

# Wrappers that take any arguments, and where each keeps the module.
_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "_FabricModule": "_forward_module",  # Lightning Fabric
}


def bare(name: str) -> str:
    """A parameter's name without the prefixes of DistributedDataParallel, torch.compile, FSDP and checkpointing."""
    for prefix in _ANYWHERE:
        name = name.replace(prefix, "")
    while name.startswith(_OUTER):
        name = name.partition(".")[2]
    return name


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside wrappers that forward any arguments to it."""
    while (inner := _WRAPPERS.get(type(module).__name__)) is not None:
        module = getattr(module, inner)
    return module


def match(names: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Map each name to the known name that it ends with, or that ends with it, if there is exactly one for it.

    A copy of a model inside a wrapper has a prefix more than the model; a part that is called alone has one less.
    """
    known = list(known)
    whole, parts = set(known), Counter(tail for name in known for tail in _tails(name))
    by_tail = {tail: name for name in known for tail in _tails(name) if parts[tail] == 1}
    found = {}
    for name in names:
        short = bare(name)
        found[name] = next((tail for tail in _tails(short) if tail in whole), by_tail.get(short, short))
    uses = Counter(found.values())
    return {name: target if uses[target] == 1 else bare(name) for name, target in found.items()}


def _tails(name: str) -> Iterator[str]:
    """Yield `a.b.c`, `b.c`, `c`."""
    while name:
        yield name
        name = name.partition(".")[2]


@dataclass
class Member:
    """A model that trains, and the bare names of its tensors by the model's own names; None: another member has it."""

    model: nn.Module
    names: dict[str, str | None]

    def tensors(self, buffers: bool) -> Iterator[tuple[str, Tensor]]:
        """Yield (bare name, parameter or buffer). Tied ones come once."""
        for own, tensor in self.model.named_buffers() if buffers else self.model.named_parameters():
            if (name := self.names.get(own, own)) is not None:
                yield name, tensor


class Models:
    """The task's model, or what the trainer made of it, and any other model that it trains beside it.

    Holds the models: the end of a run is read after the trainer returned, when its own references are gone.

    flat: called modules that keep parameters in flat shards, as FullyShardedDataParallel does.
    """

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.flat: list[nn.Module] = []
        self._attached: nn.Module | None = None
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._glimpsed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._calls: list[weakref.ref[nn.Module]] = []  # of those that were glimpsed, the first call of each

    def attach(self, model: nn.Module) -> None:
        """Take names from this model: wherever its parameters turn up, they carry the names they have here."""
        self._attached = model
        self.members.clear()
        self._seen.clear()

    def see(self, root: nn.Module) -> None:
        """Note that training calls `root`. It joins the members if it holds tensors that none of them has."""
        if root in self._seen:
            return
        self._seen.add(root)
        if any(hasattr(module, "_handle") for module in root.modules()):
            self.flat.append(root)
        self.adopt(root.parameters())
        self._add(root)

    def glimpse(self, module: nn.Module) -> None:
        """Note a call that is none of training's own, such as one without gradients, should an optimizer train it."""
        if module not in self._glimpsed:
            self._glimpsed.add(module)
            self._calls.append(weakref.ref(module))

    def recall(self, parameters: Iterable[Tensor]) -> bool:
        """Take modules that were only glimpsed for models, where these parameters are theirs; returns whether some are.

        A block that is recomputed in the backward runs without gradients first.
        """
        if not self._calls:
            return False
        known = {id(parameter) for _, parameter in self.parameters()}
        lost = [parameter for parameter in parameters if id(parameter) not in known]
        before = len(self.members)
        calls, self._calls = self._calls, []
        for module in (call() for call in calls if lost):
            if module is not None and _share(module, lost):
                self.see(module)
        return len(self.members) > before

    def adopt(self, parameters: Iterable[Tensor] | None = None) -> None:
        """Take the attached model for the one that trains if none was seen yet.

        parameters: only if it holds one of these.
        """
        attached = self._attached
        if not self.members and attached is not None and (parameters is None or _share(attached, parameters)):
            self._add(attached)

    def names(self, parameters: Iterable[Tensor]) -> list[str | None]:
        """The bare name of each parameter; None for one that no member has."""
        known = {id(parameter): name for name, parameter in self.parameters()}
        return [known.get(id(parameter)) for parameter in parameters]

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (bare name, parameter) of all models that train."""
        for member in self.members:
            yield from member.tensors(buffers=False)

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (bare name, buffer) of all models that train."""
        for member in self.members:
            yield from member.tensors(buffers=True)

    def mode(self) -> str | None:
        """The training flag of the first model's modules: "train", "eval" or "mixed"; None before there is a model."""
        if not self.members:
            return None
        flags = {module.training for module in self.members[0].model.modules()}
        return "mixed" if len(flags) == 2 else "train" if flags.pop() else "eval"

    def _add(self, model: nn.Module) -> None:
        """Add a model with the names of those of its tensors that are new."""
        held = {id(tensor) for _, tensor in (*self.parameters(), *self.buffers())}
        own = _tensors(model)
        new = [name for name, tensor in own if id(tensor) not in held]
        if model is self._attached:
            names = {name: name for name in new}
        elif self.members or self._attached is None:
            names = {name: bare(name) for name in new}
        else:  # a copy trains in its place
            names = match(new, [name for name, _ in _tensors(self._attached)])
            self._attached = None
        taken = {name for member in self.members for name in member.names.values()}
        if taken & set(names.values()):
            names = {own: f"model[{len(self.members)}].{name}" for own, name in names.items()}
        if new:
            self.members.append(Member(model, {name: names.get(name) for name, _ in own}))


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """(name, tensor) of all parameters and buffers."""
    return [*model.named_parameters(), *model.named_buffers()]


def _share(model: nn.Module, parameters: Iterable[Tensor]) -> bool:
    """Whether a model holds one of the parameters."""
    held = {id(p) for p in model.parameters()}
    return any(id(p) in held for p in parameters)
