"""The LSTM for text: it reads tokens one after another and keeps a state."""

from __future__ import annotations

from torch import Tensor, nn

from ..core.layout import Axis
from . import models
from .network import Network, Shape, ends, need_sizes, need_tokens


@models.register("lstm", reads="tokens", paper="Hochreiter & Schmidhuber, Neural Computation 1997")
def lstm(shape: Shape, outputs: int, *, embedding: int = 32, hidden: int = 128, layers: int = 1) -> Network:
    """An LSTM on tokens. It returns outputs at every position (for the next token) or at the last token (for a class).

    embedding: length of the vector of each token.
    hidden: units of each layer.
    layers: number of layers.
    """
    need_tokens(shape, "lstm")
    need_sizes(embedding=embedding, hidden=hidden, layers=layers)
    return LSTM(shape, outputs, embedding, hidden, layers)


class LSTM(Network):
    """Embedding, LSTM layers, linear head."""

    def __init__(self, shape: Shape, outputs: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.positions, self.padding = shape.positions, shape.padding
        self.embedding = nn.Embedding(shape.vocabulary, embedding)
        self.layers = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def embed(self, x: Tensor, levels: list[Tensor] | None = None) -> Tensor:
        """The state of the last layer, [n, length, hidden], or [n, hidden] at the last token."""
        z: Tensor = self.layers(self.embedding(x))[0]
        if levels is not None:
            levels.append(ends(z, x, self.padding))
        return z if self.positions else ends(z, x, self.padding)

    def units(self) -> dict[str, tuple[Axis, ...]]:
        """Empty, because the units of this network are never cut."""
        return {}
