"""A plain loop that knows nothing of being recorded."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(8, 1))
data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=6)
for _epoch in range(2):
    for index, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y) / 2
        loss.backward()
        if index % 2 == 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
torch.save(model.state_dict(), sys.argv[1])
