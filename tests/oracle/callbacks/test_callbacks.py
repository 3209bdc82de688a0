"""Callbacks record from inside what a recording from outside holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diffs.first import compare
from diffs.trace import open_trace
from oracle import environment
from oracle.callbacks.lightning import callback
from oracle.explain.standing import rules
from oracle.recorder.trace import TraceError

LIGHTNING = """
import sys
import torch
from lightning.pytorch import LightningModule, Trainer
from oracle.callbacks.lightning import callback

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
net = Net()
Trainer(max_epochs=2, accumulate_grad_batches=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", callbacks=[callback(sys.argv[1])]).fit(
    net, torch.utils.data.DataLoader(data, batch_size=2))
"""


def run(requirement: str, source: str, script: Path, *arguments: str) -> None:
    where = environment.prepare((requirement,))
    script.write_text(source)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(where.layer or "")]))}
    done = subprocess.run(
        [sys.executable, str(script), *arguments], env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.trainers
@pytest.mark.timeout(600)
def test_transformers_records_itself_as_it_is_recorded(root: Path, tmp_path: Path) -> None:
    source = (root / "tests/scripts/with_transformers.py").read_text()
    edited = source.replace("train_dataset=data)", "train_dataset=data, callbacks=[callback(sys.argv[2])])")
    edited = edited.replace("import torch\n", "import torch\nfrom oracle.callbacks.transformers import callback\n", 1)
    assert edited != source
    run("transformers==4.57.6", edited, tmp_path / "script.py", str(tmp_path / "s.pt"), str(tmp_path / "inside"))
    (tmp_path / "plain.py").write_text(source)
    command = ["record", "-o", str(tmp_path / "outside"), "--with", "transformers==4.57.6", "--", "python"]
    subprocess.run([sys.executable, "-m", "oracle", *command, str(tmp_path / "plain.py"), str(tmp_path / "o.pt")],
                   check=True, timeout=300)  # fmt: skip
    with open_trace(tmp_path / "inside") as inside, open_trace(tmp_path / "outside") as outside:
        assert inside.complete and inside.manifest["ended"] and inside.last_update == 3
        assert compare(inside, outside, rules(inside, outside)).first is None
    ours, theirs = torch.load(tmp_path / "s.pt"), torch.load(tmp_path / "o.pt")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.trainers
@pytest.mark.timeout(600)
def test_lightning_records_itself(tmp_path: Path) -> None:
    run("lightning==2.6.6", LIGHTNING, tmp_path / "script.py", str(tmp_path / "trace"))
    with open_trace(tmp_path / "trace") as trace:
        assert trace.complete and trace.manifest["ended"] and trace.last_update == 5
        assert {row.address.name for row in trace.rows_at(("update", "parameter"))} == {"net.weight", "net.bias"}
        assert {row.address.micro for row in trace.rows_at(("backward", "gradient"))} == {0, 1}


class StandIn:
    """What of `lightning.pytorch` the callback needs."""

    class Callback:
        """Lightning's own does nothing, too."""


def fit(hooks: object, steps: int, error: Exception | None = None) -> None:
    """Train as Lightning's `fit` does, as far as a callback sees it."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.on_fit_start(None, model)  # type: ignore[attr-defined]
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
    if error is not None:
        hooks.on_exception(None, model, error)  # type: ignore[attr-defined]
        return
    hooks.on_fit_end(None, model)  # type: ignore[attr-defined]


def test_the_hooks_of_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_lightning", StandIn)  # type: ignore[arg-type]
    fit(callback(tmp_path / "one", level="full"), 3)
    with open_trace(tmp_path / "one") as trace:
        assert trace.manifest["ended"] and trace.last_update == 2
    assert (tmp_path / "one" / "tensors").is_dir() and not list((tmp_path / "one").glob(".rank*"))
    fit(callback(tmp_path / "two"), 2, ValueError("no"))
    with open_trace(tmp_path / "two") as trace:
        assert trace.manifest["error"] == "ValueError: no" and not trace.manifest["ended"]
    with pytest.raises(TraceError, match="not empty"):
        callback(tmp_path / "one")
