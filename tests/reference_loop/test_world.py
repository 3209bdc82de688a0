"""Plans of several ranks, interleaved in one process, train what real ranks train, bit for bit."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from oracle.ranks import environment, free_port
from oracle.tasks import load_task
from reference_loop import randomness
from reference_loop.interpreter import carry_out
from reference_loop.operations import Collective, Reduce
from reference_loop.plan import plan, planned_updates
from reference_loop.recipe import from_dict
from reference_loop.schedules import factor
from reference_loop.semantics import Semantics
from reference_loop.shards import DealtStream, dealt, share
from reference_loop.state import State
from reference_loop.task import TaskError
from reference_loop.world import OnRank, World, interleaved

RANKS = 2
PLAIN = {"epochs": 2, "batch_size": 2, "parallel": {"ranks": RANKS}, "optimizer": {"name": "sgd", "lr": 0.1}}
RICH = {
    **PLAIN, "shuffle": True, "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "schedule": {"name": "linear", "warmup": 1}, "clip": {"max_norm": 0.5}, "seed": 3,
}  # fmt: skip
# 10 samples are 3 micro-batches for each of 2 ranks, the last of them short.
CASES = {
    "one micro-batch": ("ragged_tail", {**PLAIN, "accumulation": 1}),
    "a short last window": ("ragged_tail", {**PLAIN, "accumulation": 2}),
    "three micro-batches": ("ragged_tail", {**RICH, "accumulation": 3}),
    "statistics": ("batchnorm", {**RICH, "accumulation": 3}),
    "dropout": ("decoder", {**RICH, "accumulation": 3}),
    "an update for each batch of three": ("tokens", {**RICH, "batch_size": 3, "accumulation": 1}),
}


def trained(task, recipe, rank):
    """What torch's own parts train on one of several ranks: gradients, parameters and buffers of each update."""
    torch.manual_seed(recipe.seed)
    model = task.model()
    torch.manual_seed(recipe.seed)
    replica, data = DistributedDataParallel(model), task.train_data()
    sampler = DistributedSampler(data, RANKS, rank, shuffle=recipe.shuffle, seed=recipe.seed)
    loader = DataLoader(data, recipe.batch_size, sampler=sampler)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[recipe.optimizer.name]
    optimizer = kind(model.parameters(), **recipe.optimizer.arguments())
    asked, total = recipe.schedule, recipe.epochs * math.ceil(len(loader) / recipe.accumulation)
    scheduler = LambdaLR(optimizer, lambda step: factor(asked.name, asked.warmup, step, total) if asked else 1.0)
    found = []
    for epoch in range(recipe.epochs):
        sampler.set_epoch(epoch)
        for index, batch in enumerate(loader):
            position = index % recipe.accumulation
            window = min(recipe.accumulation, len(loader) - index + position)
            last = position + 1 == window
            with nullcontext() if last else replica.no_sync():
                (task.loss(replica, batch, "mean") / window).backward()
            if last:
                if recipe.clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip.max_norm)
                seen = {f"gradient {name}": p.grad.clone() for name, p in model.named_parameters()}
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                seen |= {f"parameter {name}": p.detach().clone() for name, p in model.named_parameters()}
                found.append(seen | {f"buffer {name}": b.clone() for name, b in model.named_buffers()})
    return found


def emulated(task, recipe, ranks):
    """The same of the reference, which trains all ranks in this process."""
    s = Semantics.of(recipe)
    randomness.seed(recipe.seed)
    world = World([State(task, recipe, drop_last=False, rank=rank) for rank in range(ranks)])
    found = [[] for _ in range(ranks)]

    def observe(address, value):
        if (address.moment, address.kind) == ("consume", "gradient"):
            here = found[address.rank]
            if len(here) == address.update:
                here.append({})
        if (address.moment, address.kind) in (
            ("consume", "gradient"),
            ("update", "parameter"),
            ("update", "buffer"),
        ):
            found[address.rank][address.update][f"{address.kind} {address.name}"] = value.clone()

    for operation in interleaved(list(plan(recipe, s, len(world.states[0].loader.data))), ranks):
        carry_out(operation, world, observe, {})
    return found


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """What two real ranks train, case by case: forks of this process, one for each."""
    folder, port = tmp_path_factory.mktemp("ranks"), free_port()
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ.update(environment(rank, RANKS, port))
                dist.init_process_group("gloo")
                cases = {name: trained(load_task(task), from_dict(r), rank) for name, (task, r) in CASES.items()}
                torch.save(cases, folder / f"{rank}.pt")
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * RANKS
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_in_one_process_are_two_ranks(real, case):
    name, asked = CASES[case]
    for rank, ours in enumerate(emulated(load_task(name), from_dict(asked), RANKS)):
        theirs = real[rank][case]
        assert len(ours) == len(theirs) == planned_updates(from_dict(asked), Semantics(), samples(name))
        for update, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one.keys() == other.keys()
            apart = [what for what in one if not torch.equal(one[what], other[what])]
            assert apart == [], (rank, update)


def samples(task):
    return len(load_task(task).train_data())


def test_ranks_of_a_model_with_statistics_stand_apart_in_them_alone(real):
    one, other = (real[rank]["statistics"][-1] for rank in range(RANKS))
    apart = {what.partition(" ")[0] for what in one if not torch.equal(one[what], other[what])}
    assert apart == {"buffer"}


# Taking turns


def test_every_rank_does_all_of_the_plan_and_they_reduce_together():
    operations = list(plan(from_dict({**RICH, "accumulation": 2}), Semantics(), 10))
    together = list(interleaved(operations, 3))
    for rank in range(3):
        own = [step.operation if isinstance(step, OnRank) else step for step in together
               if not isinstance(step, OnRank) or step.rank == rank]  # fmt: skip
        assert own == operations
    at = next(place for place, step in enumerate(together) if isinstance(step, Reduce))
    assert all(isinstance(step, OnRank | Collective) for step in together)
    assert {step.rank for step in together[:at] if isinstance(step, OnRank)} == {0, 1, 2}


def test_a_rank_draws_from_generators_of_its_own():
    recipe = from_dict(PLAIN)
    randomness.seed(recipe.seed)
    world = World([State(load_task("regression"), recipe, drop_last=False, rank=rank) for rank in range(2)])
    drawn = []
    for rank in (0, 0, 1, 1):
        with world.turn(rank):
            drawn.append(torch.rand(1).item())
    assert drawn[:2] == drawn[2:] and drawn[0] != drawn[1]


# Who trains which samples

COUNTS = st.integers(1, 40)
SEVERAL = st.integers(2, 5)


@settings(deadline=None)
@given(COUNTS, SEVERAL, st.booleans(), st.booleans(), st.integers(0, 3), st.integers(0, 3))
def test_samples_are_dealt_as_a_distributed_sampler_deals_them(number, ranks, shuffle, drop_last, seed, epoch):
    recipe = from_dict({"parallel": {"ranks": ranks}, "shuffle": shuffle, "seed": seed, "drop_last": drop_last})
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(number, generator=generator).tolist() if shuffle else list(range(number))
    for rank in range(ranks):
        sampler = DistributedSampler(range(number), ranks, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        sampler.set_epoch(epoch)
        held = dealt(order, recipe, "interleave", drop_last, rank)
        assert held == list(sampler)
        assert len(held) == share(number, recipe, "interleave", drop_last) == len(sampler)


@settings(deadline=None)
@given(COUNTS, SEVERAL, st.integers(1, 4), st.booleans(), st.sampled_from(["interleave", "contiguous", "batches"]))
def test_every_rank_has_as_many_samples_and_none_is_left_out(number, ranks, batch, drop_last, shard):
    recipe = from_dict({"parallel": {"ranks": ranks}, "batch_size": batch})
    held = [dealt(range(number), recipe, shard, drop_last, rank) for rank in range(ranks)]
    assert {len(own) for own in held} == {share(number, recipe, shard, drop_last)}
    met = [sample for own in held for sample in own]
    if drop_last:
        assert len(met) == len(set(met))
    else:
        assert set(met) == set(range(number))


@settings(deadline=None)
@given(COUNTS, SEVERAL)
def test_a_replica_holds_all_samples(number, ranks):
    recipe = from_dict({"parallel": {"ranks": ranks}})
    assert [dealt(range(number), recipe, "replicate", False, rank) for rank in range(ranks)] == [
        list(range(number))
    ] * ranks


@pytest.fixture(scope="module")
def accelerate_loading():
    return pytest.importorskip("accelerate.data_loader", reason="accelerate is not installed here")


@settings(deadline=None)
@given(
    number=COUNTS,
    ranks=SEVERAL,
    batch=st.integers(1, 4),
    drop_last=st.booleans(),
    shard=st.sampled_from(["interleave", "batches"]),
)
def test_a_stream_is_dealt_as_its_list_would_be(number, ranks, batch, drop_last, shard):
    recipe = from_dict({"parallel": {"ranks": ranks}, "batch_size": batch})
    for rank in range(ranks):
        stream = DealtStream(range(number), recipe, shard, drop_last, rank)
        assert list(stream) == dealt(range(number), recipe, shard, drop_last, rank)


def test_stretches_of_a_stream_are_refused():
    with pytest.raises(TaskError, match="cannot be dealt to ranks in stretches: return a data set"):
        DealtStream([], from_dict({"parallel": {"ranks": 2}}), "contiguous", False, 0)


@given(number=COUNTS, ranks=SEVERAL, batch=st.integers(1, 4), drop_last=st.booleans())
def test_batches_are_dealt_as_accelerate_deals_them(accelerate_loading, number, ranks, batch, drop_last):
    recipe = from_dict({"parallel": {"ranks": ranks}, "batch_size": batch})
    for rank in range(ranks):
        batches = accelerate_loading.BatchSamplerShard(BatchSampler(range(number), batch, drop_last), ranks, rank)
        theirs = [sample for each in batches for sample in each]
        assert dealt(range(number), recipe, "batches", drop_last, rank) == theirs
