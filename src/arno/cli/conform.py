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
    parser.add_argument("cases", nargs="*", type=Path, metavar="CASE", help=".npz files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--backend", default="serial", help="replay on this engine")
    options = parser.parse_args(arguments)

    from ..conform import PACKAGED, implemented, replay

    cases = options.cases or [case for case in sorted(PACKAGED.glob("*.npz")) if implemented(case)]
    outcomes = []
    for case in cases:
        try:
            outcome = replay(case, options.backend)
        except ArnoError as error:
            if options.cases:
                raise
            print(f"{case.stem:<36} refused by engine {options.backend}: {error}", file=sys.stderr)
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
    return 0 if all(outcome.ok for outcome in outcomes) else 1
