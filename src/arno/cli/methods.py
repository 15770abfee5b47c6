"""`arno methods`: list the methods."""

from __future__ import annotations

import json

from ..errors import ArnoError
from . import COMMANDS
from .parser import parser_of


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("methods", COMMANDS["methods"], settings=False)
    parser.add_argument("name", nargs="?", help="show one method in full")
    parser.add_argument("--family", help="only the methods of a family, such as personal")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.name and options.family:
        raise ArnoError(f"arno methods {options.name} --family", "a name shows one method", "leave one of them out")

    from ..methods.descriptions import entries, entry
    from .listing import as_json, show_method, show_methods

    if options.json:
        chosen = [entry(options.name)] if options.name else entries(options.family)
        print(json.dumps(as_json([one.name for one in chosen]), indent=2, ensure_ascii=False))
    elif options.name:
        show_method(options.name)
    else:
        show_methods(options.family)
    return 0
