"""The gradient scaler of mixed precision, written out."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Scaler:
    """Multiplies losses so that small float16 gradients survive, and backs off where they overflow.

    init_scale: what the first loss is multiplied by.
    growth_factor: by what the scale grows after `growth_interval` updates in a row without overflow.
    backoff_factor: by what it shrinks after an update with one.

    state: `scale` (a scalar float32 tensor) and `growth_tracker` (a scalar int32 tensor, updates in a row without
        overflow). A scale that would become infinite stays.

    Bit-identical to torch.amp.GradScaler("cpu"). Source: torch/amp/grad_scaler.py, and for the arithmetic
    aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp.
    """

    def __init__(
        self,
        *,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.state: dict[str, Tensor] = {
            "scale": torch.tensor(init_scale, dtype=torch.float32),
            "growth_tracker": torch.tensor(0, dtype=torch.int32),
        }

    def scale(self, loss: Tensor) -> Tensor:
        """The loss (*S) times the scale; a float16 scalar becomes float32, as torch promotes it."""
        return loss * self.state["scale"].to(loss.device)

    @property
    def arguments(self) -> dict[str, float | int]:
        """What the scale grows and shrinks by."""
        return {
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
        }

    @torch.no_grad()
    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divide gradients by the scale in place; returns whether any element was infinite or NaN before that.

        gradients: (*S) each, float32, float64 or bfloat16. All are divided, the overflown ones too.

        The division is a multiplication by the reciprocal, taken in float64 and rounded to float32.

        Raises:
            ValueError: a float16 gradient. Parameters stay float32 under autocast; torch refuses these as well.
        """
        reciprocal = self.state["scale"].double().reciprocal().float()
        overflow = False
        for gradient in gradients:
            if gradient.dtype == torch.float16:
                raise ValueError("a float16 gradient cannot be unscaled: keep the parameters in float32")
            overflow = overflow or not bool(gradient.isfinite().all())
            gradient.mul_(reciprocal.to(gradient.device))
        return overflow

    def update(self, overflow: bool) -> None:
        """Close an update: shrink the scale after an overflow, let it grow after enough updates without one."""
        scale, tracker = self.state["scale"], self.state["growth_tracker"]
        if overflow:
            scale.copy_(scale.double() * self.backoff_factor)
            tracker.zero_()
            return
        tracker += 1
        if tracker == self.growth_interval:
            grown = (scale.double() * self.growth_factor).float()
            if grown.isfinite():
                scale.copy_(grown)
            tracker.zero_()
