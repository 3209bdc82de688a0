"""A trainer that trains nothing: it measures models that were trained already, in the candidate's own environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


class Measure:
    """Computes the task's metrics of stored states.

    states: files, each a dict of `parameters` and `buffers` by name, as `torch.save` writes it.
    file: where a JSON list of {metric: value} goes, one entry a state.
    """

    def __init__(self, states: list[str], file: str) -> None:
        self.states, self.file = states, file

    def train(self, job: Any) -> None:
        """Measure every state."""
        model = job.model()
        found = []
        for path in self.states:
            state = torch.load(path, weights_only=True)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(state["parameters"][name])
                for name, buffer in model.named_buffers():
                    if name in state["buffers"]:
                        buffer.copy_(state["buffers"][name])
            found.append(job.evaluate(model) if job.task.metrics is not None else self._training_loss(job, model))
        Path(self.file).write_text(json.dumps(found), encoding="utf-8")

    def _training_loss(self, job: Any, model: torch.nn.Module) -> dict[str, float]:
        """The mean loss over the training data, of a task without metrics."""
        model.eval()
        total, units = 0.0, 0
        with torch.no_grad():
            for batch in job.loader():
                total += float(job.loss(model, batch, reduction="sum"))
                units += job.units(batch)
        return {"training loss": total / units}
