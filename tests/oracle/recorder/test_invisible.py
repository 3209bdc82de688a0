"""A run ends in the same bits with probes and without."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from oracle.recorder.probes import Recorder
from oracle.recorder.trace import TraceWriter
from oracle.recorder.values import leaves
from reference_loop import randomness

Trainer = Callable[[], list[Any]]
UPDATES = 4
WIDTH = 8


class Model(nn.Module):
    """Dropout, BatchNorm, a tied weight, a frozen parameter and an idle one."""

    def __init__(self, checkpointed: str = "") -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.idle = nn.Parameter(torch.ones(WIDTH))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) * self.frozen
        if self.checkpointed:
            x = checkpoint(self.body, x, use_reentrant=self.checkpointed == "reentrant")
        else:
            x = self.body(x)
        return self.head(x)


def batches(count: int = UPDATES) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(count):
        yield torch.randn(6, WIDTH), torch.randint(WIDTH, (6,))


def plain(build: Callable[[list[nn.Parameter]], torch.optim.Optimizer], **options: Any) -> list[Any]:
    """The textbook loop, with a schedule and a clip. Returns what it trained."""
    model = Model(**options)
    optimizer = build(list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    for x, y in batches():
        cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return [model, optimizer, scheduler]


def sgd() -> list[Any]:
    return plain(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True))


def adam() -> list[Any]:
    return plain(lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True))


def fused_adamw() -> list[Any]:
    return plain(lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True))


def checkpointed() -> list[Any]:
    return plain(torch.optim.AdamW, checkpointed="not reentrant")


def checkpointed_reentrant() -> list[Any]:
    return plain(torch.optim.AdamW, checkpointed="reentrant")


def closure() -> list[Any]:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        optimizer.step(lambda x=x, y=y: backward(model, optimizer, x, y))
    return [model, optimizer]


def lbfgs() -> list[Any]:
    model = Model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, line_search_fn="strong_wolfe")
    for x, y in batches():
        optimizer.step(lambda x=x, y=y: backward(model, optimizer, x, y))
    return [model, optimizer]


def backward(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    return loss


def scaled(fused: bool) -> list[Any]:
    """float16 with an overflow at update 1, and unscaled clipping."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for update, (x, y) in enumerate(batches()):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss * (float("inf") if update == 1 else 1.0)).backward()
        if update % 2:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [model, optimizer, scaler]


def accumulated() -> list[Any]:
    """Windows of three, zeros in place of None, and an evaluation in the middle of a window."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(batches(3 * UPDATES)):
        (cross_entropy(model(x), y) / 3).backward()
        if index % 3 == 1:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
        if index % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return [model, optimizer]


def adversarial() -> list[Any]:
    """Two models, each with its optimizer, and a gradient penalty."""
    generator, critic = Model(), Model()
    first, second = torch.optim.Adam(critic.parameters(), lr=0.1), torch.optim.SGD(generator.parameters(), lr=0.1)
    for x, _ in batches():
        x.requires_grad_(True)
        score = critic(x).mean()
        (penalty,) = torch.autograd.grad(score, x, create_graph=True)
        (critic(generator(x).detach()).mean() - score + penalty.square().sum()).backward()
        first.step()
        first.zero_grad()
        generator(x).mean().backward(retain_graph=True)
        second.step()
        second.zero_grad()
    return [generator, critic, first, second]


def compiled(backend: str, in_place: bool = False) -> list[Any]:
    torch.compiler.reset()
    model = Model()
    if in_place:
        model.compile(backend=backend)
    called = model if in_place else torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        cross_entropy(called(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [model, optimizer]


TRAINERS: dict[str, Trainer] = {
    "SGD": sgd,
    "Adam": adam,
    "fused AdamW": fused_adamw,
    "checkpointed": checkpointed,
    "checkpointed, reentrant": checkpointed_reentrant,
    "closure": closure,
    "LBFGS": lbfgs,
    "scaled": lambda: scaled(fused=False),
    "scaled, fused": lambda: scaled(fused=True),
    "accumulated": accumulated,
    "adversarial": adversarial,
    "compiled": lambda: compiled("aot_eager"),
    "compiled in place": lambda: compiled("aot_eager", in_place=True),
}
SLOW: dict[str, Trainer] = {
    "inductor": lambda: compiled("inductor"),
    "inductor in place": lambda: compiled("inductor", in_place=True),
}


def end(train: Trainer) -> dict[str, Any]:
    """Everything that a run leaves behind: states, gradients, flags, modes and generators."""
    randomness.seed(1)
    found: dict[str, Any] = {}
    for index, part in enumerate(train()):
        found |= leaves(f"{index}", part.state_dict())
        if isinstance(part, nn.Module):
            for name, parameter in part.named_parameters():
                found |= leaves(f"{index}.{name}.grad", [parameter.grad, parameter.requires_grad, parameter.is_leaf])
            found |= {f"{index}.{name}.training": module.training for name, module in part.named_modules()}
    return found | randomness.states()


def same(first: Any, second: Any) -> bool:
    """Whether two values have the same bits."""
    if not isinstance(first, Tensor):
        return first == second
    return first.dtype == second.dtype and first.numpy(force=True).tobytes() == second.numpy(force=True).tobytes()


def check_invisible(train: Trainer, folder: Path) -> None:
    bare = end(train)
    writer = TraceWriter(folder)
    recorder = Recorder(writer.put, writer.commit)
    with recorder:
        recorded = end(train)
        recorder.finish()
    writer.close({})
    assert recorder.updates >= UPDATES
    assert bare.keys() == recorded.keys()
    assert [name for name in bare if not same(bare[name], recorded[name])] == []


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_probes_are_invisible(trainer: str, tmp_path: Path) -> None:
    check_invisible(TRAINERS[trainer], tmp_path / "trace")


@pytest.mark.slow
@pytest.mark.parametrize("trainer", SLOW)
@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_probes_are_invisible_to_a_compiler(trainer: str, tmp_path: Path) -> None:
    check_invisible(SLOW[trainer], tmp_path / "trace")


@pytest.mark.parametrize("disturb", [lambda: torch.rand(1), random.random, lambda: np.random.rand()])
def test_a_probe_that_draws_is_found(
    disturb: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "_close_update", lambda self: disturb())
    with pytest.raises(AssertionError):
        check_invisible(sgd, tmp_path / "trace")


def test_uninstalling_puts_everything_back() -> None:
    def seams() -> list[Any]:
        scaler, module = torch.amp.GradScaler, sys.modules["torch.nn.modules.module"]
        optimizer = sys.modules["torch.optim.optimizer"]
        return [
            *(vars(scaler)[name] for name in ("scale", "step", "update")),
            vars(torch.optim.lr_scheduler.LRScheduler)["step"],
            torch.Tensor.backward,
            torch.autograd.backward,
            torch.nn.utils.clip_grad_norm_,
            torch.nn.utils.clip_grad.clip_grad_norm_,
            torch.nn.utils.clip_grad_value_,
            *(len(vars(module)[name]) for name in vars(module) if name.startswith("_global_forward")),
            *(len(vars(optimizer)[name]) for name in vars(optimizer) if name.startswith("_global_optimizer")),
        ]

    before = seams()
    recorder = Recorder(lambda address, value: None, lambda: None)
    with pytest.raises(KeyError), recorder:
        assert seams() != before
        raise KeyError
    assert seams() == before


def test_a_function_imported_while_recording_is_put_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    trainer = types.ModuleType("trainer")
    monkeypatch.setitem(sys.modules, "trainer", trainer)
    with Recorder(lambda address, value: None, lambda: None):
        trainer.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_  # type: ignore[attr-defined]
    assert trainer.clip_grad_norm_ is torch.nn.utils.clip_grad_norm_


def test_no_graph_is_kept_alive() -> None:
    model = nn.Linear(2, 1)
    with Recorder(lambda address, value: None, lambda: None):
        output = model(torch.ones(1, 2))
        loss = output.sum()
        loss.backward()
        watched = [weakref.ref(output), weakref.ref(loss)]
        del output, loss
        assert [ref() for ref in watched] == [None, None]
