"""`arno quadratic`: simulate client selection on quadratics."""

from __future__ import annotations

from .parser import parser_of

ABOUT = """\
Settings and their defaults:
  num_users=30 frac=0.1       K clients, of which m = max(int(frac K), 1) are selected every round
  seltype=rand powd=null      rand, uniform, powd, cpowd, rpowd, adapowd, roundrobin; the number of candidates d
                              (default: 2m, for adapowd all clients)
  lr=2e-5 le=2 epochs=15000   learning rate, local steps, rounds
  dim=5 alpha=3 spd=false     dimension, exponent of the shares' power law, full matrices H_k
  seed=0 until=0.5            seed of all random numbers; share of the run after which adapowd's d is m
  rho=false samples=100       estimate the selection's skew, from this many selections per round
  out=null track=null         folder; trackers, such as mlflow
Commas and ranges make a sweep: seltype=rand,powd,adapowd powd=6,9,15 seed=0..19
"""


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("quadratic", ABOUT)
    parser.add_argument("--quiet", action="store_true", help="print only the folder")
    options = parser.settings(arguments)

    from ..runs.quadratic import run as study

    return study(options.overrides, options.quiet)
