"""Networks of a Python program: `arno.run(model=net)`, with a module, a class, or a function that returns a module."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from textwrap import dedent
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..core.layout import copied, named_tensors
from ..errors import ArnoError
from ..limits import shortened
from . import models

Network = nn.Module | Callable[..., nn.Module]
#: The networks that were given in this process, by the name that configurations use.
_GIVEN: dict[str, Network] = {}
REMEDY = "give the network again: arno.resume(folder, model=net)"


@models.register("python")
def python(shape: Sequence[int], outputs: int, *, network: str | None = None) -> nn.Module:
    """A network that a Python program gave: `arno.run(model=net)`.

    network: its name and fingerprint; a run continues only if the same network is given again.
    """
    if network is None:
        raise ArnoError("model=python", "this network is given in Python", "write arno.run(model=net)")
    if network not in _GIVEN:
        raise ArnoError(f"model.network = {network}", "this network is not in this process", REMEDY)
    given = _GIVEN[network]
    if isinstance(given, nn.Module):
        return copied(given)
    what = f"model={_name(given)}"
    try:
        made = _made(given, shape, outputs)
    except ArnoError:
        raise
    except Exception as error:  # the user's code can raise any exception
        why = str(error).splitlines()[0] if str(error) else "no reason is given"
        rule = f"it cannot be made ({type(error).__name__}: {why})"
        raise ArnoError(what, rule, "correct its code, or write model=lambda: Net(…)") from error
    if not isinstance(made, nn.Module):
        rule = f"it returned an object of type {type(made).__name__}, not a torch.nn.Module"
        raise ArnoError(what, rule, "return the network")
    return _usable(what, made)


def give(network: Network) -> Mapping[str, str]:
    """Keep a network for the runs of this process; returns the settings that name it.

    >>> settings = give(nn.Linear(4, 2))
    >>> settings["kind"], settings["network"].split("-")[0], settings["network"] in _GIVEN
    ('python', 'Linear', True)
    """
    kept = _usable(f"model={_name(network)}", network) if isinstance(network, nn.Module) else network
    name = f"{_name(network)}-{fingerprint(network)}"
    _GIVEN[name] = kept
    return {"kind": "python", "network": name}


def _usable(what: str, module: nn.Module) -> nn.Module:
    """A copy of a module; an error if it cannot be copied, if its weights have no values, or if it is compiled."""
    tensors = [tensor for _, tensor in named_tensors(module)]
    if any(map(is_lazy, tensors)):
        rule = "a layer does not know its number of inputs yet"
        raise ArnoError(what, rule, "compute the outputs of one batch with it first")
    if any(tensor.is_meta for tensor in tensors):
        raise ArnoError(what, "its weights are on the device meta and have no values", "make it on the CPU")
    if isinstance(module, torch.jit.ScriptModule):
        raise ArnoError(what, "it is a compiled ScriptModule", "give the module that was compiled")
    try:
        return copied(module)
    except Exception as error:  # attributes of a user's module can raise any exception
        rule = f"it cannot be copied ({shortened(str(error).splitlines()[0], 80)})"
        remedy = "make its weights parameters: torch.nn.utils.parametrizations.weight_norm, prune.remove(…)"
        raise ArnoError(what, rule, remedy) from error


def is_given(name: str | None) -> bool:
    """Whether this process has the network of a configuration."""
    return name in _GIVEN


def starts_from_weights(name: str | None) -> bool:
    """Whether the network of a configuration is a module. Then every run starts from the weights of this module."""
    return isinstance(_GIVEN.get(str(name)), nn.Module)


def fingerprint(network: Network) -> str:
    """12 hexadecimal digits that change with the source of a network; for a module, also with its layers and weights.

    Comments and white space of the source have no effect.
    """
    digest = blake2b(digest_size=6)
    kind = type(network) if isinstance(network, nn.Module) else network
    digest.update(f"{_name(network)}\n{_source(kind)}\n".encode())
    if isinstance(network, nn.Module):
        digest.update(repr(network).encode())
        for name, tensor in named_tensors(network):
            array = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
            digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _source(kind: Any) -> str:
    """The source of a class or function as a syntax tree; empty if Python does not have the source."""
    try:
        return ast.dump(ast.parse(dedent(inspect.getsource(kind))))
    except (OSError, TypeError, SyntaxError):
        return ""


def _name(network: Network) -> str:
    """The name of the class or function."""
    kind = network if inspect.isclass(network) or inspect.isroutine(network) else type(network)
    return "".join(letter for letter in kind.__name__ if letter.isalnum() or letter == "_") or "network"


def _made(factory: Callable[..., nn.Module], shape: Sequence[int], outputs: int) -> Any:
    """The network that a class or function makes, without arguments or with the shape of a sample and the outputs."""
    parameters = inspect.signature(factory).parameters
    given = {"shape": tuple(shape), "outputs": outputs}
    taken = {name: value for name, value in given.items() if name in parameters}
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [name for name, one in parameters.items() if one.default is one.empty and one.kind not in several]
    if len(needed) == 2 and not taken:
        return factory(*given.values())
    if lacks := [name for name in needed if name not in taken]:
        what = f"model={_name(factory)}: its argument{'s' * (len(lacks) > 1)} {', '.join(lacks)}"
        rule = "a network is made without arguments, or with the shape of a sample and the number of outputs"
        raise ArnoError(what, rule, f"write model=lambda: {_name(factory)}(…)")
    return factory(**taken)
