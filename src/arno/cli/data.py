"""`arno data`: list the data sets, describe a partition."""

from __future__ import annotations

from pathlib import Path

from ..errors import unknown
from .parser import parser_of


def main(arguments: list[str]) -> int:
    """Run the command."""
    about = "`arno data` lists the data sets; `arno data show data=… partition=…` describes a partition and draws it."
    parser = parser_of("data", about)
    parser.usage = "arno data [show key=value ...] [options]"
    picture = "the file of the picture; default: partition.png"
    parser.add_argument("--out", type=Path, default=Path("partition.png"), metavar="FILE", help=picture)
    options = parser.settings(arguments)

    from .listing import show_data, show_partition

    if not options.overrides:
        show_data()
        return 0
    verb, *overrides = options.overrides
    if verb != "show":
        raise unknown("word after `arno data`", verb, ["show"], "write arno data show")
    show_partition(overrides, options.out)
    return 0
