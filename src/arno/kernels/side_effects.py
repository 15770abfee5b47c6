"""Finds out whether a forward pass changes state other than tensors; autograd computes such a network."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from pickle import dumps
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import ReferenceType

import numpy as np
from torch import Tensor, nn

from ..core.layout import parameter_hooks
from .record import NotRecorded

#: The functions of these packages are not examined.
KNOWN = sys.stdlib_module_names | {"torch", "numpy"}


class Held:
    """An object that is compared by identity; a tensor is compared by its version, too.

    While the object is held, no other object gets its id.
    """

    def __init__(self, value: Any) -> None:
        self.value, self.version = value, value._version if isinstance(value, Tensor) else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.value is other.value and self.version == other.version

    __hash__ = None  # type: ignore[assignment]


def hooked(module: nn.Module) -> bool:
    """Whether a layer or a parameter has hooks."""
    return any(hooks for part in module.modules() for hooks in _hooks(part))


def _hooks(part: nn.Module) -> Iterator[Mapping[Any, Any] | None]:
    yield from (parameter_hooks(p) for p in part.parameters(recurse=False))
    yield from (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)


def state(module: nn.Module) -> list[Any]:
    """A value that differs after a change of state: random streams, attributes, and the objects that functions name."""
    found: list[Any] = [random.getstate(), dumps(np.random.get_state())]  # noqa: NPY002
    seen = set[int]()
    for part in module.modules():
        own = {name: value for name, value in vars(part).items() if name not in ("_parameters", "_buffers", "_modules")}
        found.append({name: _frozen(value, seen) for name, value in own.items()})
        kinds = [kind for kind in type(part).__mro__ if not _is_known(kind.__module__)]
        of_kinds = [(name, value) for kind in kinds for name, value in vars(kind).items() if name[:2] != "__"]
        found += [(name, _frozen(value, seen)) for name, value in of_kinds]
    return found


def _frozen(value: Any, seen: set[int]) -> Any:
    """A value that differs after the given value has changed; raises `NotRecorded` if a change would not be visible."""
    if isinstance(value, FunctionType):
        return _named(value, seen)
    if isinstance(value, staticmethod | classmethod):
        return _frozen(value.__func__, seen)
    if isinstance(value, property):
        return _frozen(value.fget, seen)
    if isinstance(value, ModuleType | BuiltinFunctionType | ReferenceType | type | nn.Module | Tensor):
        return Held(value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dumps(value)
    except Exception:  # some objects cannot be pickled
        return _parts(value, seen)


def _parts(value: Any, seen: set[int]) -> Any:
    """The same for an object that cannot be pickled: the values of its parts."""
    if id(value) in seen:
        return Held(value)
    seen.add(id(value))
    if isinstance(value, dict):
        return {repr(name): _frozen(each, seen) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_frozen(each, seen) for each in value]
    try:
        held = vars(value)
    except TypeError:
        raise NotRecorded(f"it uses a {type(value).__name__}, whose state cannot be seen") from None
    return {name: _frozen(each, seen) for name, each in held.items()}


def _named(function: FunctionType, seen: set[int]) -> Any:
    """The values that a function can read by name: globals, members of modules, variables of enclosing functions."""
    if id(function) in seen or _is_known(function.__module__):
        return Held(function)
    seen.add(id(function))
    names, found = set(_names(function.__code__)), dict[str, Any]()
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        found[name] = _frozen(value, seen)
        if isinstance(value, ModuleType) and not _is_known(value.__name__):
            found |= {f"{name}.{inner}": _frozen(vars(value)[inner], seen) for inner in names & vars(value).keys()}
    for i, cell in enumerate(function.__closure__ or ()):
        try:
            found[f"cell {i}"] = _frozen(cell.cell_contents, seen)
        except ValueError:  # the cell is empty
            found[f"cell {i}"] = None
    return found


def _names(code: CodeType) -> Iterator[str]:
    """The names in a function and in the functions that it contains."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _is_known(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in KNOWN
