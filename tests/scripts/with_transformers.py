"""A model of one's own under the transformers Trainer; the last window of an epoch is short."""

import sys
import tempfile

import torch
from transformers import Trainer, TrainingArguments, set_seed


class Net(torch.nn.Module):
    """A small regression whose forward returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, and what it is of."""
        y = self.net(x)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}


set_seed(0)
data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(10)]
model = Net()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        num_train_epochs=2,
        learning_rate=0.01,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=data).train()
torch.save(model.state_dict(), sys.argv[1])
