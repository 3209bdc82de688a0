"""Activations are computed again in the backward pass; the second argument says by which of torch's two ways."""

import sys

import torch
from torch.utils.checkpoint import checkpoint

reentrant = sys.argv[2] == "reentrant"


class Net(torch.nn.Module):
    """Two blocks, each of which is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(4, 8)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Tanh()) for _ in range(2)
        )
        self.leave = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number a sample."""
        x = self.enter(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return self.leave(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.randn(5, 8, 4)
for x in data:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
