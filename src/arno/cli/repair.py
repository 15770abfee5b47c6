"""`arno repair`: rebuild the files of a damaged run, as far as possible."""

from __future__ import annotations

from pathlib import Path

from .parser import parser_of

ABOUT = """\
Rebuilds the damaged and missing files of a run, as far as possible, and prints what was done. If records of rounds are
lost, the run goes back to the newest checkpoint before these rounds, and arno resume computes the rounds again. Every
file that is replaced is kept in the same folder, with the suffix .damaged.
"""


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("repair", ABOUT, settings=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    path: Path = parser.parse_args(arguments).run

    from ..errors import ArnoError
    from ..records.lock import writing
    from ..records.repair import repair

    if not path.is_dir():
        raise ArnoError(f"{path}", "there is no such folder", "give the folder that arno run printed last")
    with writing(path, "a repair"):
        done = repair(path)
    for line in done:
        print(line)
    print(f"continue with: arno resume {path}" if done else "nothing is damaged")
    return 0
