"""Named factories. A setting on the command line is a keyword parameter of the factory that it configures.

`method=fedprox method.mu=0.1` calls `fedprox(mu=0.1)`; the default, the type and the documentation of `mu` are
in that function alone. Methods, data sets, partitions, models and selections all work in this way.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from .errors import ArnoError, described, unknown
from .limits import place, shortened

F = TypeVar("F", bound=Callable[..., Any])


class Registry:
    """The factories of one group (`method`, `data`, …), found in the modules of one package.

    decorator: the decorator with which sources register a factory. The names of factories are found in the text of the
    sources; a module is imported when one of its factories is needed.
    """

    def __init__(self, group: str, package: str, decorator: str = "") -> None:
        self.group, self.package, self.decorator = group, package, decorator or f"{group}s.register"
        self._factories: dict[str, Callable[..., Any]] = {}
        self._info: dict[str, dict[str, Any]] = {}

    def register(self, name: str, **info: Any) -> Callable[[F], F]:
        """Decorator: register a factory under `name`. Listings show `info` (paper, formula, …)."""

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

    def info(self, name: str, target: str | None = None) -> Mapping[str, Any]:
        """The information with which `name` was registered.

        With `custom`: the information of the user's own factory at `target`; empty if it was not registered.
        """
        if name == "custom":
            factory = load_target(target) if target else None
            return next((self._info[known] for known, one in self._factories.items() if one is factory), {})
        self.get(name)
        return self._info[name]

    def get(self, name: str, target: str | None = None) -> Callable[..., Any]:
        """The factory called `name`; for `custom`, the user's own factory (`file.py:name` or `module:name`)."""
        if name == "custom":
            if not target:
                raise ArnoError(
                    f"{self.group}=custom without {self.group}.target",
                    "target names the file or module of your own factory",
                    f"add {self.group}.target=my_file.py:factory",
                )
            return load_target(target)
        if name not in self._factories and name in self._homes:
            importlib.import_module(self._homes[name])
        if name not in self._factories:
            listed = {"method": "arno methods", "data": "arno data", "part": "arno methods compose"}.get(self.group)
            raise unknown(self.group, name, [*self.names(), "custom"], f"{listed} lists them" if listed else "")
        return self._factories[name]

    def settings(self, name: str, target: str | None = None) -> dict[str, inspect.Parameter]:
        """The settings of a factory: the fields of a dataclass, or the keyword-only parameters of a function."""
        factory = self.get(name, target)
        parameters = inspect.signature(factory, eval_str=True).parameters.values()
        return {p.name: p for p in parameters if is_dataclass(factory) or p.kind is inspect.Parameter.KEYWORD_ONLY}

    def build(self, config: Mapping[str, Any], *arguments: Any) -> Any:
        """Call the factory that `config` names (`{"kind": …, settings}`) with the positional `arguments`."""
        settings = dict(config)
        name, target = settings.pop("kind"), settings.pop("target", None)
        return self.get(name, target)(*arguments, **settings)


_LOADED: dict[str, None] = {}
#: The standard library: its functions are not factories of Arno's objects, and a call by mistake could do damage.
STANDARD = frozenset({*sys.stdlib_module_names, *sys.builtin_module_names})
#: Modules of release 0.1 that a user's own file may import, and where their names are now.
MOVED = {
    "arno.core.part": "arno.core.method_part (Part: also in arno)",
    "arno.core.drawing": "arno.core.selection_draws",
    "arno.core.local": "arno.core.local_sgd",
    "arno.core.values": "arno.core.per_client",
    "arno.experiment": "arno.runs, arno.config, arno.analysis and arno.grids (run, resume, compare: also in arno)",
    "arno.methods.window": "arno.methods.sub_models",
    "arno.problems.classification": "arno.problems.supervised",
    "arno.report.panel": "arno.methods.panels",
    "arno.report.statistics": "arno.analysis.statistics",
    "arno.selection": "arno.client_selection",
}


def loaded_targets() -> list[str]:
    """The user's own factories that this process has imported; a new worker process must import them, too."""
    return list(_LOADED)


def load_target(target: str) -> Callable[..., Any]:
    """Import `package.module:attribute` or `path/to/file.py:attribute`; the standard library is refused."""
    where, colon, attribute = target.rpartition(":")
    what = f"target {shortened(target)!r}"
    if not colon:
        raise ArnoError(what, "it must name a file or module, and a name in it", "write file.py:name")
    if where.endswith(".py"):
        path = Path(os.path.realpath(place(where))) if "\0" not in where else Path(where)
        name = _import_file(path, what)
    else:
        name = _import_module(where, what)
    try:
        factory = getattr(sys.modules[name], attribute)
    except AttributeError:
        known = [n for n in vars(sys.modules[name]) if not n.startswith("_")]
        raise unknown(f"name in {where}", shortened(attribute), known) from None
    if not callable(factory):
        rule = f"{attribute} is a {type(factory).__name__}, which cannot be called"
        raise ArnoError(what, rule, "name a function or class")
    if inspect.isroutine(factory) or inspect.isclass(factory):
        _refuse_standard(str(factory.__module__), what)
    _LOADED[f"{path}:{attribute}" if where.endswith(".py") else target] = None
    return factory  # type: ignore[no-any-return]


def _refuse_standard(module: str, what: str) -> None:
    """Refuse a function of the standard library, such as os:system."""
    if module.partition(".")[0] in STANDARD:
        rule = f"{module} is a module of the standard library and has no factory"
        raise ArnoError(what, rule, "name a Python file or a module of your own")


def _import_file(path: Path, what: str) -> str:
    """Import a Python file once; return the name of its module."""
    if not os.path.isfile(path):
        rule = f"there is no file {shortened(path)}"
        raise ArnoError(what, rule, "give a path relative to the working directory")
    name = f"arno_target_{path.stem}_{crc32(str(path).encode()):08x}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, ModuleNotFoundError):
                _refuse_moved(error, what)
            if isinstance(error, Exception | SystemExit):
                raise broken(what, "importing it failed", error) from error
            raise
    return name


def broken(what: str, rule: str, error: BaseException) -> ArnoError:
    """The error for a user's own code that raises."""
    if isinstance(error, ArnoError):
        return error
    return ArnoError(what, f"{rule}: {described(error)}", "correct the code; --debug shows the traceback")


def _import_module(name: str, what: str) -> str:
    """Import a module by its name; return this name."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ArnoError(what, f"{shortened(name)!r} is not a name of a module", "write file.py:name or module:name")
    _refuse_standard(name, what)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        _refuse_moved(error, what)
        rule = f"cannot import {shortened(name)}: {shortened(error)}"
        raise ArnoError(what, rule, "install it, or start arno in the folder that holds it") from error
    except (Exception, SystemExit) as error:
        raise broken(what, "importing it failed", error) from error
    return name


def _refuse_moved(error: ModuleNotFoundError, what: str) -> None:
    """Refuse own code that imports a module of release 0.1 which has another name now."""
    if error.name in MOVED:
        raise ArnoError(what, f"{error.name} is now {MOVED[error.name]}", "change the import") from error
