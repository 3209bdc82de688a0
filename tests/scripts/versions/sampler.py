"""The order in which accelerate gives the data, over two epochs."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

accelerator = Accelerator(cpu=True)
set_seed(0)
model = torch.nn.Linear(1, 1)
loader = torch.utils.data.DataLoader(torch.arange(12.0).reshape(12, 1), batch_size=2, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _epoch in range(2):
    for x in loader:
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
