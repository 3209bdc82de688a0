"""Lightning's accumulation; the argument says whether `training_step` takes the batch's index, or validation runs."""

import sys

import torch
from pytorch_lightning import LightningModule, Trainer


class Net(LightningModule):
    """A regression whose step takes the batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Squared error."""
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """One micro-batch."""
        return self.loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Indexed(Net):
    """The same with the index, and with validation."""

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """One micro-batch."""
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Computes, and keeps nothing."""
        self.loss(batch)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
loader = torch.utils.data.DataLoader(data, batch_size=2)
validated = sys.argv[1] == "validated"
Trainer(
    max_epochs=1, accumulate_grad_batches=4, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    **({"val_check_interval": 2, "limit_val_batches": 1} if validated else {}),
).fit(Net() if sys.argv[1] == "alone" else Indexed(), loader, loader if validated else None)  # fmt: skip
