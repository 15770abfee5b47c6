"""Gradients of many models at once: their weights are the rows of matrices."""

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

#: Batches are filled up to a multiple of so many samples, see `StackedProgram.filled`.
FILL = 8

#: Parts of many models by name, the first axis for the models.
Views = Mapping[str, Tensor]
#: Those parts of models that are kept in another form, by name.
Low = Mapping[str, LowRank]
NONE: Low = MappingProxyType({})


@dataclass(frozen=True)
class Batch:
    """Samples and targets of many models, [rows, batch, …]. Rows with fewer samples are filled up.

    weight: of each sample in the loss of its row, 0 for those that fill up. sizes: the samples of each row.
    streams: of each row, for networks that draw random numbers.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    sizes: Sequence[int]
    streams: Sequence[torch.Generator] = ()


class Stack(ABC):
    """Gradients of many models of one shape.

    sizes: the lengths of the pieces in which it takes the models, [rows, length] each.
    trained: which parameters are trained, as booleans [d]; None where all of them are.
    draws: whether a row needs a stream of its own.
    """

    sizes: list[int]
    trained: Tensor | None = None
    draws: bool = False

    def filled(self, n: int, most: int) -> int:
        """How many samples batches of n samples at most are filled up to, of `most` samples that a batch may have."""
        return n

    @abstractmethod
    def views(self, pieces: Sequence[Mat]) -> dict[str, Tensor]:
        """The models in the form in which the next two take them."""

    def low_rank(self, rows: int, samples: int, start: Sequence[Mat]) -> dict[str, LowRank]:
        """Parts of models that all start alike, for those that take less time if they are kept as `LowRank`.

        samples: the most that a model will see.
        """
        return {}

    @abstractmethod
    def gradient(self, w: Views, g: Views, batch: Batch) -> Tensor:
        """Write ∇ of Σ_i weight_i · loss_i for each row into `g`, and return its value."""

    @abstractmethod
    def descend(self, w: Views, to: Views, batch: Batch, rate: Tensor, low: Low = NONE) -> Tensor:
        """Take the step `to` ← w − rate · ∇ at once, and return the value before it; parts in `low` change there."""


def stack_for(module: nn.Module, task: Task, x: Tensor) -> Stack:
    """The rules of what a network computes for all models at once, or `vmap` where it computes something else."""
    found = stacked_program(module, task, x)
    return Vmapped(module, task) if isinstance(found, str) else found


def stacked_program(module: nn.Module, task: Task, x: Tensor) -> StackedProgram | str:
    """A network as a program of many models, checked on samples like `x`; or why there is none."""
    graph, why = program_of(module, x)
    if graph is None:
        return why
    try:
        stack = StackedProgram(deepcopy(module), task, graph, x)
        with draws_put_back():
            stack.check()
    except NotRecorded as error:
        return str(error)
    except Exception as error:  # whatever torch raises for shapes that no rule foresees
        return f"its program of many models failed: {type(error).__name__}"
    return stack


class StackedProgram(Stack):
    """The program of a network with an axis of models."""

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
        """The parameters of every row."""
        pairs = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.view(piece.shape[0], *shape) for (name, shape), piece in pairs}

    def low_rank(self, rows: int, samples: int, start: Sequence[Mat]) -> dict[str, LowRank]:
        """Large linear layers that read the samples."""
        seen = self._few(samples)
        views = self.views([piece[:1] for piece in start]) if seen else {}
        return {name: LowRank(views[name][0], rows, most) for name, most in seen.items()}

    def held(self, samples: int) -> int:
        """How many numbers are held for a model that sees so many samples, where all models start alike."""
        low = {name: (most, *self.shapes[name]) for name, most in self._few(samples).items()}
        return sum(self.sizes) + sum(most * (outs + ins) - outs * ins for most, outs, ins in low.values())

    def _few(self, samples: int) -> dict[str, int]:
        """The layers that are best kept as `LowRank`, and how many rows of inputs they see."""
        seen = {name: samples * often for name, often in self.at_inputs.items()}
        return {name: most for name, most in seen.items() if few(most, *self.shapes[name])}

    @torch.inference_mode()
    def gradient(self, w: Views, g: Views, batch: Batch) -> Tensor:
        """One pass forward and one back."""
        losses, delta, program = self._forward(w, batch)
        program.backward(delta, IntoRows(g))
        return losses

    @torch.inference_mode()
    def descend(self, w: Views, to: Views, batch: Batch, rate: Tensor, low: Low = NONE) -> Tensor:
        """The same, subtracted from the weights: ∇W is never stored."""
        losses, delta, program = self._forward({**w, **low} if low else w, batch)
        program.backward(delta * rate.view(-1, *(1,) * (delta.ndim - 1)), Descent(w, to, low))
        return losses

    def _forward(self, weights: Mapping[str, Weights], batch: Batch) -> tuple[Tensor, Tensor, Program]:
        """The losses, the gradient with respect to the outputs, and the program that has computed them."""
        program = self.program(batch.x.shape[1])
        outputs = program.forward(weights, batch.x, self._draw(batch.sizes, batch.streams))
        losses, delta = self.task.row_gradients(outputs, batch.y, batch.weight)
        return losses.double(), delta, program

    def filled(self, n: int, most: int) -> int:
        """A multiple of eight where the network may see the number of samples: it is recorded for each number anew.

        >>> from arno.tasks.classification import Classification
        >>> net = nn.Sequential(nn.Linear(3, 2), nn.GELU())
        >>> stack = stack_for(net, Classification(2), torch.rand(2, 3))
        >>> [stack.filled(n, 20) for n in (3, 8, 17, 20)]
        [8, 8, 20, 20]
        """
        return n if self.blind else min(-(-n // FILL) * FILL, most)

    def graph(self, n: int) -> Graph:
        """What the network computes on n samples; raises `NotRecorded` if that is something else than usually."""
        if n not in self._graphs:
            with torch.inference_mode(False), torch.enable_grad(), draws_put_back():
                graph = record(self.module, samples(self.x, n))
            if graph.structure() != self.structure:
                raise NotRecorded(f"it computes something else on {n} samples")
            self._graphs[n] = graph
        return self._graphs[n]

    def usual(self, n: int) -> bool:
        """Whether the network computes on n samples what it usually computes; recorded, unless it cannot tell."""
        try:
            return (self.blind and n > 1) or bool(self.graph(n))
        except NotRecorded:
            return False

    def program(self, n: int) -> Program:
        """Its rules for n samples."""
        if n not in self._programs:
            self._programs[n] = Program(self.graph(n), list(self.shapes), lead=True)
        return self._programs[n]

    def check(self) -> None:
        """Compare two models on three and on two samples, filled up, with the programs of one model.

        So samples do not depend on each other, and draws are those of a model alone.
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
        """Draws the noise of each row as for its model alone, from its own stream; what fills up gets zeros."""

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
    """Gradients of many models, written into matrices."""

    def __init__(self, views: Views) -> None:
        self.views = views

    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """Batched products, written into the rows."""
        turned_products(delta, x, self.views[weight])
        if bias is not None:
            torch.sum(delta, 1, out=self.views[bias])

    def other(self, name: str, delta: Tensor) -> None:
        """Copy a gradient that a rule returned into its rows."""
        self.views[name].copy_(delta)


class OfOne(IntoRows):
    """The same of one model."""

    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """Products."""
        self.views[weight].copy_(delta.t() @ x)
        if bias is not None:
            self.views[bias].copy_(delta.sum(0))


class Descent(Into):
    """Steps of many models, subtracted from the weights at once: the caller computed with them already.

    The gradients are linear in that of the outputs, so that the caller multiplies that one by the rates.
    """

    def __init__(self, before: Views, after: Views, low: Low) -> None:
        self.before, self.after, self.low = before, after, low

    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """w − δᵀ x and b − Σ δ."""
        if weight in self.low:
            self.low[weight].descend(delta)
        else:
            descend(self.before[weight], delta, x, self.after[weight])
        if bias is not None:
            torch.sub(self.before[bias], delta.sum(1), out=self.after[bias])

    def other(self, name: str, delta: Tensor) -> None:
        """w − ∇."""
        before = self.before[name]
        torch.sub(before, delta.reshape(before.shape), out=self.after[name])


class Vmapped(Stack):
    """Any network, by `vmap` over the gradient of one."""

    def __init__(self, module: nn.Module, task: Task) -> None:
        layout = Layout.of(module)
        self.sizes, self.trained = [layout.size], layout.trained

        def loss(w: Vec, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            outputs = torch.func.functional_call(module, layout.views(w), (x,))
            value = (task.loss(outputs, y, "none") * weight).sum()
            return value, value

        self._gradient = torch.func.vmap(torch.func.grad(loss, has_aux=True))

    def views(self, pieces: Sequence[Mat]) -> dict[str, Tensor]:
        """Whole models."""
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
        """The gradient, then the step."""
        g = torch.empty_like(to[""])
        losses = self.gradient(w, {"": g}, batch)
        torch.addcmul(w[""], g, rate, value=-1, out=to[""])
        return losses


def refusal(module: nn.Module, task: Task, x: Tensor, y: Tensor) -> str:
    """Why `Vmapped` cannot compute a network, from a trial with two models and these samples; empty if it can.

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
    except (Exception, SystemExit) as error:  # whatever the code of a network raises
        return str(error).split(". ")[0].split("\n")[0] or type(error).__name__
    return ""
