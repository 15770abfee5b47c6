"""Rules for products of matrices, embeddings and attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..record import NotRecorded
from .rule import Deltas, Rule

aten = torch.ops.aten


class Product(Rule):
    """Products of matrices. The models are additional matrices of the batch."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """The products a b."""
        self.saved = (a, b)
        return a @ b

    def backward(self, delta: Tensor) -> Deltas:
        """The gradients δ bᵀ and aᵀ δ."""
        a, b = self.saved
        return (delta @ b.mT if self.needs[0] else None, a.mT @ delta if self.needs[1] else None)


class Embedding(Rule):
    """The row of the table for each token."""

    def prepare(self) -> None:
        """Read which row is not trained; refuse options that change the gradient."""
        self.padding = self.argument(2, "padding_idx", -1)
        if self.argument(3, "scale_grad_by_freq", False) or self.argument(4, "sparse", False):
            raise NotRecorded("an embedding with scaled or sparse gradients")

    def forward(self, table: Tensor, tokens: Tensor) -> Tensor:
        """The rows of the tokens. The tables of many models become one long table."""
        if self.lead:
            rows = torch.arange(len(table), device=table.device).view(-1, *(1,) * (tokens.ndim - 1))
            tokens, table = tokens + rows * table.shape[1], table.flatten(0, 1)
        self.saved = (tokens, table.shape)
        return table.index_select(0, tokens.reshape(-1)).view(*tokens.shape, -1)

    def backward(self, delta: Tensor) -> Deltas:
        """For each row of the table, the sum over all positions of its token."""
        tokens, shape = self.saved
        table = delta.new_zeros(shape).index_add_(0, tokens.reshape(-1), delta.reshape(-1, shape[-1]))
        table = table.view(-1, *self.shapes[0]) if self.lead else table
        if self.padding >= 0:
            table[..., self.padding, :] = 0
        return (table, None)


#: The longest sequence for which attention of many models is computed with products and a softmax. torch's operation
#: computes blocks that short sequences do not fill.
SHORT = 32


class Attention(Rule):
    """Scaled dot-product attention, recorded as one operation."""

    outputs = 2

    def prepare(self) -> None:
        """Read the options; refuse dropout, which would draw random numbers inside the operation, and masks."""
        names = ("dropout_p", "is_causal")
        self.dropout, self.causal = (self.argument(3 + i, name, 0) for i, name in enumerate(names))
        self.scale = self.step.kwargs.get("scale")
        if self.dropout or len(self.shapes) > 3:
            raise NotRecorded("attention with dropout or a mask in one operation")
        queries, keys = self.shapes[0], self.shapes[1]
        self.short = self.lead and not self.causal and max(queries[-2], keys[-2]) <= SHORT
        self.factor = queries[-1] ** -0.5 if self.scale is None else self.scale

    def forward(self, *tensors: Tensor) -> Any:
        """The outputs of torch's operation, all models as one batch; or softmax(s Q Kᵀ) V for short sequences."""
        if self.short:
            q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in tensors)
            share = self._times(q, k.mT).softmax(-1)
            self.saved = (q, k, v, share)
            return torch.bmm(share, v).view(*tensors[0].shape[:-1], -1), None
        flat = [self._rows(t) for t in tensors]
        y, sums = aten._scaled_dot_product_flash_attention_for_cpu(*flat, 0.0, bool(self.causal), scale=self.scale)
        self.saved = (*flat, y, sums)
        return (y.unflatten(0, tensors[0].shape[:2]) if self.lead else y), sums

    def backward(self, delta: Tensor, *_: Any) -> Deltas:
        """The gradients of torch's operation, or of the products."""
        if self.short:
            return self._backward(delta)
        back = aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = back(self._rows(delta), *self.saved, 0.0, bool(self.causal), scale=self.scale)
        return [d.unflatten(0, delta.shape[:2]) for d in found] if self.lead else found

    def _backward(self, delta: Tensor) -> Deltas:
        q, k, v, share = self.saved
        lead, delta = delta.shape[:-2], delta.reshape(-1, *delta.shape[-2:])
        score = aten._softmax_backward_data(torch.bmm(delta, v.mT), share, -1, share.dtype)
        found = (self._times(score, k), self._times(score.mT, q), torch.bmm(share.mT, delta))
        return [d.view(*lead, *d.shape[-2:]) for d in found]

    def _times(self, a: Tensor, b: Tensor) -> Tensor:
        """Products of matrices, multiplied by the factor of the scores."""
        return torch.baddbmm(a.new_empty(1), a, b, beta=0, alpha=self.factor)

    def _rows(self, tensor: Tensor) -> Tensor:
        """The tensor with the numbers of a row next to each other.

        torch's operation needs this order and does not check it.
        """
        tensor = tensor.flatten(0, 1) if self.lead else tensor
        return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


RULES: dict[str, type[Rule]] = {
    **dict.fromkeys(("mm", "bmm"), Product),
    "embedding": Embedding, "_scaled_dot_product_flash_attention_for_cpu": Attention,
}  # fmt: skip
