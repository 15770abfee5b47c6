"""A command imports what it runs and nothing else."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from arno.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stopped:
    assert stopped.code == 0
print(*sys.modules, file=sys.stderr)
"""


def imported(*arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stderr.split())


def test_a_run_imports_its_method_and_its_engine_and_no_other() -> None:
    small = ("rounds=1", "clients=3", "model=softmax", "data.limit=100", "--quiet")
    modules = imported("run", "method=scaffold", "engine=serial", *small)
    for room, wanted in (
        ("methods", {"scaffold", "panels"}),
        ("engines", {"serial"}),
        ("models", {"linear", "network", "python"}),
        ("data.sources", {"digits"}),
        ("report", set()),
        ("grids", set()),
        ("analysis", set()),
    ):
        assert {name.split(".")[-1] for name in modules if name.startswith(f"arno.{room}.")} == wanted
    assert not modules & {"ray", "sklearn", "scipy", "sympy", "pandas", "numba", "mlflow", "tensorboard"}
