"""A recorded network as a list of rules: one pass forward and one back, without autograd, for one model or for many."""

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

#: Parameters of one model, or of many.
Weights = Tensor | LowRank
#: The noise of an operation, whose number, rule and a tensor of the right type and device are given.
Draw = Callable[[int, "Noise", Tensor], Tensor]


class Into(ABC):
    """Where the gradients of parameters go."""

    @abstractmethod
    def linear(self, weight: str, bias: str | None, delta: Tensor, x: Tensor) -> None:
        """∇W = δᵀ x and ∇b = Σ δ."""

    @abstractmethod
    def other(self, name: str, delta: Tensor) -> None:
        """∇ of any other parameter."""


class Linear(Rule):
    """x Wᵀ + b of the last axis; the axes before it are one axis of the products."""

    def prepare(self) -> None:
        """The number of axes of models."""
        self.models = int(self.lead)

    def forward(self, x: Tensor, weight: Weights, bias: Tensor | None = None) -> Tensor:
        """Of one model, or of many."""
        x = x.flatten(self.models, -2)
        self.saved = (x, weight)
        if isinstance(weight, LowRank):
            return self.unflat(weight.affine(x, bias), self.shape)
        y = affine_of_rows(x, weight, bias) if self.lead else affine(x, weight, bias)
        return self.unflat(y, self.shape)

    def backward(self, delta: Tensor) -> Sequence[Tensor | None]:
        """Of the input; `Program` hands the rest to `Into`, from what is saved: x and δ as matrices."""
        x, weight = self.saved
        delta = delta.flatten(self.models, -2)
        self.saved = (x, delta)
        if not self.needs[0]:
            return (None,)
        below = products(delta, weight) if self.lead else product(delta, weight)
        return (self.unflat(below, self.shapes[0]),)

    def unflat(self, y: Tensor, shape: Sequence[int]) -> Tensor:
        """With all axes of this shape."""
        return y if len(shape) == 2 else y.view(-1, *shape) if self.lead else y.view(shape)


class Noise(Rule):
    """Ones and zeros, drawn from the stream of each client."""

    passes = False

    def prepare(self) -> None:
        """The chance of a one."""
        self.chance = self.argument(1, "p", 0.5)
        if not isinstance(self.chance, float) or self.step.kwargs.get("generator") is not None:
            raise NotRecorded("random numbers of another distribution or another stream")

    def forward(self, blank: Tensor) -> Tensor:
        """`Program` draws it."""
        return blank

    def backward(self, delta: Tensor) -> Sequence[Tensor | None]:
        """Noise has no gradient."""
        return (None,)


class Blank(Noise):
    """Memory for noise."""

    def prepare(self) -> None:
        """Nothing is read."""


KNOWN = RULES | {"linear": Linear, "bernoulli": Noise, "empty_like": Blank, "new_empty": Blank}


@dataclass(slots=True)
class Step:
    """A rule, and the slots of its tensors and of its outputs.

    below: of each tensor that gets a gradient from the rule, its position, its slot, and its name if it is a parameter.
    alike: positions of those that are the same for all models, and get the axis of models. noise: whether the output
    is drawn. linear: weight and bias of a linear layer.
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
    """The rules of a graph. Raises `NotRecorded` if an operation has none, or a parameter is not used exactly once.

    at_inputs: the weights of linear layers that read nothing that depends on parameters, and how often for a sample.
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
        """Hand the gradients of all parameters to `into`, of that with respect to the outputs."""
        deltas: list[Tensor | None] = [None] * len(self.slots)
        deltas[self.output] = delta
        for step in self.back:
            rule, above = step.rule, [deltas[slot] for slot in step.outs]
            if above[0] is None and all(delta is None for delta in above):  # only a comparison reads it
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
        """Every parameter is used once: shared weights are left to autograd."""
        uses = Counter(value.of for step in operations for value in step.values)
        for name in self.parameters:
            if uses[name] != 1:
                raise NotRecorded(f"the parameter {name} is used {uses[name]} times")

    def _reuse(self, rule: Point, of: Ref | str) -> None:
        """An activation overwrites its input where that is new memory that nothing else reads."""
        maker = next((step.rule for step in self.steps if self.slots.get(of) in step.outs), None)
        if isinstance(maker, Linear | Convolution | Product) or (isinstance(maker, Arithmetic) and maker.both):
            rule.overwrite()


#: Operations all of whose outputs have gradients.
SEVERAL = ("unbind", "split", "split_with_sizes")


def with_linear(operations: Sequence[Operation], parameters: set[str]) -> list[Operation]:
    """The same operations, with `linear` for each product with a transposed parameter."""
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
    """The same with one new shape in place of several in a row, and none around linear layers.

    Each of them takes as long to call as a small operation that computes.
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
    """The tensor of which a tensor is the same numbers in another shape, if it is."""
    step = operations[of[0]] if isinstance(of, tuple) else None
    return step.args[0] if step is not None and step.name in RESHAPES else None


def with_pooling_first(operations: Sequence[Operation]) -> list[Operation]:
    """The same function with ReLU behind the max-pooling that alone reads it: on fewer numbers."""
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
    """Noise of one model, from torch's global stream."""
    step = noise.step
    return ones(torch.empty_strided(step.shapes[0], step.strides, **kind(like)), noise.chance)


def kind(like: Tensor) -> dict[str, Any]:
    """The type and the device of a tensor."""
    return {"dtype": like.dtype, "device": like.device}


def ones(noise: Tensor, chance: float, stream: torch.Generator | None = None) -> Tensor:
    """Fill a tensor with the ones and zeros that `bernoulli_` draws; in less time, where its draws are known."""
    if noise.device.type != "cpu" or not bernoulli_is_uniform():
        return noise.bernoulli_(chance, generator=stream)
    return torch.lt(torch.empty_like(noise, dtype=torch.float64).uniform_(generator=stream), chance, out=noise)


@cache
def bernoulli_is_uniform() -> bool:
    """Whether torch draws a one where a uniform number is below the chance; a build may have a generator of its own."""
    stream, like = torch.Generator(), torch.empty(64, 9)
    drawn = like.bernoulli_(0.3, generator=stream.manual_seed(1)).clone()
    with torch.inference_mode(False):
        uniform = torch.empty(64, 9, dtype=torch.float64).uniform_(generator=stream.manual_seed(1))
    return torch.equal(drawn, (uniform < 0.3).to(drawn))
