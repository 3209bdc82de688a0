"""transformers' order of the data after a resume in the middle of the second epoch."""

import tempfile

import torch
from transformers import Trainer, TrainingArguments, set_seed


class Net(torch.nn.Module):
    """A regression."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, and what it is of."""
        y = self.net(x)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}


set_seed(0)
data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(10)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=2, num_train_epochs=3, save_steps=7, report_to=[], disable_tqdm=True,
        use_cpu=True,
    )  # fmt: skip
    Trainer(model=Net(), args=arguments, train_dataset=data).train()
    Trainer(model=Net(), args=arguments, train_dataset=data).train(resume_from_checkpoint=f"{folder}/checkpoint-7")
