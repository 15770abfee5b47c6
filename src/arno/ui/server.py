"""`arno ui`: the server of the live view. Only this machine can reach it, unless `--host` is given."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ..analysis.details import log
from ..analysis.run_entry import Entry
from ..analysis.run_filters import ordered, parse, select
from ..errors import ArnoError, named
from ..report.html import write_report
from . import views
from .control import Control
from .guard import HEADERS, Guard, own_names
from .patience import Patient
from .watcher import PAUSE, SHARE, Watcher, public

#: A report runs its own script in an origin of its own, so it cannot send requests to this server.
SANDBOX = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)
#: How many more times the files of a running run are read before an error is reported.
TRIES = 4
#: Libraries are imported when the first list has been sent, or after this many seconds.
LATER = 5.0
#: The libraries that views need; to import them takes a second or more.
LIBRARIES = ("torch", "pandas", "pyarrow.parquet", "scipy.stats")
#: For each address: the package, the file and its type.
STATIC = {
    "/page.js": ("arno.ui", "page.js", "text/javascript"),
    "/page.css": ("arno.ui", "page.css", "text/css"),
    "/charts.js": ("arno.report", "charts.js", "text/javascript"),
    "/report.css": ("arno.report", "report.css", "text/css"),
}


class View:
    """The answers of the server about one folder."""

    def __init__(self, folder: Path) -> None:
        self.watcher, self.control = Watcher(folder), Control()
        self._list_sent = threading.Event()

    def read_ahead(self) -> None:
        """Read the folder, then import what views need. An error is reported when the page asks for the list."""
        with suppress(ArnoError, OSError):
            self.watcher.look()
        self._list_sent.wait(LATER)
        for name in LIBRARIES:
            import_module(name)

    def routes(self) -> list[Route]:
        """Every address that is answered."""
        return [
            Route("/", self.page),
            *(Route(path, self.static) for path in STATIC),
            Route("/api/list", self.listed),
            Route("/api/view", self.view),
            Route("/events", self.events),
            Route("/report", self.report),
            Route("/api/stop", self.stop, methods=["POST"]),
            Route("/api/resume", self.resume, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """The page itself; it holds no data."""
        return HTMLResponse(files("arno.ui").joinpath("page.html").read_text(encoding="utf-8"))

    async def static(self, request: Request) -> Response:
        """A file of this package."""
        package, name, kind = STATIC[request.url.path]
        return Response(files(package).joinpath(name).read_bytes(), media_type=kind)

    async def listed(self, request: Request) -> Response:
        """The entries that the conditions choose, in order."""
        words = request.query_params.get("words", "").split()
        key, cells = request.query_params.get("sort", "started"), "cells" in request.query_params
        reverse = "reverse" in request.query_params

        def found() -> dict[str, Any]:
            entries = self.watcher.look(fresh=True)
            chosen = ordered(select(entries, parse(words), self.watcher.catalogue.folder, cells), key, reverse)
            where = str(self.watcher.catalogue.folder.resolve())
            inside = [entry for entry in entries.values() if entry.part_of not in ("", ".")]
            folded = 0 if cells or any(entry in inside for entry in chosen[:1]) else len(inside)
            listed = [short(entry) for entry in chosen]
            return {"folder": where, "all": len(entries) - folded, "folded": folded, "entries": listed}

        answer = await answered(found)
        self._list_sent.set()
        return answer

    async def view(self, request: Request) -> Response:
        """Everything that the page shows of some runs."""

        def found() -> dict[str, Any]:
            names, entries = self.named(request)
            try:
                shown = steady(lambda: views.view(self.watcher.paths(names), entries), entries)
            except Exception as error:  # the files of a run may hold anything
                return {"error": said(error)}
            return {**shown, "entries": [short(entry) for entry in entries]}

        return await answered(found)

    def named(self, request: Request) -> tuple[list[str], list[Entry]]:
        """The runs that a request names; an error if the folder holds no such run."""
        asked = list(dict.fromkeys(request.query_params.getlist("run")))
        names = self.watcher.called(asked)
        known = self.watcher.look(names)
        if not names or any(name not in known for name in names):
            known = self.watcher.look(fresh=True)
            names = self.watcher.called(asked)
        missing = [name for name in names if name not in known]
        if missing or not names:
            raise ArnoError(", ".join(missing) or "no run", "there is no such run in this folder", "look at the list")
        return names, [known[name] for name in names]

    async def events(self, request: Request) -> Response:
        """A stream of changes: entries of the list, curves and log of the open runs, processes that failed."""
        return StreamingResponse(self.changes(request), media_type="text/event-stream")

    async def changes(self, request: Request) -> AsyncIterator[str]:
        """The stream of `events`. Curves are computed in another thread, which takes at most a tenth of the time."""
        asked, before, drawn = request.query_params.getlist("run"), dict[str, Entry](), ""
        drawing: asyncio.Task[dict[str, Any]] | None = None
        began = again = 0.0
        yield "retry: 1000\n\n"
        while not await request.is_disconnected():
            with suppress(ArnoError, OSError):
                names = self.watcher.called(asked)
                entries = await run_in_threadpool(self.watcher.look, names)
                changed = [entry for name, entry in entries.items() if before.get(name) is not entry]
                gone = [public(name) for name in before if name not in entries]
                if before and (changed or gone):
                    yield event("runs", {"changed": [short(entry) for entry in changed], "gone": gone})
                before = dict(entries)
                if failed := self.control.failures():
                    yield event("failed", {public(name): text for name, text in failed.items()})
                if not drawing and time.monotonic() >= again and names and all(name in entries for name in names):
                    now = str([self.signature(name) for name in names])
                    if now != drawn:
                        drawn, began = now, time.monotonic()
                        drawing = asyncio.create_task(run_in_threadpool(self.live, names, entries))
                        await asyncio.wait([drawing], timeout=PAUSE / TRIES)
                if drawing and drawing.done():
                    yield event("curves", drawing.result())
                    drawing, again = None, time.monotonic() + SHARE * (time.monotonic() - began - PAUSE)
            await asyncio.sleep(PAUSE)

    def signature(self, name: str) -> Any:
        """A value that changes when a run has recorded something."""
        found = []
        for file in ("metrics.jsonl", "log.txt"):
            with suppress(OSError):
                about = (self.watcher.catalogue.path(name) / file).lstat()
                found.append((about.st_mtime_ns, about.st_size))
        entry = self.watcher.catalogue.entries.get(name)
        return found, entry and (entry.status, entry.round)

    def live(self, names: list[str], entries: dict[str, Entry]) -> dict[str, Any]:
        """The curves and the log of the runs that are open."""
        paths = self.watcher.paths(names)
        found: dict[str, Any] = {"log": log(paths[0]) if len(paths) == 1 else []}
        try:
            return found | views.curves(paths, [entries[name] for name in names])
        except Exception as error:  # its files may belong to different rounds
            return found | {"error": said(error)}

    async def report(self, request: Request) -> Response:
        """A new report; a report file in the folder is not shown."""

        def written() -> str:
            names, entries = self.named(request)
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "report.html")
                steady(lambda: write_report(views.compared(self.watcher.paths(names), entries), file), entries)
                return file.read_text(encoding="utf-8")

        try:
            text = await run_in_threadpool(written)
        except Exception as error:  # the files of a run may hold anything
            return PlainTextResponse(public(f"no report: {said(error)}"), 422)
        return HTMLResponse(text, headers={"content-security-policy": SANDBOX, **HEADERS})

    async def stop(self, request: Request) -> Response:
        """Stop a run."""
        return await self.act(request, self.control.stop)

    async def resume(self, request: Request) -> Response:
        """Continue a run."""
        return await self.act(request, self.control.resume)

    async def act(self, request: Request, action: Callable[[Path, Entry], str]) -> Response:
        """Stop or resume one run."""

        def done() -> dict[str, str]:
            names, entries = self.named(request)
            return {"said": action(self.watcher.paths(names)[0], entries[0])}

        return await answered(done)


def short(entry: Entry) -> dict[str, Any]:
    """An entry for the page."""
    shown = {key: value for key, value in entry.to_json().items() if key not in ("scores", "cells")}
    shown |= {"name": public(entry.name), "part_of": public(entry.part_of)}
    return shown | {"shown": entry.declared().show(entry.score), "of_cells": bool(entry.cells)}


def event(name: str, values: Any) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(values)}\n\n"


def steady(work: Callable[[], Any], entries: Sequence[Entry]) -> Any:
    """The result of some work on runs. If a run is running, errors are tried again: its files may not agree yet."""
    for _ in range(TRIES if any(entry.status == "running" for entry in entries) else 0):
        with suppress(ArnoError, OSError):
            return work()
        time.sleep(PAUSE / TRIES)
    return work()


async def answered(work: Callable[[], Any]) -> Response:
    """The result of some work in a thread, or its error on one line.

    An error has no error status, because browsers would print a message on their console. A wrong condition, or a run
    that was just removed, is nothing unusual.
    """
    try:
        found = await run_in_threadpool(work)
    except (ArnoError, OSError) as error:
        found = {"error": str(error)}
    return Response(json.dumps(found), media_type="application/json")


def said(error: Exception) -> str:
    """One line that says why something cannot be shown."""
    return str(error) if isinstance(error, ArnoError | OSError) else f"it cannot be read ({named(error)})"


def application(folder: Path, token: str, hosts: set[str], cookie: str) -> Guard:
    """The server as an ASGI application. It begins to read the folder now, so that the first request waits less."""
    view = View(folder)
    threading.Thread(target=view.read_ahead, daemon=True).start()
    return Guard(Starlette(routes=view.routes()), token, hosts, cookie)


def serve(folder: Path, host: str = "127.0.0.1", port: int = 0, browser: bool = True) -> None:
    """Serve the live view of a folder until Ctrl-C; print its address. port 0: any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # so that the printed address answers at once
    except (OSError, OverflowError) as error:
        listening.close()
        raise ArnoError(f"{host}:{port}", f"cannot be used ({error})", "choose another --port or --host") from error
    port, token = listening.getsockname()[1], secrets.token_urlsafe(24)
    app = application(folder, token, own_names(host, port), f"arno-{port}")
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, f"[{host}]" if ":" in host else host)
    address = f"http://{name}:{port}/?token="
    print(f"{address}{token}\nCtrl-C ends the view; runs go on.", flush=True)
    if browser:
        threading.Timer(0.3, webbrowser.open, [address + app.ticket()]).start()
    quiet = {"log_level": "error", "server_header": False, "lifespan": "off", "ws": "none"}
    config = uvicorn.Config(app, http=Patient, timeout_graceful_shutdown=1, **quiet)  # type: ignore[arg-type]
    with listening, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
