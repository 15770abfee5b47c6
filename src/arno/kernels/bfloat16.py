"""Products and convolutions in bfloat16. It is a setting, because rounding to 8 bits changes the results."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from ..errors import ArnoError
from .kernel import Autograd


class BFloat16(Autograd):
    """Computes any network with autograd, with products and convolutions in bfloat16.

    Weights, loss, gradient and steps stay in float32. Autocast of torch decides which operations use bfloat16.
    """

    name = "bfloat16"

    def precision(self) -> AbstractContextManager[object]:
        """The context of torch's autocast."""
        return torch.autocast(self.w.device.type, torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the module in float32."""
        with self.precision():
            return super().forward(x).to(self.w.dtype)


def refuse_bfloat16(device: torch.device, dtype: torch.dtype) -> None:
    """Refuse bfloat16 for models of another type than float32, and on devices without instructions for bfloat16."""
    what, remedy = "model.bfloat16 = true", "leave model.bfloat16 out"
    if dtype != torch.float32:
        raise ArnoError(what, f"the model is of type {str(dtype).removeprefix('torch.')}", f"{remedy}, or dtype")
    if device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported():
        raise ArnoError(what, "this processor has no instructions for it, so it would only be slower", remedy)
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ArnoError(what, "this GPU has no instructions for it", remedy)
