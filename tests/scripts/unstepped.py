"""Gradients build up, and no optimizer takes them."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(3, 8, 4)
for x in data:
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
torch.save(model.state_dict(), sys.argv[1])
