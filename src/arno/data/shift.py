"""Feature shift: the inputs of each client are changed in a different way. The labels do not change.

Client k of N has the level k/N. rotation turns its images by strength · k/N degrees, noise adds Gaussian noise with
the deviation strength · k/N (in deviations of the inputs), scale multiplies its inputs by strength^(k/N).

The validation and test samples of a client are changed in the same way as its training samples. Other samples (of the
common test set, or held out before the data were divided) belong to no client. For each of them a client is drawn, in
proportion to the sizes of the clients, and the sample is changed as a sample of this client. So these samples have the
distribution of all clients together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import cos, inf, radians, sin
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ..core.seeds import numpy_stream, stream
from ..errors import ArnoError
from .dataset import Dataset

Shift = Literal["rotation", "noise", "scale"]
#: The default strength of each kind, and a text about the change of client k.
USUAL: dict[Shift, tuple[float, str]] = {
    "rotation": (90.0, "images are turned by {0:g}·k/{1} degrees"),
    "noise": (1.0, "noise with {0:g}·k/{1} deviations is added"),
    "scale": (2.0, "inputs are multiplied by {0:g}^(k/{1})"),
}
#: About how many numbers are rotated at a time.
PIECE = 2**22


def shifted(data: Dataset, kind: Shift, strength: float | None, owner: Tensor, clients: int, seed: int) -> Dataset:
    """The data set with changed inputs. owner: the client of each training sample, −1 for samples of no client."""
    strength = USUAL[kind][0] if strength is None else strength
    _refuse(data, kind, strength)
    sizes = torch.bincount(owner[owner >= 0], minlength=clients).double().numpy()
    random = numpy_stream(seed, "shift")
    free = owner < 0
    owner = owner.clone()
    owner[free] = torch.from_numpy(random.choice(clients, int(free.sum()), p=sizes / sizes.sum()))
    tested = torch.from_numpy(random.choice(clients, len(data.y_test), p=sizes / sizes.sum()))
    if data.client_test is not None and clients == len(data.clients):
        tested = torch.where(data.client_test >= 0, data.client_test, tested)

    def change(x: Tensor, client: int, part: int) -> Tensor:
        level = client / clients
        if kind == "rotation":
            return rotated(x, strength * level)
        raw = x.float()
        if kind == "scale":
            raw = raw * strength**level
        else:
            spread = torch.tensor(data.std).view(-1, *[1] * (x.dim() - 2)) * data.scale
            noise = torch.randn(x.shape, generator=stream(seed, "shift/noise", client, part))
            raw = raw + noise * spread * (strength * level)
        return raw.round().clamp(0, data.scale).to(x.dtype) if x.dtype == torch.uint8 else raw.to(x.dtype)

    said = USUAL[kind][1].format(strength, clients)
    note = f"feature shift: of client k = 0, 1, … {said}; test samples as those of clients in proportion to their sizes"
    x, x_test = _each(data.x, owner, change, 0), _each(data.x_test, tested, change, 1)
    return replace(data, x=x, x_test=x_test, notes=(*data.notes, note))


def _each(x: Tensor, owner: Tensor, change: Callable[[Tensor, int, int], Tensor], part: int) -> Tensor:
    """A copy of the samples, in which the samples of every client are changed."""
    out = torch.empty_like(x)
    order = owner.argsort(stable=True)
    for rows in order.split(torch.unique(owner, return_counts=True)[1].tolist()):
        out[rows] = change(x[rows], int(owner[rows[0]]), part)
    return out


def rotated(x: Tensor, degrees: float) -> Tensor:
    """Images `[b, C, H, W]` turned counter-clockwise; exact for right angles, otherwise by linear interpolation.

    >>> rotated(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 90).flatten().tolist()
    [2.0, 4.0, 1.0, 3.0]
    """
    if degrees % 180 == 0 or (degrees % 90 == 0 and x.shape[2] == x.shape[3]):
        return torch.rot90(x, int(degrees // 90) % 4, (2, 3))
    (_, _, height, width), angle = x.shape, radians(degrees)
    turn = [[cos(angle), -sin(angle) * height / width, 0.0], [sin(angle) * width / height, cos(angle), 0.0]]
    pieces = []
    for piece in x.split(max(1, PIECE // x[0].numel())):
        grid = affine_grid(torch.tensor([turn]).expand(len(piece), 2, 3), list(piece.shape), align_corners=False)
        turned = grid_sample(piece.float(), grid, align_corners=False)
        pieces.append((turned.round() if x.dtype == torch.uint8 else turned).to(x.dtype))
    return torch.cat(pieces)


def _refuse(data: Dataset, kind: Shift, strength: float) -> None:
    """Refuse inputs that this kind cannot change, and strengths that are not positive or not finite."""
    if not 0 < strength < inf:
        remedy = f"try data.shift_strength={USUAL[kind][0]:g}"
        raise ArnoError(f"data.shift_strength = {strength:g}", "it must be above 0", remedy)
    if kind == "rotation" and len(data.shape) != 3:
        rule = f"only images can be turned, and {data.name} has samples of shape {list(data.shape)}"
        raise ArnoError("data.shift = rotation", rule, "use data.shift=noise or data.shift=scale")
    if data.x.dtype != torch.uint8 and not data.x.is_floating_point():
        rule = f"{data.name} has samples of type {data.x.dtype}, which are no measurements".replace("torch.", "")
        raise ArnoError(f"data.shift = {kind}", rule, "leave data.shift out")
