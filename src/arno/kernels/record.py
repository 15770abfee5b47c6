"""Records what a network computes: the operations of torch in one forward pass.

The recording is below autograd and below Python. So `nn.ReLU()`, `F.relu(x)` and `x.relu_()` are the same operation,
and a user's own layer is recorded as the operations that it runs. An operation that changes a tensor in place is
recorded as an operation that returns a new tensor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

#: An output of an operation: the number of the operation, and the index of the output.
Ref = tuple[int, int]
#: Operations whose arguments other than tensors may depend on the number of samples.
SIZED = {
    "view", "_unsafe_view", "reshape", "expand", "slice", "split", "split_with_sizes", "native_group_norm", "new_empty",
}  # fmt: skip
#: Functions of tensors that a recording does not show: they read or write the memory of tensors, or change gradients.
UNSEEN = {
    "tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "apply_", "map_", "set_", "backward",
    "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_",
}  # fmt: skip

#: Functions that do not return the number of samples, and that run the same operations for all numbers above one.
BLIND = frozenset({
    "conv2d", "linear", "flatten", "relu", "relu_", "tanh", "tanh_", "sigmoid", "max_pool2d", "avg_pool2d",
})  # fmt: skip


class NotRecorded(Exception):
    """A network that cannot be recorded or has no program; the message is the reason."""


@dataclass(frozen=True)
class Value:
    """An argument that is a tensor: an output of an earlier operation, or a tensor of the graph by its name.

    The names: "input", the names of parameters, and "constant 0", "constant 1", ….
    """

    of: Ref | str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Operation:
    """One call of an operation.

    name: the name in torch's registry of operators, without the overload.
    args, kwargs: the arguments, with a `Value` in place of each tensor.
    shapes: the shapes of the outputs. strides: the strides of the first output.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[int, ...] = ()

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The arguments that are tensors, including those in lists."""
        return tuple(_values((*self.args, *self.kwargs.values())))


@dataclass(frozen=True)
class Graph:
    """The operations of a forward pass on some samples. output: the output of the network.

    constants: the tensors that are neither the input nor parameters, by name.
    blind: whether the code of the network called only functions that do not show the number of samples.
    """

    operations: tuple[Operation, ...]
    output: Value
    constants: dict[str, Tensor]
    blind: bool = False

    def structure(self) -> list[Any]:
        """The operations and their arguments, without the arguments that may depend on the number of samples."""
        return [
            (step.name, [v.of for v in step.values], [] if step.name in SIZED else _numbers((step.args, step.kwargs)))
            for step in self.operations
        ]


def record(module: nn.Module, x: Tensor) -> Graph:
    """Run a network on samples and record it; raises `NotRecorded` if the recording does not show all that it does."""
    recorder = Recorder(module, x)
    with Guard() as guard, recorder:
        out = module(x)
    if not isinstance(out, Tensor):
        raise NotRecorded("it returns something else than one tensor")
    if any(isinstance(node, BackwardCFunction) for node in _backward(out)):
        raise NotRecorded("it has a gradient of its own (torch.autograd.Function)")
    output = recorder.value(out)
    return Graph(tuple(_live(recorder.operations, output)), output, recorder.constants, guard.called <= BLIND)


class Guard(TorchFunctionMode):
    """Ends a recording if a network reads or changes tensors in a way that the recording does not show.

    called: the names of the functions of torch that the code of the network called, without those that got parameters
        only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.called = set[str]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, or end the recording."""
        name: str = func.__self__.__name__ if func.__name__ in ("__get__", "__set__") else func.__name__
        if name in UNSEEN or (name in ("data", "grad", "requires_grad") and func.__name__ == "__set__"):
            raise NotRecorded(f"it reads or changes tensors outside its operations ({name})")
        given = list(_tensors((args, kwargs or {})))
        if not given or not all(isinstance(each, nn.Parameter) for each in given):
            self.called.add(name)
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Records every operation that runs while it is active."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False; with True, torch imports its compiler, which takes a second."""
        return False

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.constants: dict[str, Tensor] = {}
        self._kept: list[Tensor] = [x]  # they are kept, so that no other tensor gets their ids
        self._known: dict[int, Ref | str] = {id(x): "input"}
        self._known |= {id(p): name for name, p in module.named_parameters()}
        self._given = {storage(t) for t in (x, *module.parameters(), *module.buffers())}
        self._memory = set(self._given)  # the memory of all tensors that are not constants
        self._stale: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and record it."""
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        given, named = _described(args, self.value), _described(kwargs, self.value)
        changed = self._changed(func, name, args)
        out = func(*args, **kwargs)
        outs = [out] if isinstance(out, Tensor) else list(out) if isinstance(out, tuple | list) else []
        if not outs or not all(isinstance(each, Tensor) for each in outs):
            raise NotRecorded(f"its computation depends on values of tensors ({name})")
        if changed is not None:
            self._stale |= {id(t) for t in self._kept if storage(t) == storage(changed) and t is not changed}
            name = name.removesuffix("_")
        self._kept += outs
        step = Operation(name, given, named, tuple(tuple(each.shape) for each in outs), outs[0].stride())
        if torch.Tag.nondeterministic_seeded not in func.tags and all(v.of in self.constants for v in step.values):
            self._constants(outs)
            return out
        self._memory |= {storage(each) for each in outs}
        for k, each in enumerate(outs):
            self._known[id(each)] = (len(self.operations), k)
        self.operations.append(step)
        return out

    def _constants(self, tensors: Sequence[Tensor]) -> None:
        """Note tensors as constants. A tensor that is computed from constants only is a constant, too."""
        for tensor in tensors:
            name = f"constant {len(self.constants)}"
            self._known[id(tensor)], self.constants[name] = name, tensor

    def value(self, tensor: Tensor) -> Value:
        """The origin of a tensor. A tensor that no recorded operation made is a constant."""
        if id(tensor) in self._stale:
            raise NotRecorded("it uses a tensor whose memory was changed in place")
        if id(tensor) not in self._known:
            if tensor.is_floating_point() and tensor.requires_grad:
                raise NotRecorded("it uses a tensor with a gradient that is no parameter")
            if storage(tensor) in self._memory:
                raise NotRecorded("it uses the memory of a tensor without its operations (.data)")
            self._constants([tensor])
            self._kept.append(tensor)
            self._given.add(storage(tensor))
        return Value(self._known[id(tensor)], tuple(tensor.shape))

    def _changed(self, func: Any, name: str, args: Sequence[Any]) -> Tensor | None:
        """The tensor that an operation changes in place, or None.

        Only the first argument may change; else the recording ends.
        """
        if not func._schema.is_mutable:
            return None
        written = [i for i, a in enumerate(func._schema.arguments) if a.alias_info and a.alias_info.is_write]
        if written != [0] or not name.endswith("_") or storage(args[0]) in self._given:
            raise NotRecorded(f"it changes its input, its parameters or its state ({name})")
        first: Tensor = args[0]
        return first


def storage(tensor: Tensor) -> int:
    """The memory of a tensor, as a number; a tensor and its views have the same number."""
    at: int = tensor.untyped_storage()._cdata
    return at


def _described(given: Any, value: Callable[[Tensor], Value]) -> Any:
    """Arguments with a `Value` in place of each tensor."""
    if isinstance(given, Tensor):
        return value(given)
    if isinstance(given, list | tuple):
        return type(given)(_described(each, value) for each in given)
    return {k: _described(v, value) for k, v in given.items()} if isinstance(given, dict) else given


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, list | tuple | dict):
        for each in given.values() if isinstance(given, dict) else given:
            yield from _tensors(each)


def _values(given: Any) -> Iterator[Value]:
    if isinstance(given, Value):
        yield given
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _values(each)


def _numbers(given: Any) -> list[str]:
    """The arguments that are not tensors, in their order, as text."""
    if isinstance(given, list | tuple):
        return [number for each in given for number in _numbers(each)]
    if isinstance(given, dict):
        return [number for each in given.values() for number in _numbers(each)]
    return [] if isinstance(given, Value) else [repr(given)]


def _backward(out: Tensor) -> Iterator[Any]:
    """The nodes of autograd's graph."""
    seen, queue = set[Any](), [out.grad_fn]
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            queue += [below for below, _ in node.next_functions]


def _live(operations: Sequence[Operation], output: Value) -> Iterator[Operation]:
    """The operations. `nothing` replaces each operation that the output does not need, so that the numbering stays."""
    needed, queue = set[int](), [output.of]
    while queue:
        at = queue.pop()
        if isinstance(at, tuple) and at[0] not in needed:
            needed.add(at[0])
            queue += [value.of for value in operations[at[0]].values]
    for i, step in enumerate(operations):
        if i in needed:
            yield step
        elif step.name in ("bernoulli", "rand", "randn", "rand_like", "randn_like"):
            raise NotRecorded("it draws random numbers that it does not use")
        else:
            yield Operation("nothing", (), {}, step.shapes)


@contextmanager
def draws_put_back() -> Iterator[None]:
    """Set the seed of torch's CPU stream to 0, so that a trial draws the same numbers in every process.

    At the end the random streams of torch's CPU, of Python and of NumPy are restored.
    """
    streams = torch.default_generator.get_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        torch.default_generator.manual_seed(0)
        yield
    finally:
        torch.default_generator.set_state(streams[0])
        random.setstate(streams[1])
        np.random.set_state(streams[2])  # noqa: NPY002
