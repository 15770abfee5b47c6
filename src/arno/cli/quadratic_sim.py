"""The command line of the power-of-choice study on quadratics, translated to `arno quadratic`.

    python quadratic_sim.py --num_users 30 --frac 0.1 --seltype powd --powd 9 --alpha 3 --lr 0.00002 --le 2 \\
        --epochs 15000 --dim 5

Every option is a setting of `arno quadratic` with the same name, the same meaning and the same default;
`arno quadratic --help` explains them. Options that the line above does not show (`--seed`, `--track mlflow`, …) are
Arno's own.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import NoReturn

from ..errors import ArnoError, one_line
from ..quadratic import Study
from ..runs.quadratic import OWN, studies
from .parser import Parser

#: The options: the settings of a simulation, and those of the command itself.
NAMES = (*(f.name for f in fields(Study)), *OWN)


def translate(arguments: Sequence[str]) -> list[str]:
    """The settings of `arno quadratic` that do what the arguments ask for.

    >>> translate(["--seltype", "powd", "--powd=9", "--lr", "2e-5"])
    ['seltype=powd', 'powd=9', 'lr=2e-5']
    """
    parser = Parser(prog="quadratic_sim.py", add_help=False, allow_abbrev=False)
    for name in NAMES:
        parser.add_argument(f"--{name}")
    given = vars(parser.parse_args(list(arguments)))
    words = [f"{name}={value}" for name, value in given.items() if value is not None]
    order = [word.lstrip("-").partition("=")[0] for word in arguments]
    return sorted(words, key=lambda word: order.index(word.partition("=")[0]))


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Translate the arguments, print the equivalent command, and run it."""
    from .. import cli

    arguments = list(sys.argv[1:] if argv is None else argv)
    if "-h" in arguments or "--help" in arguments:
        print(__doc__)
        print("options:", ", ".join(f"--{name}" for name in NAMES))
        sys.exit(0)
    try:
        words = translate(arguments)
        studies(words)
    except ArnoError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    print(shlex.join(["arno", "quadratic", *words]), flush=True)
    cli.main(["quadratic", *words])
