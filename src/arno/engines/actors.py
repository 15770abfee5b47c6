"""A connection to Ray, and a fixed number of actors with short queues of calls.

This module does not depend on what an actor computes. An actor answers its calls in their order, so only the first call
of each queue is watched. Every call is returned, either answered or lost. A lost actor is replaced.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from ..errors import ArnoError, need

#: Seconds to wait for the first actor.
PATIENCE = 120.0


class Ray:
    """A connection to a Ray cluster, or to a local Ray that is started here.

    If this process already has a connection, this connection is used and not closed.
    """

    def __init__(self, address: str | None, cpus: int = 0) -> None:
        for name, value in (QUIET if address else QUIET | LEAN).items():
            os.environ.setdefault(name, value)
        self._loopback = address is None and LOOPBACK not in os.environ
        if self._loopback:
            os.environ[LOOPBACK] = "0"
        self._token = (address or "").startswith("ray://") and "RAY_AUTH_MODE" not in os.environ and _has_token()
        if self._token:  # clusters require the token, but Ray's client does not send it by default
            os.environ["RAY_AUTH_MODE"] = "token"
        try:
            import ray
        except ImportError:
            raise need("ray", "ray") from None
        if self._loopback:
            _loopback(True)
        self._own, self._temporary, self._session = not ray.is_initialized(), "", ""
        self._logs = Path()
        if not self._own:
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            short = "/tmp" if Path("/tmp").is_dir() else None  # paths of sockets may have at most 107 letters
            self._temporary = tempfile.mkdtemp(prefix="arno-", dir=short)
            quiet |= {"num_cpus": cpus or os.cpu_count() or 1, "include_dashboard": False}
            quiet["_temp_dir"] = self._temporary
        try:
            _reach(address or "local")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # failures are raised as errors
                context = ray.init("local" if address is None else address, **quiet)
        except Exception as error:
            self.close()
            raise refused(address, error) from error
        if not isinstance(context, ray.client_builder.ClientContext):  # Ray's client has no session on this machine
            self._session = context.address_info["session_dir"]
        atexit.register(self.close)

    @property
    def cpus(self) -> int:
        """The number of cores of the cluster."""
        import ray

        return int(ray.cluster_resources().get("CPU", 0))

    @property
    def memory(self) -> int:
        """The memory of all nodes of the cluster, in bytes."""
        import ray

        return int(ray.cluster_resources().get("memory", 0))

    def keep_logs(self, folder: Path) -> None:
        """Link Ray's logs into `folder` while Ray runs. At the end, the logs of a local Ray are copied there."""
        if not self._session:
            return
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            self._logs = folder / "session"
            self._logs.unlink(missing_ok=True)
            self._logs.symlink_to(Path(self._session, "logs"))

    def close(self) -> None:
        """Disconnect. A local Ray ends, and its logs are kept."""
        import ray

        atexit.unregister(self.close)
        if self._token:
            os.environ.pop("RAY_AUTH_MODE", None)
        if self._own:
            ray.shutdown()
        if self._loopback:
            os.environ.pop(LOOPBACK, None)
            _loopback(False)
        if not self._own:
            return
        if self._temporary:
            if self._logs.is_symlink():
                with suppress(OSError, shutil.Error):
                    shutil.copytree(self._logs, self._logs.parent, ignore=_empty, dirs_exist_ok=True)
                    self._logs.unlink()
            shutil.rmtree(self._temporary, ignore_errors=True)


#: Switches off usage statistics, and warnings that are meant for Ray's developers.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
#: A local Ray collects no metrics, so that its cores are free for the workers. Answers of up to 4 MiB are sent
#: directly, without the object store.
LEAN = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_max_direct_call_object_size": str(2**22),
}


#: With "0" Ray's processes listen on the loopback interface only, where no other machine can reach them. Ray has this
#: setting for systems whose firewall asks the user. Without it, Ray on Linux listens on all interfaces.
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def _loopback(alone: bool) -> None:
    """Switch the same setting on or off in this process, which may have imported Ray before."""
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = not (alone or ray_constants.IS_WINDOWS_OR_OSX)


def _has_token() -> bool:
    """Whether Ray's token is in a place where Ray looks for it."""
    named = bool({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys())
    return named or Path("~/.ray/auth_token").expanduser().exists()


def _empty(folder: str, names: list[str]) -> list[str]:
    """The names in a folder of Ray's logs that are not copied: folders and empty files."""
    return [name for name in names if (p := Path(folder, name)).is_dir() or not p.stat().st_size]


def _reach(address: str) -> None:
    """Refuse an address where no server listens; Ray itself would wait without end."""
    host, colon, port = address.removeprefix("ray://").rstrip("/").rpartition(":")
    if address in ("auto", "local"):
        return
    if not colon or not port.isdigit():
        raise OSError("it is written HOST:PORT or ray://HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def refused(address: str | None, error: Exception) -> ArnoError:
    """The error for a cluster that cannot be reached or started, in one line."""
    text = str(error)
    lines = [line.strip().split(". ")[0] for line in text.splitlines() if line.strip()] or [type(error).__name__]
    first = (
        f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]
    )  # after a colon, the last line has the reason
    if address is None:
        return ArnoError("engine=ray", f"Ray could not be started here ({first})", "try engine=processes")
    where = f"engine.address = {address}"
    if "version mismatch" in text.lower():
        return ArnoError(where, " ".join(text.split()), "install the same versions of Ray and Python on both sides")
    if "grpc" in text.lower() and isinstance(error, ImportError):
        return ArnoError(where, "Ray's client is not installed", "install it with: pip install 'arno[ray]'")
    return ArnoError(where, f"no Ray cluster answers there ({first})", "start one with: ray start --head")


@dataclass(eq=False)
class Call:
    """A method of an actor with its arguments.

    two: whether the method returns two objects; the second one (`heavy`) stays on the node of the actor until it is
    fetched. what: the request or cell that the call computes. steps: how many steps of training it takes.
    answer: a reference, later the value.
    """

    method: str
    arguments: tuple[Any, ...]
    two: bool = False
    what: Any = None
    steps: int = 0
    answer: Any = None
    heavy: Any = None


@dataclass(eq=False)
class Actor:
    """An actor and its queue. starting: a reference until the actor is ready, then None.

    since: when its start began.
    """

    handle: Any
    starting: Any
    queue: deque[Call] = field(default_factory=deque)
    since: float = 0.0

    @property
    def load(self) -> tuple[int, int]:
        """The number of calls in its queue, and the number of steps in them."""
        return len(self.queue), sum(call.steps for call in self.queue)


class Actors:
    """`count` actors; the function `make` starts one."""

    def __init__(self, make: Callable[[], Any], count: int) -> None:
        self._make, self.count = make, count
        self._actors: list[Actor] = []
        self._last_ready = 0.0  # when an actor was last ready
        self._failed_starts = 0  # how many actors in a row ended before they were ready

    def __len__(self) -> int:
        return sum(not actor.starting for actor in self._actors)

    @property
    def busy(self) -> bool:
        """Whether a call has no answer yet."""
        return any(actor.queue for actor in self._actors)

    def start(self) -> None:
        """Start the actors that are missing. The first ones can work while the others start."""
        while len(self._actors) < self.count:
            handle = self._make()
            self._actors.append(Actor(handle, handle.ready.remote(), since=monotonic()))

    def room(self, depth: int = 1) -> Iterator[Actor]:
        """The actors that are ready and have fewer than `depth` calls; those with the fewest calls first."""
        for length in range(depth):
            yield from [actor for actor in self._actors if not actor.starting and len(actor.queue) == length]

    def send(self, actor: Actor, call: Call) -> None:
        """Put a call into the queue of an actor."""
        method = getattr(actor.handle, call.method)
        sent = method.options(num_returns=2 if call.two else 1).remote(*call.arguments)
        call.answer, call.heavy = sent if call.two else (sent, None)
        actor.queue.append(call)

    def first(self) -> list[tuple[Actor, Call]]:
        """The actors that are busy, with the first call of each."""
        return [(actor, actor.queue[0]) for actor in self._actors if actor.queue]

    def wait(self, seconds: float) -> list[tuple[Call, bool, str]]:
        """Wait at most this many seconds until calls are answered or lost.

        Returns for each call: the call, whether it had begun, and why it was lost (empty: it was answered).
        """
        import ray

        if len(self):
            self._last_ready = monotonic()
        active = [actor for actor in self._actors if actor.starting or actor.queue]
        watched = {actor.starting or actor.queue[0].answer: actor for actor in active}
        ready, _ = ray.wait(list(watched), timeout=seconds)
        if ready and len(watched) > 1:
            ready, _ = ray.wait(list(watched), num_returns=len(watched), timeout=0)
        if not ready:
            self._refuse_late_start()
        return [news for reference in ready for news in self._read(watched[reference], reference)]

    def end(self, actor: Actor, why: str) -> list[tuple[Call, bool, str]]:
        """End an actor, start another one in its place, and return its calls.

        Ray kills the process of an actor that does not end by itself within some seconds.
        """
        import ray

        with suppress(Exception):
            ray.kill(actor.handle)
        self._actors.remove(actor)
        self.start()
        return [(call, i == 0, why) for i, call in enumerate(actor.queue)]

    def close(self) -> None:
        """End all actors."""
        import ray

        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor.handle)
        self._actors = []

    def _read(self, actor: Actor, reference: Any) -> list[tuple[Call, bool, str]]:
        """Read the answer to the first call of an actor, or the message that the actor is ready."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            value = ray.get(reference)
        except RayTaskError as error:
            raise ArnoError("a Ray worker", _last(error), "are Arno and your own files on every node?") from error
        except RayError as error:
            self._refuse_failed_start(actor, error)
            return self.end(actor, f"its worker was lost ({type(error).__name__})")
        if actor.starting:
            actor.starting, self._failed_starts = None, 0
            return []
        call = actor.queue.popleft()
        call.answer = value
        if isinstance(value, Exception):
            raise value
        return [(call, True, "")]

    def _refuse_failed_start(self, actor: Actor, error: Exception) -> None:
        """Raise an error if an actor cannot start, or if too many actors in a row ended before they were ready."""
        from ray.exceptions import RayActorError

        if isinstance(error, RayActorError) and error.actor_init_failed:
            raise ArnoError(
                "a Ray worker cannot start", _last(error), "is Arno installed on every node, in this version?"
            ) from error
        self._failed_starts += bool(actor.starting)
        if self._failed_starts > 3 * self.count:
            raise ArnoError(
                "no Ray worker can start", _last(error), "Ray's logs say why; do its nodes have enough memory?"
            ) from error

    def _refuse_late_start(self) -> None:
        """Raise an error if no actor has been ready for a long time."""
        began = min((actor.since for actor in self._actors), default=inf)
        if not len(self) and monotonic() >= max(began, self._last_ready) + PATIENCE:
            raise ArnoError(
                "engine=ray", f"no worker started in {PATIENCE:.0f} s", "are there free CPUs? see: ray status"
            )


def _last(error: Exception) -> str:
    """The last line of a remote traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
