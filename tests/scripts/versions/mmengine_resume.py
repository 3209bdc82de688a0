"""mmengine's iteration loop, resumed in the middle: which data comes next."""

import os
import tempfile

os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # its checkpoints hold classes of its own
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler  # noqa: F401 the registry finds them
from mmengine.model import BaseModel
from mmengine.runner import Runner


class Net(BaseModel):
    """A regression."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, mode: str = "tensor") -> dict[str, torch.Tensor]:
        """The loss of one batch."""
        return {"loss": self.net(x).square().mean()}

    def train_step(self, data: torch.Tensor, optim_wrapper: object) -> dict[str, torch.Tensor]:
        """One update."""
        losses = self(data, mode="loss")
        optim_wrapper.update_params(losses["loss"])  # type: ignore[attr-defined]
        return losses


def run(folder: str, iterations: int, resume: bool) -> None:
    """Train up to an iteration."""
    torch.manual_seed(0)
    runner = Runner(
        model=Net(), work_dir=folder, resume=resume, default_scope="mmengine",
        train_dataloader={
            "batch_size": 2, "num_workers": 0, "collate_fn": {"type": "default_collate"},
            "dataset": list(torch.arange(40.0).reshape(40, 1)),
            "sampler": {"type": "InfiniteSampler", "shuffle": False},
        },
        train_cfg={"type": "IterBasedTrainLoop", "max_iters": iterations},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1e-4}},
        default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 5, "by_epoch": False}},
    )  # fmt: skip
    runner.train()


with tempfile.TemporaryDirectory() as place:
    run(place, 5, resume=False)
    run(place, 10, resume=True)
