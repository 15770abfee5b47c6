"""`arno resume`: continue a run that was stopped or killed."""

from __future__ import annotations

from .parser import parser_of
from .print_result import finish

ABOUT = """\
Continues a run from its last checkpoint. These settings may change: rounds, eval.…, checkpoint.…, track, out, state,
on_client_error, engine.address, engine.timeout and engine.workers. Every other change is refused.
"""


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("resume", ABOUT)
    parser.add_argument("--previous", action="store_true", help="continue from the checkpoint before the last one")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import your own files that the run names, although you did not start this run on this machine",
    )
    parser.add_argument("--quiet", action="store_true", help="print only the run's folder")
    parser.usage = "arno resume RUN [key=value ...] [options]"
    options = parser.settings(arguments)
    if not options.overrides:
        parser.error("give the run's folder")
    path, *overrides = options.overrides

    from ..runs.progress import choose
    from ..runs.run import resume

    progress, previous, trust = choose(options.quiet), options.previous, options.trust
    return finish(lambda: resume(path, *overrides, progress=progress, previous=previous, trust=trust), options.quiet)
