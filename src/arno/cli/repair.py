"""`arno repair`: rebuild what can be rebuilt of a damaged run."""

from __future__ import annotations

from pathlib import Path

from .parser import parser_of

ABOUT = """\
Rebuild what can be rebuilt of a run with damaged or missing files, and say what was done. Rounds whose records are lost
are computed again: the run goes back to the newest checkpoint before them, and arno resume continues from there. Every
file that is replaced stays beside the new one, with the suffix .damaged.
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
