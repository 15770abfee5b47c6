"""`arno methods`: list the methods."""

from __future__ import annotations

from . import COMMANDS
from .parser import parser_of


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("methods", COMMANDS["methods"], settings=False)
    parser.add_argument("name", nargs="?", help="show one method in full")
    options = parser.parse_args(arguments)

    from .listing import show_method, show_methods

    if options.name:
        show_method(options.name)
    else:
        show_methods()
    return 0
