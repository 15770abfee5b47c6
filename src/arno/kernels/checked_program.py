"""Records a network, compares its program with autograd, and then uses the program in place of the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..tasks.task import Task
from .kernel import Autograd
from .products import turned_product
from .program import Into, Program, from_stream
from .record import Graph, NotRecorded, draws_put_back, record
from .side_effects import hooked, state

#: Numbers of samples on which a program is compared with the network.
SIZES = (3, 2)
#: The largest allowed difference between a program and autograd, relative to the largest number of autograd.
SAME = {torch.float64: 1e-10, torch.float32: 1e-5}
#: The same for programs of many models, which add up sums in another order.
NEAR = {torch.float64: 1e-8, torch.float32: 1e-4}


class Written(Autograd):
    """Computes a network with its program.

    Autograd computes the batches of a size on which the network computes something else.
    """

    name = "program"
    written_out = True

    def __init__(self, module: nn.Module, task: Task, graph: Graph, trains: bool = True) -> None:
        super().__init__(module, task, trains)
        self.weights = self.layout.views(self.w)
        self.into = IntoBuffer(self.layout.views(self.g))
        self.draws = any(step.name == "bernoulli" for step in graph.operations)
        self._structure = graph.structure()
        self._programs: dict[torch.Size, Program | None] = {}

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Write the gradient into `g` with one forward and one backward pass of the program, and return the loss."""
        program = self._program(x)
        if program is None:
            with torch.inference_mode(False), torch.enable_grad():
                return super().gradient(x.clone(), y.clone())
        outputs = program.forward(self.weights, x, from_stream)
        loss, delta = Task.gradient(self.task, outputs, y)  # autograd: the gradient has the same bits as with autograd
        program.backward(delta, self.into)
        return loss

    def _program(self, x: Tensor) -> Program | None:
        """The program for batches of this shape; None if the network computes something else on them."""
        if x.shape not in self._programs:
            with torch.inference_mode(False), torch.enable_grad(), draws_put_back():
                graph = record(self.module, x.clone())
            same = graph.structure() == self._structure
            self._programs[x.shape] = Program(graph, list(self.weights)) if same else None
        return self._programs[x.shape]


class IntoBuffer(Into):
    """Writes the gradients of one model into a flat vector."""

    def __init__(self, views: Mapping[str, Tensor]) -> None:
        self.views = views

    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """Write the gradients of a linear layer into the vector."""
        turned_product(delta, x, self.views[weight])
        if bias is not None:
            torch.sum(delta, 0, out=self.views[bias])

    def other(self, name: str, delta: Tensor) -> None:
        """Copy a gradient that a rule returned into the vector."""
        self.views[name].copy_(delta)


class NotChecked(Exception):
    """A recording that is not checked because its program would not be used; the message is the reason."""

    def __init__(self, graph: Graph, reason: str) -> None:
        super().__init__(reason)
        self.graph = graph


def no_reason(graph: Graph) -> str:
    """No reason: the program of any recording is used."""
    return ""


def program_of(module: nn.Module, x: Tensor, unused: Callable[[Graph], str] = no_reason) -> tuple[Graph | None, str]:
    """What a network computes on samples like `x`, and a reason.

    Without a reason, the program of this graph has the outputs and gradients of the network. With a reason and a graph,
    the program was not checked. With a reason and without a graph, the network has no usable recording.
    unused: a function that returns why the program of a recording would not be used; empty if it would be used.
    """
    if hooked(module):
        return None, "it has hooks"
    if any(True for _ in module.buffers()):
        return None, "it has buffers"
    try:
        with torch.inference_mode(False), torch.enable_grad(), draws_put_back():
            return _checked(deepcopy(module), x, unused), ""
    except NotChecked as error:
        return error.graph, str(error)
    except NotRecorded as error:
        return None, str(error)
    except (Exception, SystemExit) as error:  # the code of a network may raise any exception
        return None, f"its recording failed: {type(error).__name__}"


def _checked(module: nn.Module, x: Tensor, unused: Callable[[Graph], str]) -> Graph:
    """The graph of a network; raises `NotRecorded` if its program has other outputs or gradients than the network."""
    held = list(module.named_parameters(remove_duplicate=False))
    if len({id(p) for _, p in held}) != len(held):
        raise NotRecorded("layers share weights")
    if not all(p.requires_grad for _, p in held):
        raise NotRecorded("some of its parameters are not trained")
    module(samples(x, SIZES[0]))  # the first pass may fill caches of the network
    before, graphs = state(module), list[Graph]()
    for n in (*SIZES, SIZES[0]):
        graphs.append(record(module, samples(x, n)))
        if reason := unused(graphs[-1]):
            raise NotChecked(graphs[-1], reason)
        _compare(module, graphs[-1], samples(x, n))
    if state(module) != before:
        raise NotRecorded("its forward pass changes its state, or draws random numbers of Python or NumPy")
    first, _, again = graphs
    if not equal(first, again) or any(graph.structure() != first.structure() for graph in graphs):
        raise NotRecorded("it computes different things in different calls")
    return first


def _compare(module: nn.Module, graph: Graph, x: Tensor) -> None:
    """Compare the program with autograd: the outputs, and the gradient of a weighted sum of the outputs.

    The weights are random, and both draw the same random numbers. The samples differ from the recorded ones, so that a
    result which depends on samples in a way that was not recorded becomes visible.
    """
    stream = torch.default_generator.get_state()
    module.zero_grad()
    wanted = module(x)
    delta = torch.randn(wanted.shape, dtype=wanted.dtype, device=wanted.device)
    (wanted * delta).sum().backward()  # the same as wanted.backward(delta), but that call imports sympy
    torch.default_generator.set_state(stream)
    gradients = {name: p.grad for name, p in module.named_parameters()}
    found = {name: torch.full_like(p.detach(), torch.nan) for name, p in module.named_parameters()}
    program = Program(graph, list(found))
    with torch.no_grad():
        out = program.forward({name: p.detach() for name, p in module.named_parameters()}, x, from_stream)
        program.backward(delta, IntoBuffer(found))
    if any(g is None for g in gradients.values()):
        raise NotRecorded("some of its parameters have no gradient")
    flat = [torch.cat([g.flatten() for g in of.values() if g is not None]) for of in (found, gradients)]
    if not close(out, wanted.detach()) or not close(flat[0], flat[1]):
        raise NotRecorded("its outputs or its gradients are not those of its operations")


def equal(a: Graph, b: Graph) -> bool:
    """Whether the constants of two recordings are equal. The memory into which noise is drawn is not compared."""
    used = {value.of for step in a.operations if step.name != "bernoulli" for value in step.values}
    return all(
        name in b.constants and torch.equal(t, b.constants[name]) for name, t in a.constants.items() if name in used
    )


def close(a: Tensor, b: Tensor, most: Mapping[torch.dtype, float] = SAME) -> bool:
    """Whether a agrees with b up to rounding, and all numbers are finite."""
    return bool((a - b).abs().max() <= most.get(b.dtype, 0) * b.abs().max())


def samples(x: Tensor, n: int) -> Tensor:
    """n inputs that resemble those in `x`, other ones in each call: numbers with noise, tokens in another order."""
    picked = x[torch.arange(n) % len(x)].clone()
    if picked.is_floating_point():
        return picked.add_(torch.randn_like(picked), alpha=0.1)
    return picked.flatten()[torch.randperm(picked.numel())].view(picked.shape)
