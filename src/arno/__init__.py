"""Arno: an engine for federated optimisation under heterogeneous data. It simulates and compares methods.

>>> import arno
>>> result = arno.run("method=fedprox", "method.mu=0.1", rounds=5)    # doctest: +SKIP
>>> result.history["test_accuracy"].iloc[-1]                          # doctest: +SKIP

A model is a vector, and the updates of a cohort are a matrix. `Federation` runs a round. A method is a list of `Part`s,
which change the round.
"""

import os
from typing import TYPE_CHECKING, Any

from .errors import ArnoError
from .version import __version__

if TYPE_CHECKING:
    from .analysis.comparison import Comparison
    from .core.federation import Federation, Local
    from .core.method_part import Part
    from .core.table import ClientTable
    from .core.work import SGD, Result, Work
    from .data.sources.python import Data
    from .grids.compare import compare
    from .grids.tune import tune
    from .report.html import write_report
    from .runs.run import RunResult, resume, run

# OpenMP threads that wait for each other sleep. By default they test a variable without a pause, which takes several
# times the time of the work itself on a busy machine. OpenMP reads this variable once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

#: The modules of the public names. They are imported on first use, so that `import arno` takes little time.
_HOMES = {
    "Federation": "core.federation",
    "Local": "core.federation",
    "Part": "core.method_part",
    "ClientTable": "core.table",
    "SGD": "core.work",
    "Result": "core.work",
    "Work": "core.work",
    "Comparison": "analysis.comparison",
    "Data": "data.sources.python",
    "compare": "grids.compare",
    "RunResult": "runs.run",
    "resume": "runs.run",
    "run": "runs.run",
    "tune": "grids.tune",
    "write_report": "report.html",
}

__all__ = [
    "SGD",
    "ArnoError",
    "ClientTable",
    "Comparison",
    "Data",
    "Federation",
    "Local",
    "Part",
    "Result",
    "RunResult",
]
__all__ += ["Work", "__version__", "compare", "resume", "run", "tune", "write_report"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
