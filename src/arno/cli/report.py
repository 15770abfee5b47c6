"""`arno report`: write one HTML file about runs."""

from __future__ import annotations

from pathlib import Path

from .parser import parser_of

ABOUT = """\
Writes one HTML file about runs: the table with intervals and paired differences; curves over rounds, local steps, bytes
and idealised parallel seconds; the classes, scores and participation of the clients; the drift of their updates; the
panels of the methods; the settings in which the runs differ; and the commands that repeat the runs. The file needs no
network and no other file.

RUN is the folder of a run or of a comparison. Runs that differ only in their seed form a group.
"""

EXAMPLES = """\
examples
  arno report demo                                      a comparison; writes demo/report.html
  arno report runs/a runs/b runs/c --out abc.html       some runs
  arno report demo --pdf                                also figures for a paper, in demo/figures
  arno run … eval.clients=true                          also records the scores of single clients
"""


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("report", ABOUT, EXAMPLES, settings=False)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run or of a comparison")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: report.html, in RUN if there is only one")
    parser.add_argument(
        "--png", action="store_true", help="also every picture as PNG, in the folder `figures` next to the file"
    )
    parser.add_argument("--pdf", action="store_true", help="also every picture as PDF, in the same folder")
    options = parser.parse_args(arguments)

    from ..analysis.comparison import Comparison, runs_in
    from ..report.html import write_report
    from ..report.paper_files import write_figures

    one = options.runs[0] if len(options.runs) == 1 else None
    found = Comparison.of([one] if one else [cell for run in options.runs for cell in runs_in(run)])
    path = options.out or (one or Path()) / "report.html"
    if one and not options.out:
        _refuse_odd(one, path)
    write_report(found, path)
    kinds = [kind for kind in ("png", "pdf") if getattr(options, kind)]
    if kinds:
        print(f"figures: {write_figures(found, path.parent / 'figures', kinds)}")
    print(path)
    return 0


def _refuse_odd(folder: Path, report: Path) -> None:
    """Refuse to write into a pipe, or through a link that leads out of the folder: somebody else may have made it."""
    from ..limits import regular
    from ..records.lock import refuse_link

    figures = report.parent / "figures"
    for path in (report, figures, *figures.glob("*")):
        refuse_link(folder, path)
        if path.exists() and not path.is_dir():
            regular(path)
