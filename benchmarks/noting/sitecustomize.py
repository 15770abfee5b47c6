"""Notes which modules of this repository a process imports: one name a line, in the file that ARNO_NOTES names.

Python imports a module of this name when it starts, if its folder is in PYTHONPATH. So the processes that a study
starts note their imports, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


class Noting:
    """A finder of modules that finds nothing: it notes the name, and the other finders find the module."""

    def __init__(self, notes: str) -> None:
        self._notes = notes
        benchmarks = Path(__file__).resolve().parents[1]
        self._own = {path.stem for folder in (benchmarks, benchmarks / "studies") for path in folder.glob("*.py")}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Note the name of a module that is about to be imported, if it is one of this repository."""
        if name.split(".")[0] == "arno" or name in self._own:
            with open(self._notes, "a", encoding="utf-8") as file:
                file.write(name + "\n")


if os.environ.get("ARNO_NOTES"):
    sys.meta_path.insert(0, Noting(os.environ["ARNO_NOTES"]))  # type: ignore[arg-type]
