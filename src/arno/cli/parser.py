"""The parser that every command uses."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ..errors import ArnoError


class Parser(argparse.ArgumentParser):
    """A parser of argparse whose errors are ArnoErrors: one line, exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Raise an ArnoError; `main` prints it."""
        raise ArnoError(self.prog, message, f"see {self.prog} --help")

    def settings(self, arguments: list[str]) -> argparse.Namespace:
        """Parse options and settings in any order; the error for an unknown option shows the form of a setting."""
        options, extra = self.parse_known_intermixed_args(arguments)
        if extra:
            key, _, value = extra[0].lstrip("-").partition("=")
            after = arguments[arguments.index(extra[0]) + 1 :]
            value = value or next((word for word in after[:1] if not word.startswith("-") and "=" not in word), "…")
            hint = f"a setting is written {key}={value}; see {self.prog} --help"
            raise ArnoError(f"{self.prog} {extra[0]}", "there is no such option", hint)
        return options


def parser_of(command: str, description: str, epilog: str = "", settings: bool = True) -> Parser:
    """The parser of one command; with `settings` it takes key=value arguments."""
    parser = Parser(
        prog=f"arno {command}",
        usage=f"arno {command} [key=value ...] [options]" if settings else None,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if settings:
        parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings")
    return parser
