"""Computes the gradients of many models at once. The weights of each model are one row of a matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor, nn

from ..core.layout import Layout, flatten, parameter_hooks
from ..core.work import Mat, Vec
from ..tasks.task import Task
from .checked_program import NEAR, close, program_of, samples
from .low_rank import LowRank, few
from .products import descend, turned_products
from .program import Draw, Into, Noise, Program, Weights, from_stream, kind, ones
from .record import Graph, NotRecorded, draws_put_back, record

#: Batches are filled up to a multiple of this many samples, see `StackedProgram.filled`.
FILL = 8

#: Tensors of many models by name; the first axis is the axis of models.
Views = Mapping[str, Tensor]
#: The weights that are stored as `LowRank`, by name.
Low = Mapping[str, LowRank]
NONE: Low = MappingProxyType({})


@dataclass(frozen=True)
class Batch:
    """Samples and targets of many models, [rows, batch, …]. Rows with fewer samples are filled up with other samples.

    weight: the weight of each sample in the loss of its row; 0 for the samples that fill up.
    sizes: the number of samples of each row, without those that fill up.
    streams: the stream of random numbers of each row, if the network draws random numbers.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    sizes: Sequence[int]
    streams: Sequence[torch.Generator] = ()


class Stack(ABC):
    """Computes the gradients of many models of one shape.

    sizes: how the parameters of a model are cut into pieces. A piece of all models is a matrix [rows, length].
    trained: which parameters are trained, as booleans [d]; None if all of them are trained.
    draws: whether each row needs a stream of random numbers.
    """

    sizes: list[int]
    trained: Tensor | None = None
    draws: bool = False

    def filled(self, n: int, most: int) -> int:
        """To how many samples batches with at most n samples are filled up. most: the largest batch of these rows."""
        return n

    @abstractmethod
    def views(self, pieces: Sequence[Mat]) -> dict[str, Tensor]:
        """The models in the form that `gradient` and `descend` need."""

    def low_rank(self, rows: int, samples: int, start: Sequence[Mat]) -> dict[str, LowRank]:
        """The weights that take less time as `LowRank`, if all models start equal and take plain steps of SGD.

        samples: the most samples that a model will see. start: the pieces with which all models start.
        """
        return {}

    @abstractmethod
    def gradient(self, w: Views, g: Views, batch: Batch) -> Tensor:
        """Write the gradient of Σ_i weight_i · loss_i for each row into `g`; return this sum for each row."""

    @abstractmethod
    def descend(self, w: Views, to: Views, batch: Batch, rate: Tensor, low: Low = NONE) -> Tensor:
        """Write w − rate · gradient into `to`; return the weighted loss of each row before the step.

        The weights in `low` take their step in their own form.
        """


def stack_for(module: nn.Module, task: Task, x: Tensor) -> Stack:
    """A `StackedProgram` for the network if there is one, otherwise `Vmapped`."""
    found = stacked_program(module, task, x)
    return Vmapped(module, task) if isinstance(found, str) else found


def stacked_program(module: nn.Module, task: Task, x: Tensor) -> StackedProgram | str:
    """The program of many models of a network, checked on samples like `x`; or the reason why there is none."""
    graph, why = program_of(module, x)
    if graph is None:
        return why
    try:
        stack = StackedProgram(deepcopy(module), task, graph, x)
        with draws_put_back():
            stack.check()
    except NotRecorded as error:
        return str(error)
    except Exception as error:  # torch may raise any exception for shapes that a rule does not expect
        return f"its program of many models failed: {type(error).__name__}"
    return stack


class StackedProgram(Stack):
    """The program of a network with an axis for the models."""

    def __init__(self, module: nn.Module, task: Task, graph: Graph, x: Tensor) -> None:
        slots = Layout.of(module).slots
        self.module, self.task, self.x = module, task, x[:1]
        self.sizes, self.shapes = [s.numel for s in slots], {s.name: s.shape for s in slots}
        self.structure = graph.structure()
        self.draws = any(step.name == "bernoulli" for step in graph.operations)
        self.blind = graph.blind
        self.at_inputs = Program(graph, list(self.shapes), lead=True).at_inputs
        self._graphs: dict[int, Graph] = {}
        self._programs: dict[int, Program] = {}

    def views(self, pieces: Sequence[Mat]) -> dict[str, Tensor]:
        """The parameters of all rows by name."""
        pairs = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.view(piece.shape[0], *shape) for (name, shape), piece in pairs}

    def low_rank(self, rows: int, samples: int, start: Sequence[Mat]) -> dict[str, LowRank]:
        """The weights of large linear layers whose inputs depend on no parameter."""
        seen = self._few(samples)
        views = self.views([piece[:1] for piece in start]) if seen else {}
        return {name: LowRank(views[name][0], rows, most) for name, most in seen.items()}

    def held(self, samples: int) -> int:
        """How many numbers are stored for a model that sees this many samples, if all models start equal."""
        low = {name: (most, *self.shapes[name]) for name, most in self._few(samples).items()}
        return sum(self.sizes) + sum(most * (outs + ins) - outs * ins for most, outs, ins in low.values())

    def _few(self, samples: int) -> dict[str, int]:
        """The layers that are best stored as `LowRank`, and how many rows of inputs they see."""
        seen = {name: samples * often for name, often in self.at_inputs.items()}
        return {name: most for name, most in seen.items() if few(most, *self.shapes[name])}

    @torch.inference_mode()
    def gradient(self, w: Views, g: Views, batch: Batch) -> Tensor:
        """One forward and one backward pass of the program."""
        losses, delta, program = self._forward(w, batch)
        program.backward(delta, IntoRows(g))
        return losses

    @torch.inference_mode()
    def descend(self, w: Views, to: Views, batch: Batch, rate: Tensor, low: Low = NONE) -> Tensor:
        """The same passes. The gradients are subtracted at once from the weights.

        So the gradients of linear layers are not stored.
        """
        losses, delta, program = self._forward({**w, **low} if low else w, batch)
        program.backward(delta * rate.view(-1, *(1,) * (delta.ndim - 1)), Descent(w, to, low))
        return losses

    def _forward(self, weights: Mapping[str, Weights], batch: Batch) -> tuple[Tensor, Tensor, Program]:
        """The losses, the gradient with respect to the outputs, and the program that computed the outputs."""
        program = self.program(batch.x.shape[1])
        outputs = program.forward(weights, batch.x, self._draw(batch.sizes, batch.streams))
        losses, delta = self.task.row_gradients(outputs, batch.y, batch.weight)
        return losses.double(), delta, program

    def filled(self, n: int, most: int) -> int:
        """A multiple of eight, but at most `most`, because the network is recorded for each number of samples.

        A network that never reads the number of samples (`blind`) needs no filling.

        >>> from arno.tasks.classification import Classification
        >>> net = nn.Sequential(nn.Linear(3, 2), nn.GELU())
        >>> stack = stack_for(net, Classification(2), torch.rand(2, 3))
        >>> [stack.filled(n, 20) for n in (3, 8, 17, 20)]
        [8, 8, 20, 20]
        """
        return n if self.blind else min(-(-n // FILL) * FILL, most)

    def graph(self, n: int) -> Graph:
        """What the network computes on n samples; raises `NotRecorded` if it differs from the first recording."""
        if n not in self._graphs:
            with torch.inference_mode(False), torch.enable_grad(), draws_put_back():
                graph = record(self.module, samples(self.x, n))
            if graph.structure() != self.structure:
                raise NotRecorded(f"it computes something else on {n} samples")
            self._graphs[n] = graph
        return self._graphs[n]

    def usual(self, n: int) -> bool:
        """Whether the network computes on n samples what it computed in the first recording.

        A network that never reads the number of samples needs no recording for n > 1.
        """
        try:
            return (self.blind and n > 1) or bool(self.graph(n))
        except NotRecorded:
            return False

    def program(self, n: int) -> Program:
        """The program for n samples."""
        if n not in self._programs:
            self._programs[n] = Program(self.graph(n), list(self.shapes), lead=True)
        return self._programs[n]

    def check(self) -> None:
        """Compare the program of many models with the program of one, for a model with three samples and one with two.

        The two samples are filled up to three. The results agree only if samples do not depend on each other, and if
        each model draws the same random numbers as alone.
        """
        one, sizes = flatten(self.module), (3, 2)
        models = torch.stack([one, one + 0.1 * one.std() * torch.randn_like(one)])
        x, seeds = torch.stack([samples(self.x, 3) for _ in sizes]), (11, 12)
        streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        with torch.no_grad():
            views = self.views(models.split(self.sizes, 1))
            found = {name: torch.full_like(view, torch.nan) for name, view in views.items()}
            program = self.program(3)
            outputs = program.forward(views, x, self._draw(sizes, streams))
            deltas = torch.randn_like(outputs)
            for row, size in zip(deltas, sizes, strict=True):
                row[size:] = 0
            program.backward(deltas, IntoRows(found))
            for k, size in enumerate(sizes):
                alone = {name: torch.full_like(view[k], torch.nan) for name, view in views.items()}
                torch.manual_seed(seeds[k])
                single = Program(self.graph(size), list(self.shapes))
                out = single.forward({name: view[k] for name, view in views.items()}, x[k, :size], from_stream)
                if out.shape[:1] != (size,):
                    raise NotRecorded("its outputs are not one for each sample")
                single.backward(deltas[k, :size].contiguous(), OfOne(alone))
                flat = [torch.cat([g.flatten() for g in of]) for of in ([v[k] for v in found.values()], alone.values())]
                if not (close(outputs[k, :size], out, NEAR) and close(flat[0], flat[1], NEAR)):
                    raise NotRecorded("its samples depend on each other")

    def _draw(self, sizes: Sequence[int], streams: Sequence[torch.Generator]) -> Draw:
        """A function that draws the noise of each row from its own stream, as for its model alone; zeros fill up."""

        def draw(number: int, noise: Noise, like: Tensor) -> Tensor:
            step = noise.step
            strides = (prod(step.shapes[0]), *step.strides)
            drawn = torch.empty_strided((len(sizes), *step.shapes[0]), strides, **kind(like))
            for row, size, stream in zip(drawn, sizes, streams, strict=True):
                own = self.graph(size).operations[number]
                if own.shapes == step.shapes:
                    ones(row, noise.chance, stream)
                else:
                    alone = ones(torch.empty_strided(own.shapes[0], own.strides, **kind(like)), noise.chance, stream)
                    row.zero_()[tuple(slice(n) for n in own.shapes[0])] = alone
            return drawn

        return draw


class IntoRows(Into):
    """Writes the gradients of many models into matrices."""

    def __init__(self, views: Views) -> None:
        self.views = views

    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """Write the gradients of a linear layer of all models, computed by batched products."""
        turned_products(delta, x, self.views[weight])
        if bias is not None:
            torch.sum(delta, 1, out=self.views[bias])

    def other(self, name: str, delta: Tensor) -> None:
        """Copy a gradient that a rule returned into the matrix."""
        self.views[name].copy_(delta)


class OfOne(IntoRows):
    """Writes the gradients of one model."""

    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """Write the gradients of a linear layer."""
        self.views[weight].copy_(delta.t() @ x)
        if bias is not None:
            self.views[bias].copy_(delta.sum(0))


class Descent(Into):
    """Subtracts the steps of many models from their weights during the backward pass.

    The forward pass has already read the weights. All gradients are linear in the gradient with respect to the outputs,
    so the caller multiplies the latter by the rates.
    """

    def __init__(self, before: Views, after: Views, low: Low) -> None:
        self.before, self.after, self.low = before, after, low

    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """Write w − δᵀ x and b − Σ δ into the weights after the step."""
        if weight in self.low:
            self.low[weight].descend(delta)
        else:
            descend(self.before[weight], delta, x, self.after[weight])
        if bias is not None:
            torch.sub(self.before[bias], delta.sum(1), out=self.after[bias])

    def other(self, name: str, delta: Tensor) -> None:
        """Write w − gradient into the weights after the step."""
        before = self.before[name]
        torch.sub(before, delta.reshape(before.shape), out=self.after[name])


class Vmapped(Stack):
    """Computes any network by `vmap` over the gradient of one model."""

    def __init__(self, module: nn.Module, task: Task) -> None:
        layout = Layout.of(module)
        self.sizes, self.trained = [layout.size], layout.trained

        def loss(w: Vec, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            outputs = torch.func.functional_call(module, layout.views(w), (x,))
            value = (task.loss(outputs, y, "none") * weight).sum()
            return value, value

        self._gradient = torch.func.vmap(torch.func.grad(loss, has_aux=True))

    def views(self, pieces: Sequence[Mat]) -> dict[str, Tensor]:
        """The whole models as one tensor."""
        (models,) = pieces
        return {"": models}

    def gradient(self, w: Views, g: Views, batch: Batch) -> Tensor:
        """The gradient of every row."""
        with torch.enable_grad():
            found, losses = self._gradient(w[""], batch.x, batch.y, batch.weight)
        g[""].copy_(found if self.trained is None else found * self.trained.to(found))
        value: Tensor = losses.detach().double()
        return value

    def descend(self, w: Views, to: Views, batch: Batch, rate: Tensor, low: Low = NONE) -> Tensor:
        """Compute the gradient, then take the step."""
        g = torch.empty_like(to[""])
        losses = self.gradient(w, {"": g}, batch)
        torch.addcmul(w[""], g, rate, value=-1, out=to[""])
        return losses


def refusal(module: nn.Module, task: Task, x: Tensor, y: Tensor) -> str:
    """Why `Vmapped` cannot compute a network; empty if it can. It is tried with two models and these samples.

    >>> from arno.tasks.classification import Classification
    >>> x, y, task = torch.ones(2, 3), torch.tensor([0, 1]), Classification(2)
    >>> refusal(nn.Linear(3, 2), task, x, y), refusal(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), task, x, y)
    ('', 'vmap: called random operation while in randomness error mode')
    """
    if any(parameter_hooks(p) for p in module.parameters()):
        return "a parameter has a hook"
    module = deepcopy(module).train()
    w = flatten(module).expand(2, -1)
    weight = w.new_ones(2, len(x))
    weight[1, 1:] = 0
    try:
        with torch.no_grad():
            stack, together, alone = Vmapped(module, task), torch.empty_like(w), torch.empty_like(w[1:])
            both = Batch(x.expand(2, *x.shape), y.expand(2, *y.shape), weight, (len(x), 1))
            stack.gradient({"": w}, {"": together}, both)
            stack.gradient({"": w[1:]}, {"": alone}, Batch(x[None, :1], y[None, :1], weight[1:, :1], (1,)))
        if not close(together[1:], alone, NEAR):
            return "its samples depend on each other"
    except (Exception, SystemExit) as error:  # the code of a network may raise any exception
        return str(error).split(". ")[0].split("\n")[0] or type(error).__name__
    return ""
