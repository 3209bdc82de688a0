"""A loop with accelerate."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
set_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(8, 1))
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=6)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for _epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
torch.save(accelerator.unwrap_model(model).state_dict(), sys.argv[1])
