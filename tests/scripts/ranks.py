"""Two processes that average their gradients; started by torchrun."""

import sys

import torch
import torch.distributed as dist


def train(rank, world):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = torch.nn.parallel.DistributedDataParallel(net)
    data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    sampler = torch.utils.data.distributed.DistributedSampler(data, world, rank, shuffle=True, seed=0)
    loader = torch.utils.data.DataLoader(data, batch_size=3, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    if rank == 0:
        torch.save(net.state_dict(), sys.argv[1])


dist.init_process_group("gloo")
train(dist.get_rank(), dist.get_world_size())  # its model is gone when the group is: the group's threads end with it
dist.barrier()
dist.destroy_process_group()
