"""The interface of a problem, as the round and the engines call it. Optional abilities are declared here.

A class that lacks an ability inherits a default that says so; no code looks for attributes by name.
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
    """What the server knows of its clients: how many there are and how much data each of them holds.

    sizes: samples per client; floating-point shares of the objective where there are no samples.

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
        """The number of SGD steps of each client: E_k ⌈n_k / B_k⌉; without samples one exact step per epoch."""
        return epochs * -(-self.sizes[ids] // batch_size) if self.sampled else epochs


@dataclass(frozen=True)
class Footprint:
    """The bytes that a problem needs: for its data, and in a process that trains for a step and for scoring a model."""

    data: int = 0
    step: int = 0
    scoring: int = 0


class Learner(Protocol):
    """A problem prepared for training in one process: flat buffers that its loss reads and its gradient fills."""

    w: Vec  #: parameters, then buffers
    p: Vec  #: the parameters in `w`
    g: Vec  #: their gradient
    layout: Layout

    def batches(self, job: Job) -> Iterator[Any]:
        """The batches of all of the client's epochs, in their order."""
        ...

    def gradient(self, batch: Any, job: Job) -> Tensor:
        """Write ∇ℓ(w; batch) into `g` and return the loss."""
        ...

    def curvature(self, batch: Any, job: Job, direction: Vec) -> Vec:
        """∇²ℓ(w; batch) · direction, for the parameters; a Hessian-vector product."""
        ...

    def size(self, batch: Any) -> int:
        """How many samples a batch has."""
        ...

    def autograd(self, job: Job) -> bool:
        """Whether its gradients come from autograd; other gradients are computed under `inference_mode`."""
        ...


class Problem(ABC):
    """What is learned: clients, a model vector with a layout, losses, and scores computed from statistics of the data.

    metrics: what a round records, in order of preference; a comparison uses the first one.
    selects: the metric that chooses the best model of a run; None keeps the last model.
    splits: the parts of the data on which a round is scored; "" is the objective itself.
    kernel, kernel_reason: how gradients are computed and why, for the manifest.
    small: whether a step of one model takes so little time that many are best computed at once, for `engine=auto`.
    tests_clients: whether clients keep their own test samples.
    client_names: the names of the clients, in the order of their numbers; None if they have no names.
    class_names: the names of the classes, in the order of their numbers; empty where there are none.
    validation: which samples choose the best model, in one sentence; empty where there are no samples.
    notes: lines about the data that a run prints before the first round and records.
    references: scores of simple models, by the name of the model and of the metric; a run shows them beside its own.
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
        """A new learner; with an extracting window, a learner of the smaller network."""

    @abstractmethod
    def losses(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of a model on the data of each client."""

    @abstractmethod
    def tally(self, w: Vec, split: str, first: int, last: int) -> Tensor:
        """Statistics (float64) of a model on samples first to last of a split; `join` takes those of several pieces."""

    @abstractmethod
    def scores(self, tally: Tensor) -> dict[str, float]:
        """Scores computed from joined statistics, by name of the metric (without its split)."""

    def join(self, tallies: Sequence[Tensor]) -> Tensor:
        """The statistics of several pieces as one vector: their sum, unless the problem says otherwise."""
        return added(tallies)

    @abstractmethod
    def describe(self) -> str:
        """The problem in a few words."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes whenever the data change."""

    def batch_losses(self, w: Vec, clients: Tensor, batch_size: Tensor, seed: int, t: int) -> Tensor:
        """An estimate of `losses` from one mini-batch of each client, drawn for round t; here the losses themselves."""
        return self.losses(w, clients)

    def pieces(self, split: str) -> list[tuple[int, int]]:
        """Samples (first, last) of a split that are scored together; several pieces can be scored in parallel."""
        return [(0, 1)]

    def total(self, w: Vec, split: str) -> Tensor:
        """The statistics of a model on a whole split."""
        return self.join([self.tally(w, split, *piece) for piece in self.pieces(split)])

    def spread(self, tally: Tensor) -> dict[str, float]:
        """Scores of the model over the clients, computed from the statistics of the test data; empty if unknown."""
        return {}

    def own_tallies(self, models: Callable[[Tensor], Mat]) -> Tensor | None:
        """Statistics of every client's own test samples under the model that it uses, [N, …]; None without samples."""
        return None

    def own_summary(self, tallies: Tensor, personal: bool) -> dict[str, float]:
        """Scores over all clients, computed from such statistics, as a round records them."""
        return {}

    def own_table(self, tallies: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """A table by columns, one row per client; `tallies` by prefix: `own` (the global model), `personal`."""
        return {}

    def footprint(self, batch: int) -> Footprint:
        """The memory of its data, of a training step with this many samples, and of scoring; estimated."""
        return Footprint()

    def label_counts(self) -> Tensor | None:
        """How many samples of each class each client holds, [N, classes]; None where there are no classes."""
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
    """The sum of statistics, added in the order in which they come."""
    first, *rest = tallies
    total = first.clone()
    for tally in rest:
        total += tally
    return total
