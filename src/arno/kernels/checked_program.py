"""A network whose recorded program is its own: found, compared with autograd, and then used in its place."""

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
#: By how much outputs and gradients may differ, relative to the largest number among them.
SAME = {torch.float64: 1e-10, torch.float32: 1e-5}
#: The same for many models, whose sums are added up in another order.
NEAR = {torch.float64: 1e-8, torch.float32: 1e-4}


class Written(Autograd):
    """Any network with a program. A number of samples for which it computes something else is left to autograd."""

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
        """One pass forward and one back."""
        program = self._program(x)
        if program is None:
            with torch.inference_mode(False), torch.enable_grad():
                return super().gradient(x.clone(), y.clone())
        outputs = program.forward(self.weights, x, from_stream)
        loss, delta = Task.gradient(self.task, outputs, y)  # autograd's own: the bits are those of autograd
        program.backward(delta, self.into)
        return loss

    def _program(self, x: Tensor) -> Program | None:
        """The program for so many samples."""
        if x.shape not in self._programs:
            with torch.inference_mode(False), torch.enable_grad(), draws_put_back():
                graph = record(self.module, x.clone())
            same = graph.structure() == self._structure
            self._programs[x.shape] = Program(graph, list(self.weights)) if same else None
        return self._programs[x.shape]


class IntoBuffer(Into):
    """Gradients of one model, written into a flat buffer."""

    def __init__(self, views: Mapping[str, Tensor]) -> None:
        self.views = views

    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """Write the gradients of a linear layer into the buffer."""
        turned_product(delta, x, self.views[weight])
        if bias is not None:
            torch.sum(delta, 0, out=self.views[bias])

    def other(self, name: str, delta: Tensor) -> None:
        """Copy a gradient that a rule returned into the buffer."""
        self.views[name].copy_(delta)


class NotChecked(Exception):
    """A recording whose program would not be used, and why."""

    def __init__(self, graph: Graph, reason: str) -> None:
        super().__init__(reason)
        self.graph = graph


def no_reason(graph: Graph) -> str:
    """The program of any recording is used."""
    return ""


def program_of(module: nn.Module, x: Tensor, unused: Callable[[Graph], str] = no_reason) -> tuple[Graph | None, str]:
    """What a network computes on samples like `x`, checked; with a reason: not checked, or None, and it runs as it is.

    unused: why the program of a recording would not be used, so that it need not be checked; empty if it would.
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
    except (Exception, SystemExit) as error:  # whatever the code of a network raises
        return None, f"its recording failed: {type(error).__name__}"


def _checked(module: nn.Module, x: Tensor, unused: Callable[[Graph], str]) -> Graph:
    """The graph of a network; raises `NotRecorded` unless its program has the outputs and gradients of the network."""
    held = list(module.named_parameters(remove_duplicate=False))
    if len({id(p) for _, p in held}) != len(held):
        raise NotRecorded("layers share weights")
    if not all(p.requires_grad for _, p in held):
        raise NotRecorded("some of its parameters are not trained")
    module(samples(x, SIZES[0]))  # may fill caches
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
    """Outputs, and gradients of a random sum of them, by autograd and by the program, with the same draws.

    On other samples than the recorded ones: what depends on samples in a way that was not recorded shows.
    """
    stream = torch.default_generator.get_state()
    module.zero_grad()
    wanted = module(x)
    delta = torch.randn(wanted.shape, dtype=wanted.dtype, device=wanted.device)
    (wanted * delta).sum().backward()  # the same as backward(delta), for which torch would import sympy
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
    """Whether the constants of two recordings are the same; the memory that noise is drawn into is not looked at."""
    used = {value.of for step in a.operations if step.name != "bernoulli" for value in step.values}
    return all(
        name in b.constants and torch.equal(t, b.constants[name]) for name, t in a.constants.items() if name in used
    )


def close(a: Tensor, b: Tensor, most: Mapping[torch.dtype, float] = SAME) -> bool:
    """Whether two tensors agree to rounding, and all their numbers are finite."""
    return bool((a - b).abs().max() <= most.get(b.dtype, 0) * b.abs().max())


def samples(x: Tensor, n: int) -> Tensor:
    """So many inputs like those in `x`, others in each call: numbers with noise, tokens in another order."""
    picked = x[torch.arange(n) % len(x)].clone()
    if picked.is_floating_point():
        return picked.add_(torch.randn_like(picked), alpha=0.1)
    return picked.flatten()[torch.randperm(picked.numel())].view(picked.shape)
