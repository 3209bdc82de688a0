"""Two processes that hold half of each parameter; started by torchrun."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def train(rank):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)
    for _ in range(4):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    if rank == 0:
        torch.save({name: parameter.to_local() for name, parameter in net.state_dict().items()}, sys.argv[1])


dist.init_process_group("gloo")
train(dist.get_rank())
dist.barrier()
dist.destroy_process_group()
