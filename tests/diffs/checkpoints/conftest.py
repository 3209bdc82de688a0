"""A small training run, and the checkpoints that its state is written to."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture
def saved() -> dict[str, Any]:
    """Model and AdamW state after two updates, in the form in which scripts save them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        schedule.step()
    return {
        "model": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "scheduler": schedule.state_dict(),
        "rng": {"torch": torch.get_rng_state()},
        "epoch": 1,
        "step": 2,
    }
