"""`arno track`: send a run's records to a tracker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import COMMANDS
from .parser import parser_of


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("track", COMMANDS["track"], settings=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    trackers = "mlflow, tensorboard, wandb or FILE.py:CLASS; mlflow@URI names a server"
    parser.add_argument("--to", default="mlflow", help=trackers)
    parser.add_argument("--follow", action="store_true", help="continue until the run has ended")
    options = parser.parse_args(arguments)

    if options.follow and sys.platform != "win32":
        os.nice(10)  # the run has priority

    from ..tracking.send import send

    sent = send(options.run, options.to, options.follow)
    print(f"{sent} rounds sent")
    return 0
