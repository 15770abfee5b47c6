"""A recorded network as a list of rules, which compute the outputs and the gradient of one model or of many models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from .low_rank import LowRank
from .products import affine, affine_of_rows, product, products
from .record import Graph, NotRecorded, Operation, Ref, Value
from .rules import RULES, Rule
from .rules.attention import Product
from .rules.images import Convolution
from .rules.pointwise import IN_PLACE, Arithmetic, Point
from .rules.shapes import RESHAPES

#: A parameter of one model, or of many models.
Weights = Tensor | LowRank
#: A function that returns the noise of an operation. Its arguments: the number of the operation, its rule, and a tensor
#: of the right type and device.
Draw = Callable[[int, "Noise", Tensor], Tensor]


class Into(ABC):
    """Receives the gradients of parameters."""

    @abstractmethod
    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """Receive δ and the input x of a linear layer: ∇W = δᵀ x, and ∇b is the sum of the rows of δ."""

    @abstractmethod
    def other(self, name: str, delta: Tensor) -> None:
        """Receive the gradient of any other parameter."""


class Linear(Rule):
    """x Wᵀ + b along the last axis of x.

    All other axes, except the axis of models, become one axis of the matrix product.
    """

    def prepare(self) -> None:
        """Keep the number of axes for models, 0 or 1."""
        self.models = int(self.lead)

    def forward(self, x: Tensor, weight: Weights, bias: Tensor | None = None) -> Tensor:
        """The outputs of one model, or of many models."""
        x = x.flatten(self.models, -2)
        self.saved = (x, weight)
        if isinstance(weight, LowRank):
            return self.unflat(weight.affine(x, bias), self.shape)
        y = affine_of_rows(x, weight, bias) if self.lead else affine(x, weight, bias)
        return self.unflat(y, self.shape)

    def backward(self, delta: Tensor) -> Sequence[Tensor | None]:
        """The gradient of the input. `saved` keeps x and δ as matrices; `Program` passes them to `Into` for W and b."""
        x, weight = self.saved
        delta = delta.flatten(self.models, -2)
        self.saved = (x, delta)
        if not self.needs[0]:
            return (None,)
        below = products(delta, weight) if self.lead else product(delta, weight)
        return (self.unflat(below, self.shapes[0]),)

    def unflat(self, y: Tensor, shape: Sequence[int]) -> Tensor:
        """The rows of y with all axes of this shape."""
        return y if len(shape) == 2 else y.view(-1, *shape) if self.lead else y.view(shape)


class Noise(Rule):
    """Random ones and zeros. `Draw` says from which stream."""

    passes = False

    def prepare(self) -> None:
        """Read the probability of a one."""
        self.chance = self.argument(1, "p", 0.5)
        if not isinstance(self.chance, float) or self.step.kwargs.get("generator") is not None:
            raise NotRecorded("random numbers of another distribution or another stream")

    def forward(self, blank: Tensor) -> Tensor:
        """The tensor that `Program` replaces with the noise."""
        return blank

    def backward(self, delta: Tensor) -> Sequence[Tensor | None]:
        """Noise has no gradient."""
        return (None,)


class Blank(Noise):
    """Memory into which noise is drawn."""

    def prepare(self) -> None:
        """Read no arguments."""


KNOWN = RULES | {"linear": Linear, "bernoulli": Noise, "empty_like": Blank, "new_empty": Blank}


@dataclass(slots=True)
class Step:
    """A rule with the positions (slots) of its tensors and of its outputs in the list of all tensors.

    number: the number of the operation in the recording.
    below: for each tensor to which the rule passes a gradient: its index among the tensors of the rule, its slot, and
        its name if it is a parameter.
    alike: the indices of the tensors that are equal for all models; they get the axis of models by `expand`.
    noise: whether the output is drawn at random.
    linear: the names of the weight and the bias of a linear layer.
    """

    rule: Rule
    number: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    below: tuple[tuple[int, int, str | None], ...]
    alike: tuple[int, ...] = ()
    noise: bool = False
    linear: tuple[str, str | None] | None = None


class Program:
    """The rules of a graph, for one model or (`lead`) for many models.

    Raises `NotRecorded` if an operation has no rule, if a parameter is not used exactly once, or if the output depends
    on no parameter.
    at_inputs: for each linear layer whose input depends on no parameter: the name of its weight, and how many rows of
        its input belong to one sample.
    """

    def __init__(self, graph: Graph, parameters: Sequence[str], lead: bool = False) -> None:
        self.slots: dict[Ref | str, int] = {}
        self.parameters, self.lead, self.steps = list(parameters), lead, list[Step]()
        operations = with_pooling_first(with_linear(graph.operations, set(parameters)))
        operations = with_fewer_views(operations, graph.output.of) if lead else operations
        self._check(operations)
        led: dict[Ref | str, bool] = {"input": True, **dict.fromkeys(parameters, True)}
        trained = set[Ref | str](parameters)
        uses = Counter(value.of for step in operations for value in step.values)
        for number, step in enumerate(operations):
            if step.name in ("nothing", "t") and not step.values:
                continue
            if step.name not in KNOWN:
                raise NotRecorded(f"no written-out gradient for {step.name}")
            of = [value.of for value in step.values]
            needs = [ref in trained for ref in of]
            rule = KNOWN[step.name](step, lead, [led.get(ref, False) for ref in of], needs)
            outs = [(number, k) for k in range(len(step.shapes))]
            led |= dict.fromkeys(outs, True)
            if any(needs) and rule.passes:
                trained.add(outs[0])
                trained |= set(outs) if rule.outputs == len(outs) and step.name in SEVERAL else set()
            if isinstance(rule, Point) and uses[of[0]] == 1 and step.name in IN_PLACE:
                self._reuse(rule, of[0])
            names = [ref if isinstance(ref, str) and ref in set(parameters) else None for ref in of]
            alike = () if not lead or rule.constants else tuple(i for i, there in enumerate(rule.led) if not there)
            ins, made = tuple(map(self._slot, of)), tuple(map(self._slot, outs))
            linear = (str(names[1]), names[2] if names[2:] else None) if isinstance(rule, Linear) else None
            gets = [i for i, need in enumerate(needs) if need and not (linear and i)]
            below = tuple((i, ins[i], names[i]) for i in gets)
            self.steps.append(Step(rule, number, ins, made, below, alike, type(rule) is Noise, linear))
        self.output, self.input = self._slot(graph.output.of), self._slot("input")
        self.constants = {self._slot(name): tensor for name, tensor in graph.constants.items() if name in self.slots}
        self.places = [(name, self._slot(name)) for name in parameters]
        n = graph.output.shape[0]
        first = {step.linear[0]: step.rule.shapes[0] for step in self.steps if step.linear and not step.rule.needs[0]}
        self.at_inputs = {name: prod(shape[:-1]) // n for name, shape in first.items() if prod(shape[:-1]) % n == 0}
        self.back = [step for step in reversed(self.steps) if any(step.rule.needs) and step.rule.passes]
        if graph.output.of not in trained:
            raise NotRecorded("its output does not depend on its parameters")

    def forward(self, weights: Mapping[str, Weights], x: Tensor, draw: Draw) -> Tensor:
        """The outputs of the network."""
        values: list[Any] = [None] * len(self.slots)
        values[self.input] = x
        for name, slot in self.places:
            values[slot] = weights[name]
        for slot, constant in self.constants.items():
            values[slot] = constant
        for step in self.steps:
            given = [values[slot] for slot in step.ins]
            for i in step.alike:
                given[i] = given[i].expand(len(x), *given[i].shape)
            found = step.rule.forward(*given)
            if step.noise:
                found = draw(step.number, step.rule, found)  # type: ignore[arg-type]
            if len(step.outs) == 1:
                values[step.outs[0]] = found
            else:
                for slot, each in zip(step.outs, found, strict=True):
                    values[slot] = each
        out: Tensor = values[self.output]
        return out

    def backward(self, delta: Tensor, into: Into) -> None:
        """Pass the gradients of all parameters to `into`. delta: the gradient with respect to the outputs."""
        deltas: list[Tensor | None] = [None] * len(self.slots)
        deltas[self.output] = delta
        for step in self.back:
            rule, above = step.rule, [deltas[slot] for slot in step.outs]
            if above[0] is None and all(delta is None for delta in above):  # only a comparison reads the outputs
                continue
            for slot in step.outs:
                deltas[slot] = None
            below = rule.backward(*above)
            if step.linear is not None:
                into.linear(*step.linear, rule.saved[1], rule.saved[0])
            for i, slot, name in step.below:
                found, there = below[i], deltas[slot]
                if found is not None and name is not None:
                    into.other(name, found)
                elif found is not None:
                    deltas[slot] = found if there is None else there + found
            rule.saved = ()

    def _slot(self, ref: Ref | str) -> int:
        return self.slots.setdefault(ref, len(self.slots))

    def _check(self, operations: Sequence[Operation]) -> None:
        """Refuse a network that does not use every parameter exactly once; autograd computes such networks."""
        uses = Counter(value.of for step in operations for value in step.values)
        for name in self.parameters:
            if uses[name] != 1:
                raise NotRecorded(f"the parameter {name} is used {uses[name]} times")

    def _reuse(self, rule: Point, of: Ref | str) -> None:
        """Let an activation write into the memory of its input, if an earlier rule made new memory for this input."""
        maker = next((step.rule for step in self.steps if self.slots.get(of) in step.outs), None)
        if isinstance(maker, Linear | Convolution | Product) or (isinstance(maker, Arithmetic) and maker.both):
            rule.overwrite()


#: Operations with several outputs that all have gradients.
SEVERAL = ("unbind", "split", "split_with_sizes")


def with_linear(operations: Sequence[Operation], parameters: set[str]) -> list[Operation]:
    """The same operations; `linear` replaces each product with a transposed parameter."""
    done = list(operations)
    for i, step in enumerate(operations):
        if step.name not in ("mm", "addmm"):
            continue
        *bias, x, matrix = step.args
        turned = operations[matrix.of[0]] if isinstance(matrix.of, tuple) else None
        if turned is None or turned.name != "t" or turned.args[0].of not in parameters:
            continue
        if step.kwargs or any(b.of not in parameters or len(b.shape) != 1 for b in bias):
            continue
        if sum(value.of == matrix.of for other in operations for value in other.values) == 1:
            done[i] = Operation("linear", (x, turned.args[0], *bias), {}, step.shapes)
            done[matrix.of[0]] = replace(turned, args=())
    return done


def with_fewer_views(operations: Sequence[Operation], output: Ref | str) -> list[Operation]:
    """The same operations with fewer changes of shape: one in place of several in a row, and none around linear layers.

    To call a change of shape takes as long as to call a small operation that computes.
    """
    done = list(operations)
    uses = Counter([output, *(value.of for step in operations for value in step.values)])
    for i, step in enumerate(operations):
        before = reshaped(done, step.args[0].of) if step.name in (*RESHAPES, "linear") and step.values else None
        if before is not None and (step.name != "linear" or before.shape[-1] == step.args[0].shape[-1]):
            done[i] = step = replace(step, args=(before, *step.args[1:]))
        of = step.args[0].of if step.name in RESHAPES else None
        if isinstance(of, tuple) and uses[of] == 1 and done[of[0]].name == "linear":
            linear = done[of[0]]
            if linear.shapes[0][-1] == step.shapes[0][-1]:
                done[i], done[of[0]] = replace(linear, shapes=step.shapes), replace(step, name="nothing", args=())
    used = {output, *(value.of for step in done for value in step.values)}
    return [
        replace(step, name="nothing", args=()) if step.name in RESHAPES and (i, 0) not in used else step
        for i, step in enumerate(done)
    ]


def reshaped(operations: Sequence[Operation], of: Ref | str) -> Value | None:
    """The input of an operation that only changes the shape; None for the output of any other operation."""
    step = operations[of[0]] if isinstance(of, tuple) else None
    return step.args[0] if step is not None and step.name in RESHAPES else None


def with_pooling_first(operations: Sequence[Operation]) -> list[Operation]:
    """The same function: a ReLU that only a max-pooling reads moves behind the pooling, where it has fewer numbers."""
    done = list(operations)
    uses = Counter(value.of for step in operations for value in step.values)
    for j, pool in enumerate(operations):
        if pool.name != "max_pool2d_with_indices" or uses[j, 1]:
            continue
        of = pool.args[0].of
        relu = operations[of[0]] if isinstance(of, tuple) else pool
        if relu.name == "relu" and uses[of] == 1:
            done[of[0]] = replace(pool, args=(relu.args[0], *pool.args[1:]))
            done[j] = Operation("relu", (Value(of, pool.shapes[0]),), {}, pool.shapes[:1])
    return done


def from_stream(number: int, noise: Noise, like: Tensor) -> Tensor:
    """The noise of one model, drawn from torch's global stream."""
    step = noise.step
    return ones(torch.empty_strided(step.shapes[0], step.strides, **kind(like)), noise.chance)


def kind(like: Tensor) -> dict[str, Any]:
    """The type and the device of a tensor, as keyword arguments."""
    return {"dtype": like.dtype, "device": like.device}


def ones(noise: Tensor, chance: float, stream: torch.Generator | None = None) -> Tensor:
    """Fill a tensor with the ones and zeros that `bernoulli_` draws.

    If its draws are known, a faster operation draws them.
    """
    if noise.device.type != "cpu" or not bernoulli_is_uniform():
        return noise.bernoulli_(chance, generator=stream)
    return torch.lt(torch.empty_like(noise, dtype=torch.float64).uniform_(generator=stream), chance, out=noise)


@cache
def bernoulli_is_uniform() -> bool:
    """Whether `bernoulli_` draws a one if a uniform number is below the probability; builds of torch may differ."""
    stream, like = torch.Generator(), torch.empty(64, 9)
    drawn = like.bernoulli_(0.3, generator=stream.manual_seed(1)).clone()
    with torch.inference_mode(False):
        uniform = torch.empty(64, 9, dtype=torch.float64).uniform_(generator=stream.manual_seed(1))
    return torch.equal(drawn, (uniform < 0.3).to(drawn))
