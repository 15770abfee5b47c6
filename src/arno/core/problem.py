"""The interface of a problem, as the round and the engines call it.

The base class declares optional abilities with a default for problems that do not have them. So no code tests whether
a problem has an attribute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, device, dtype, from_numpy, nn

from ..errors import ArnoError
from .layout import Layout
from .metric import Metric
from .per_client import Values
from .work import Job, Mat, SubModel, Vec

if TYPE_CHECKING:
    from .federation import Federation


@dataclass(frozen=True, eq=False)
class Clients:
    """What the server knows about its clients: their number, and how much data each of them holds.

    sizes: the number of samples of each client. Clients without samples have a floating-point weight in the objective.

    >>> from torch import tensor
    >>> clients = Clients(tensor([5, 15]))
    >>> clients.n, clients.shares().tolist(), clients.steps(tensor([0, 1]), tensor([1, 2]), tensor([4, 4])).tolist()
    (2, [0.25, 0.75], [2, 8])
    """

    sizes: Tensor

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    @property
    def sampled(self) -> bool:
        """Whether the clients hold samples."""
        return not self.sizes.is_floating_point()

    def shares(self) -> Tensor:
        """p_k = n_k / Σ n_i."""
        sizes = self.sizes.double().cpu().numpy()
        return from_numpy(sizes / sizes.sum())

    def steps(self, ids: Tensor, epochs: Tensor, batch_size: Tensor) -> Tensor:
        """The number of SGD steps of each client: E_k ⌈n_k / B_k⌉; E_k exact steps if clients have no samples."""
        return epochs * -(-self.sizes[ids] // batch_size) if self.sampled else epochs


@dataclass(frozen=True)
class Footprint:
    """The bytes that a problem needs.

    data: for its data. step: for one training step, in every process that trains. scoring: for scoring a model.
    """

    data: int = 0
    step: int = 0
    scoring: int = 0


class Learner(Protocol):
    """Computes losses and gradients of a problem in one process: it reads the vector `w` and writes the vector `g`."""

    w: Vec  #: the model: parameters, then buffers
    p: Vec  #: the parameters, a view of `w`
    g: Vec  #: the gradient of the parameters
    layout: Layout

    def batches(self, job: Job) -> Iterator[Any]:
        """The batches of all epochs of the client, in the order in which it trains on them."""
        ...

    def gradient(self, batch: Any, job: Job) -> Tensor:
        """Write ∇ℓ(w; batch) into `g` and return the loss."""
        ...

    def curvature(self, batch: Any, job: Job, direction: Vec) -> Vec:
        """∇²ℓ(w; batch) · direction for the parameters, a Hessian-vector product."""
        ...

    def size(self, batch: Any) -> int:
        """How many samples a batch has."""
        ...

    def autograd(self, job: Job) -> bool:
        """Whether autograd computes the gradients. If not, the client trains under `inference_mode`."""
        ...


class Problem(ABC):
    """What is learned: clients, a model vector with a layout, losses, and scores computed from statistics of the data.

    metrics: the metrics that a round records. By default a comparison uses the first one.
    selects: the metric that chooses the best model of a run; None: the run keeps the last model.
    splits: the parts of the data on which a round scores the model; "" is the objective itself.
    kernel, kernel_reason: how gradients are computed, and why in this way; for the manifest.
    small: whether a step of one model is so short that `engine=auto` computes the steps of many models at once.
    tests_clients: whether clients keep their own test samples.
    client_names: the name of each client, by its index; None if clients have no names.
    class_names: the name of each class, by its index; empty if there are no classes.
    validation: one sentence that says which samples choose the best model; empty if there are no such samples.
    notes: lines about the data. A run prints them before the first round and records them.
    references: scores of simple models, by the name of the model and the name of the metric. A run shows them
        together with its own scores.
    """

    clients: Clients
    layout: Layout
    device: device
    dtype: dtype
    metrics: tuple[Metric, ...]
    selects: Metric | None = None
    splits: tuple[str, ...] = ("",)
    kernel: str = ""
    kernel_reason: str = ""
    small: bool = True
    tests_clients: bool = False
    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] = ()
    validation: str = ""
    notes: tuple[str, ...] = ()
    references: Mapping[str, Mapping[str, float]] = MappingProxyType({})

    @property
    def headline(self) -> tuple[Metric, ...]:
        """The metrics that are shown during a run."""
        return self.metrics

    @abstractmethod
    def init(self, seed: int) -> Vec:
        """The model before the first round."""

    @abstractmethod
    def learner(self, window: SubModel | None = None) -> Learner:
        """A new learner of the whole model. If `window` extracts a smaller network, a learner of that network."""

    @abstractmethod
    def losses(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of a model on the data of each client."""

    @abstractmethod
    def tally(self, w: Vec, split: str, first: int, last: int) -> Tensor:
        """Statistics (float64) of a model on the samples `first` to `last` − 1 of a split; `join` combines them."""

    @abstractmethod
    def scores(self, tally: Tensor) -> dict[str, float]:
        """The scores that follow from joined statistics, by the name of the metric (without its split)."""

    def join(self, tallies: Sequence[Tensor]) -> Tensor:
        """The statistics of several pieces as one vector. By default this is their sum."""
        return added(tallies)

    @abstractmethod
    def describe(self) -> str:
        """The problem in a few words."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes whenever the data change."""

    def batch_losses(self, w: Vec, clients: Tensor, batch_size: Tensor, seed: int, t: int) -> Tensor:
        """An estimate of `losses` from one mini-batch of each client, drawn for round t. By default: `losses`."""
        return self.losses(w, clients)

    def pieces(self, split: str) -> list[tuple[int, int]]:
        """The pieces of a split as (first, last): samples `first` to `last` − 1. Pieces can be scored in parallel."""
        return [(0, 1)]

    def total(self, w: Vec, split: str) -> Tensor:
        """The statistics of a model on a whole split."""
        return self.join([self.tally(w, split, *piece) for piece in self.pieces(split)])

    def spread(self, tally: Tensor) -> dict[str, float]:
        """Statistics of the scores over the clients, from the statistics of the test data; empty if there are none."""
        return {}

    def own_tallies(self, models: Callable[[Tensor], Mat]) -> Tensor | None:
        """Statistics of each client's model on the client's own test samples, [N, …]; None without such samples.

        models: a function that returns the models of some clients.
        """
        return None

    def own_summary(self, tallies: Tensor, personal: bool) -> dict[str, float]:
        """The scores over all clients that a round records, computed from the result of `own_tallies`."""
        return {}

    def own_table(self, tallies: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """A table with one row per client, by columns.

        tallies: results of `own_tallies`; the key is `own` for the global model and `personal` for personal models.
        """
        return {}

    def footprint(self, batch: int) -> Footprint:
        """An estimate of the memory for the data, for a training step on `batch` samples, and for scoring."""
        return Footprint()

    def label_counts(self) -> Tensor | None:
        """How many samples of each class each client holds, [N, classes]; None if there are no classes."""
        return None

    def check_batches(self, batch_size: Values) -> None:  # noqa: B027
        """Refuse batches on which the model cannot train, before the first round."""

    def model(self, w: Vec) -> nn.Module:
        """The network with the weights `w`, in evaluation mode."""
        raise ArnoError(self.describe(), "it has no network", "use the vector itself")

    def advice(self, fed: Federation) -> list[str]:
        """Lines that a user should read before the first round."""
        return [*self.notes, *([self.validation] if self.validation else [])]


def added(tallies: Iterable[Tensor]) -> Tensor:
    """The sum of statistics, added in the given order."""
    first, *rest = tallies
    total = first.clone()
    for tally in rest:
        total += tally
    return total
