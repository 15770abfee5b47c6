"""`arno ui`: a local web page about a folder of runs."""

from __future__ import annotations

from pathlib import Path

from .parser import parser_of

ABOUT = """\
Serves a page about all runs below FOLDER (default: the current folder) on this machine: the list with conditions, live
curves, runs side by side, single clients, ranks, searches, logs, stop and resume, reports. Prints the address of the
page. The address contains a token; without it, the server shows nothing. Ctrl-C ends the server; runs continue.
"""

EXAMPLES = """\
examples
  arno ui                                               opens a browser
  arno ui runs --port 8000 --no-browser                 then, on another machine: ssh -L 8000:127.0.0.1:8000 HOST
"""


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = parser_of("ui", ABOUT, EXAMPLES, settings=False)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="FOLDER")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    help_host = "listen on this address instead of 127.0.0.1; anyone who reaches it and has the token sees everything"
    parser.add_argument("--host", default="127.0.0.1", help=help_host)
    options = parser.parse_args(arguments)

    from ..errors import ArnoError, need

    if not options.host:
        raise ArnoError("--host ''", "an empty address is every address of this machine", "try --host 127.0.0.1")

    try:
        import starlette
        import uvicorn
    except ImportError:
        raise need("ui", "starlette or uvicorn") from None
    del starlette, uvicorn

    from ..ui.server import serve

    serve(options.folder, options.host, options.port, browser=not options.no_browser)
    return 0
