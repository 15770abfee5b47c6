"""What a network keeps between its calls beside the vector of the model: counters, attributes, and replaced buffers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..kernels.kernel import Kernel

#: The attributes of a module that hold its tensors and its layers.
HELD = {"_parameters", "_buffers", "_modules"}


class Carried:
    """Makes the results of a network independent of what the same process computed with it before.

    Whole-number buffers and attributes of its layers get their first values for every client. If the network assigns a
    new tensor to a floating-point buffer, the vector gets its numbers. A network with written-out gradients has none of
    these.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._counters: list[tuple[dict[str, Any], str, Tensor]] = []
        self._buffers: list[tuple[dict[str, Any], str, Tensor]] = []
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        if kernel.written_out:
            return
        views = kernel.layout.views(kernel.w)
        for name, buffer in kernel.module.named_buffers():
            owner, _, leaf = name.rpartition(".")
            place: dict[str, Any] = kernel.module.get_submodule(owner)._buffers
            if buffer.is_floating_point():
                self._buffers.append((place, leaf, views[name]))
            else:
                self._counters.append((place, leaf, buffer.clone()))
        for part in kernel.module.modules():
            own = vars(part)
            self._attributes.append((own, {name: own[name] for name in own.keys() - HELD}))

    def begin(self) -> None:
        """Put the first values back; buffers are the numbers of the vector."""
        for place, leaf, first in self._counters:
            place[leaf] = first.clone()
        for own, given in self._attributes:
            for name in own.keys() - given.keys() - HELD:
                del own[name]
            own.update(given)
        for place, leaf, view in self._buffers:
            if _replaced(place[leaf], view):
                place[leaf] = view.detach()  # another tensor with the same memory

    def follow(self) -> None:
        """Copy buffers that the network replaced into the vector."""
        for place, leaf, view in self._buffers:
            if _replaced(place[leaf], view):
                view.copy_(place[leaf].detach())
                place[leaf] = view.detach()  # another tensor with the same memory


def _replaced(buffer: Tensor | None, view: Tensor) -> bool:
    return buffer is None or buffer.data_ptr() != view.data_ptr()
