"""Measures how long requests take, and finds workers that take too long.

Only the time in which the server waits for answers counts. So no worker is lost if the whole run is suspended (Ctrl-Z)
and continued later, or if the server itself is busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from ..core.engine import Caller
from ..errors import ArnoError
from .transport import Lost, Piece, Request, Transport

#: The default of `engine.timeout`, in seconds. Some clients train for hours, and the limit must not end their workers.
TIMEOUT = 14_400.0
#: Seconds that are added to the limit of a worker that has not started yet.
START = 120.0
#: After this many seconds the user is told that a worker does not answer, unless its request was expected to take long.
SILENCE = 600.0
#: Seconds for a request after the user has stopped the run: if its duration can be estimated, and if it cannot.
HURRY, HURRY_UNKNOWN = 10.0, 30.0
#: What a user can do about a client that takes too long several times.
REMEDY = "does it hang? set engine.timeout higher if it only needs more time"
#: A request is late if it takes this many times its estimate.
MANY = 4


@dataclass
class Mark:
    """When a worker was first seen at a request. up: whether the worker had started.

    told: whether the user was told.
    """

    request: Request
    up: bool
    since: float
    told: bool = False


class Timing:
    """Measures requests and waits. timeout: seconds that a worker may take for a request; 0: no limit.

    pace: seconds per step of training, a moving average; 0 before the first answer. wait: the longest time of one wait,
    in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout, self.pace = checked(timeout), 0.0
        self.wait = max(0.05, min(1.0, timeout / 8)) if timeout else 1.0
        self._longest: dict[type[Request], float] = {}  # of requests other than pieces
        self._waited = self._checked = 0.0  # seconds spent in waits, and how many at the last check
        self._marks: dict[Any, Mark] = {}

    def trained(self, seconds: float, steps: int) -> None:
        """Note that a worker has trained this many steps in this many seconds."""
        pace = seconds / max(1, steps)
        self.pace = 0.8 * self.pace + 0.2 * pace if self.pace else pace

    def asked(self, requests: Iterable[Request], began: float) -> None:
        """Note that all these requests are answered; the first one was sent at `began`, a value of `monotonic`."""
        for kind in set(map(type, requests)):
            self._longest[kind] = max(self._longest.get(kind, 0.0), monotonic() - began)

    def too_long(self, piece: Piece) -> bool:
        """Whether to send each row of a piece separately: it may exceed the time limit, or no pace is known yet."""
        return bool(self.timeout) and (not self.pace or self.pace * piece.steps > self.timeout / MANY)

    def waits(self, wait: Callable[[float], tuple[list[Request], list[Lost]]]) -> tuple[list[Request], list[Lost]]:
        """Wait once, and add the time to the time spent in waits."""
        began = monotonic()
        found = wait(self.wait)
        self._waited += min(monotonic() - began, self.wait)  # this process itself may have been stopped for hours
        return found

    def late(self, transport: Transport[Any], caller: Caller) -> list[Lost]:
        """End the workers that have worked on one request for too long, and return what they had to do."""
        if self._waited < self._checked + self.wait:
            return []
        lost, marks = list[Lost](), self._marks
        self._checked, self._marks = self._waited, {}
        for worker, request, up in transport.first():
            mark = marks.get(worker)
            if mark is None or mark.request is not request or mark.up != up:
                mark = Mark(request, up, self._waited)
            silent = self._waited - mark.since
            if silent >= self.limit(caller.stopping, request.units, self._estimate(request)) + (0.0 if up else START):
                why = self._reason(request, silent)
                lost += [each._replace(remedy=REMEDY) for each in transport.end(worker, why)]
                continue
            if not mark.told and silent >= max(SILENCE, MANY * self._estimate(request)):
                mark.told = True
                caller.say(f"{request}: no answer for {silent:.0f} s {request.doing}")
            self._marks[worker] = mark
        return lost

    def limit(self, stopping: bool, units: int = 1, estimate: float = 0.0) -> float:
        """The time limit in seconds of a request with this many units.

        stopping: whether the user has stopped the run. estimate: how many seconds the request should take; 0: not
            known.
        """
        limit = self.timeout * units or float("inf")
        if not stopping:
            return limit
        return min(limit, max(HURRY, MANY * estimate) if estimate else HURRY_UNKNOWN)

    def _estimate(self, request: Request) -> float:
        """How many seconds a request should take, estimated from other requests; 0 if nothing is known."""
        return self.pace * request.steps if isinstance(request, Piece) else self._longest.get(type(request), 0.0)

    def _reason(self, request: Request, silent: float) -> str:
        limit = self.timeout * request.units
        if limit and silent >= limit:
            return f"it took longer than engine.timeout = {limit:g} s"
        return f"it gave no answer for {silent:.0f} s, and the run was stopped,"


def checked(timeout: float) -> float:
    """The setting `engine.timeout`; an error if it is not a number of seconds."""
    if not 0 <= timeout < float("inf"):
        raise ArnoError(f"engine.timeout = {timeout:g}", "it must be 0 or more seconds", "use 0 for no limit")
    return timeout
