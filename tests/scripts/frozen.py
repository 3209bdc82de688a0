"""The first layer is frozen until half of the updates are made; then a new optimizer takes all."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
for parameter in model[0].parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
data = torch.randn(6, 8, 4)
for number, x in enumerate(data):
    if number == 3:
        for parameter in model[0].parameters():
            parameter.requires_grad_(True)
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.05})
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
