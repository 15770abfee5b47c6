"""`arno conform`: replay conformance cases."""

from __future__ import annotations

import json
import sys
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import ArnoError
from . import COMMANDS
from .parser import parser_of


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("conform", COMMANDS["conform"], settings=False)
    parser.add_argument("cases", nargs="*", type=Path, metavar="CASE", help="an .npz file, or a folder of such files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--backend", default="serial", help="the engine; default: serial")
    options = parser.parse_args(arguments)

    from ..conform import PACKAGED, implemented, replay

    cases = [case for given in options.cases for case in in_folder(given)]
    cases = cases or [case for case in sorted(PACKAGED.glob("*.npz")) if implemented(case)]
    outcomes, refused = [], 0
    for case in cases:
        try:
            outcome = replay(case, options.backend)
        except ArnoError as error:
            if len(cases) == 1:
                raise
            refused += 1
            print(f"{case.stem:<36} refused: {error}", file=sys.stderr)
            continue
        outcomes.append(outcome)
        if not options.json:
            print(f"{outcome.name:<36} {outcome.error:.3e}  {'ok' if outcome.ok else 'FAIL'}", flush=True)
    if options.json:
        rows: list[dict[str, Any]] = [
            {"name": o.name, "error": o.error if isfinite(o.error) else None, "tolerance": o.tolerance, "ok": o.ok}
            for o in outcomes
        ]
        print(json.dumps(rows, indent=2, allow_nan=False))
    if not all(outcome.ok for outcome in outcomes):
        return 1
    return 2 if refused and options.cases else 0


def in_folder(given: Path) -> list[Path]:
    """The cases in a folder; for a file, the file itself."""
    if not given.is_dir():
        return [given]
    if found := sorted(given.glob("*.npz")):
        return found
    raise ArnoError(f"{given}", "the folder holds no .npz file", "give a case, or a folder of cases")
