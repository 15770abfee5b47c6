"""Named factories. A setting on the command line is a keyword parameter of the factory it configures.

`method=fedprox method.mu=0.1` calls `fedprox(mu=0.1)`; the default, the type and the documentation of `mu` stand
in that function's signature and nowhere else. Methods, data sets, partitions, models and selections all work so.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from .errors import ArnoError, unknown

F = TypeVar("F", bound=Callable[..., Any])


class Registry:
    """The factories of one group (`method`, `data`, …), found in the modules of one package.

    decorator: how the sources register a factory. A module is imported when one of its factories is asked for: their
    names are found in the text of the sources.
    """

    def __init__(self, group: str, package: str, decorator: str = "") -> None:
        self.group, self.package, self.decorator = group, package, decorator or f"{group}s.register"
        self._factories: dict[str, Callable[..., Any]] = {}
        self._info: dict[str, dict[str, Any]] = {}

    def register(self, name: str, **info: Any) -> Callable[[F], F]:
        """Decorator: make a factory known by `name`; `info` is shown in listings (paper, formula, …)."""

        def add(factory: F) -> F:
            self._factories[name] = factory
            self._info[name] = info
            return factory

        return add

    def names(self) -> list[str]:
        """Every registered name, in alphabetical order."""
        return sorted({*self._homes, *self._factories})

    @cached_property
    def _homes(self) -> dict[str, str]:
        """The module that registers each name."""
        spec = importlib.util.find_spec(self.package)
        assert spec is not None
        if spec.submodule_search_locations is None:
            files = {self.package: Path(str(spec.origin))}
        else:
            found = (path for folder in spec.submodule_search_locations for path in Path(folder).glob("*.py"))
            files = {f"{self.package}.{path.stem}": path for path in found if path.stem != "__init__"}
        call = re.compile(rf"^@{re.escape(self.decorator)}\(\s*\"([^\"]+)\"", re.MULTILINE)
        return {name: module for module, path in files.items() for name in call.findall(path.read_text("utf-8"))}

    def info(self, name: str) -> Mapping[str, Any]:
        """The information given when `name` was registered; empty for a user's own factory."""
        if name == "custom":
            return {}
        self.get(name)
        return self._info[name]

    def get(self, name: str, target: str | None = None) -> Callable[..., Any]:
        """The factory called `name`; with `custom`, the user's own at `target` (`file.py:name` or `module:name`)."""
        if name == "custom":
            if not target:
                raise ArnoError(
                    f"{self.group}=custom without {self.group}.target",
                    "a custom factory is named by file or module",
                    f"add {self.group}.target=my_file.py:factory",
                )
            return load_target(target)
        if name not in self._factories and name in self._homes:
            importlib.import_module(self._homes[name])
        if name not in self._factories:
            raise unknown(self.group, name, [*self.names(), "custom"])
        return self._factories[name]

    def settings(self, name: str, target: str | None = None) -> dict[str, inspect.Parameter]:
        """What a user may set: the fields of a dataclass, or the keyword-only parameters of a function."""
        factory = self.get(name, target)
        parameters = inspect.signature(factory, eval_str=True).parameters.values()
        return {p.name: p for p in parameters if is_dataclass(factory) or p.kind is inspect.Parameter.KEYWORD_ONLY}

    def build(self, config: Mapping[str, Any], *arguments: Any) -> Any:
        """Call the factory that `config` names (`{"kind": …, settings}`) with the positional `arguments`."""
        settings = dict(config)
        name, target = settings.pop("kind"), settings.pop("target", None)
        return self.get(name, target)(*arguments, **settings)


_LOADED: dict[str, None] = {}


def loaded_targets() -> list[str]:
    """The users' own factories that this process has imported; a new worker process must import them too."""
    return list(_LOADED)


def load_target(target: str) -> Callable[..., Any]:
    """Import `package.module:attribute` or `path/to/file.py:attribute`."""
    where, colon, attribute = target.rpartition(":")
    if not colon:
        raise ArnoError(
            f"target {target!r}", "it must name a file or module and what to take from it", "write file.py:name"
        )
    if where.endswith(".py"):
        path = Path(where).expanduser().resolve()
        if not path.is_file():
            raise ArnoError(f"target {target!r}", f"there is no file {path}", "give a path relative to where you are")
        name = f"arno_target_{path.stem}_{crc32(str(path).encode()):08x}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
    else:
        name = where
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ArnoError(
                f"target {target!r}", f"cannot import {where}: {error}", "is it installed, or in this folder?"
            ) from error
    try:
        factory = getattr(sys.modules[name], attribute)
    except AttributeError:
        raise unknown(
            f"name in {where}", attribute, [n for n in vars(sys.modules[name]) if not n.startswith("_")]
        ) from None
    if not callable(factory):
        raise ArnoError(
            f"target {target!r}",
            f"{attribute} is a {type(factory).__name__}, not something to call",
            "name a function or class",
        )
    _LOADED[f"{path}:{attribute}" if where.endswith(".py") else target] = None
    return factory  # type: ignore[no-any-return]
