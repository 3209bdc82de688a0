"""A compiled model; the second argument names the compiler."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
compiled = torch.compile(model, backend=sys.argv[2])
optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1, momentum=0.9)
data = torch.randn(5, 8, 4)
for x in data:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(compiled(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
