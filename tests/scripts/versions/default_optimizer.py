"""transformers' default optimizer with gradients so small that where epsilon enters matters."""

import inspect
import tempfile

import torch
from transformers import Trainer, TrainingArguments, set_seed


class Net(torch.nn.Module):
    """A regression whose loss is scaled down."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, and what it is of."""
        y = self.net(x)
        return {"loss": 1e-7 * torch.nn.functional.mse_loss(y, labels), "logits": y}


set_seed(0)
data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(6)]
on_cpu = "use_cpu" if "use_cpu" in inspect.signature(TrainingArguments).parameters else "no_cuda"
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=2, max_steps=3, learning_rate=0.01, weight_decay=0.1, report_to=[],
        save_strategy="no", disable_tqdm=True, **{on_cpu: True},
    )  # fmt: skip
    Trainer(model=Net(), args=arguments, train_dataset=data).train()
