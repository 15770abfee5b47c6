"""Ray actors: connected, hired, given calls, watched, replaced when they are lost, dismissed.

Nothing here knows what an actor computes. An actor has a short queue of calls; it works through it in order, so that
only the call in front is watched. Whoever sends a call gets it back either answered or lost.
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
from pathlib import Path
from time import monotonic
from typing import Any

from ..errors import ArnoError, need

#: Without a single actor for so many seconds, it gives up.
PATIENCE = 120.0


class Ray:
    """A connection to a Ray cluster, or a local one of our own; one that the process already has is used and kept."""

    def __init__(self, address: str | None, cpus: int = 0) -> None:
        for name, value in (QUIET if address else QUIET | LEAN).items():
            os.environ.setdefault(name, value)
        self._token = (address or "").startswith("ray://") and "RAY_AUTH_MODE" not in os.environ and _has_token()
        if self._token:  # clusters ask for it; Ray's client does not offer it
            os.environ["RAY_AUTH_MODE"] = "token"
        try:
            import ray
        except ImportError:
            raise need("ray", "ray") from None
        self._own, self._temporary, self._session = not ray.is_initialized(), "", ""
        self._logs = Path()
        if not self._own:
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            short = "/tmp" if Path("/tmp").is_dir() else None  # the names of sockets in it may have 107 letters
            self._temporary = tempfile.mkdtemp(prefix="arno-", dir=short)
            quiet |= {"num_cpus": cpus or os.cpu_count() or 1, "include_dashboard": False}
            quiet["_temp_dir"] = self._temporary
        try:
            _reach(address or "local")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what matters comes as an error
                context = ray.init("local" if address is None else address, **quiet)
        except Exception as error:
            self.close()
            raise _refused(address, error) from error
        self._session = getattr(context, "address_info", {}).get("session_dir", "")
        atexit.register(self.close)

    @property
    def cpus(self) -> int:
        """How many cores the cluster has."""
        import ray

        return int(ray.cluster_resources().get("CPU", 0))

    @property
    def memory(self) -> int:
        """How many bytes of memory its nodes have."""
        import ray

        return int(ray.cluster_resources().get("memory", 0))

    def keep_logs(self, folder: Path) -> None:
        """Make Ray's logs reachable from `folder` while it runs, and leave a copy of our own cluster's there."""
        if not self._session:  # a remote client has none on this machine
            return
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            self._logs = folder / "session"
            self._logs.unlink(missing_ok=True)
            self._logs.symlink_to(Path(self._session, "logs"))

    def close(self) -> None:
        """Disconnect; a cluster of our own ends, and its logs are kept."""
        import ray

        atexit.unregister(self.close)
        if self._token:
            os.environ.pop("RAY_AUTH_MODE", None)
        if not self._own:
            return
        ray.shutdown()
        if self._temporary:
            if self._logs.is_symlink():
                with suppress(OSError, shutil.Error):
                    shutil.copytree(self._logs, self._logs.parent, ignore=_empty, dirs_exist_ok=True)
                    self._logs.unlink()
            shutil.rmtree(self._temporary, ignore_errors=True)


#: No usage statistics, and no warnings that concern Ray's developers.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
#: A local Ray whose metrics nobody reads does not collect them: its cores are the workers'. Answers of up to 4 MiB
#: come straight back, without the detour over the object store.
LEAN = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_max_direct_call_object_size": str(2**22),
}


def _has_token() -> bool:
    """Whether Ray's token is where Ray looks for it."""
    told = bool({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys())
    return told or Path("~/.ray/auth_token").expanduser().exists()


def _empty(folder: str, names: list[str]) -> list[str]:
    """What is not worth keeping of Ray's logs: folders and empty files."""
    return [name for name in names if (p := Path(folder, name)).is_dir() or not p.stat().st_size]


def _reach(address: str) -> None:
    """Refuse an address at which nobody listens: Ray itself would wait there for ever."""
    host, colon, port = address.removeprefix("ray://").rstrip("/").rpartition(":")
    if address in ("auto", "local"):
        return
    if not colon or not port.isdigit():
        raise OSError("it is written HOST:PORT or ray://HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _refused(address: str | None, error: Exception) -> ArnoError:
    """Why there is no cluster, in one line."""
    text = str(error)
    lines = [line.strip().split(". ")[0] for line in text.splitlines() if line.strip()] or [type(error).__name__]
    first = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]  # a colon: what failed is said last
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
    """A method of an actor with its arguments; `clients` of them train in it, which scales its time limit."""

    method: str
    arguments: tuple[Any, ...]
    clients: int = 0
    what: Any = None  # whatever the sender wants to find again
    steps: int = 0  # how long it takes, beside others
    tries: int = 0
    answer: Any = None  # a reference, later the value
    heavy: Any = None  # a reference: what stays where it was made until somebody fetches it


@dataclass(eq=False)
class Worker:
    """An actor, a reference until it is up, its queue, and since when the call in front runs."""

    actor: Any
    coming: Any
    queue: deque[Call] = field(default_factory=deque)
    since: float = 0.0


class Actors:
    """`count` actors made by `make`; `timeout` seconds per client, 0: no limit."""

    def __init__(self, make: Callable[[], Any], count: int, timeout: float) -> None:
        self._make, self.count, self._timeout = make, count, timeout
        self._workers: list[Worker] = []
        self._manned = 0.0  # when somebody was last seen up
        self._stillborn = 0  # how many in a row ended before they were up

    def __len__(self) -> int:
        return sum(not worker.coming for worker in self._workers)

    @property
    def busy(self) -> bool:
        """Whether any call is under way."""
        return any(worker.queue for worker in self._workers)

    def start(self) -> None:
        """Hire whoever is missing; they come up while the first of them work."""
        while len(self._workers) < self.count:
            actor = self._make()
            self._workers.append(Worker(actor, actor.ready.remote(), since=monotonic()))

    def room(self, depth: int = 1) -> Iterator[Worker]:
        """Actors that are up and have fewer than `depth` calls, the idle ones first."""
        for length in range(depth):
            yield from [w for w in self._workers if not w.coming and len(w.queue) == length]

    def send(self, worker: Worker, call: Call) -> None:
        """Put a call into an actor's queue."""
        method = getattr(worker.actor, call.method)
        sent = method.options(num_returns=2 if call.clients else 1).remote(*call.arguments)
        call.answer, call.heavy = sent if call.clients else (sent, None)
        if not worker.queue:
            worker.since = monotonic()
        worker.queue.append(call)

    def wait(self) -> list[tuple[Call, bool, str]]:
        """Wait for news: calls with whether they had begun and why they were lost (empty: they are answered)."""
        import ray
        from ray.exceptions import RayActorError, RayError, RayTaskError

        if len(self):
            self._manned = monotonic()
        front = {
            worker: worker.coming or worker.queue[0].answer for worker in self._workers if worker.coming or worker.queue
        }
        watched = {reference: worker for worker, reference in front.items()}
        ready, _ = ray.wait(list(watched), timeout=self._rest())
        if len(ready) and len(watched) > 1:
            ready, _ = ray.wait(list(watched), num_returns=len(watched), timeout=0)
        news: list[tuple[Call, bool, str]] = []
        for reference in ready:
            worker = watched[reference]
            try:
                value = ray.get(reference)
            except RayTaskError as error:
                raise ArnoError("a Ray worker", _last(error), "are Arno and your own files on every node?") from error
            except RayError as error:
                if isinstance(error, RayActorError) and error.actor_init_failed:
                    raise ArnoError(
                        "a Ray worker cannot start", _last(error), "is Arno installed on every node, in this version?"
                    ) from error
                self._stillborn += bool(worker.coming)
                if self._stillborn > 3 * self.count:
                    raise ArnoError(
                        "no Ray worker comes up", _last(error), "Ray's logs say why; are its nodes fit to work?"
                    ) from error
                news += self._lost(worker, f"its worker was lost ({type(error).__name__})")
                continue
            if worker.coming:
                worker.coming, self._stillborn = None, 0
                continue
            call = worker.queue.popleft()
            call.answer, worker.since = value, monotonic()
            if isinstance(value, Exception):
                raise value
            news.append((call, True, ""))
        return news + self._late()

    def close(self) -> None:
        """Dismiss everybody."""
        import ray

        if ray.is_initialized():
            for worker in self._workers:
                ray.kill(worker.actor)
        self._workers = []

    def _rest(self) -> float | None:
        """Seconds until somebody has taken too long."""
        first = min(map(self._end, self._workers))
        return None if first == float("inf") else max(0.0, first - monotonic())

    def _end(self, worker: Worker) -> float:
        """When an actor will have taken too long: over its call, or, where nobody else is up, to come up."""
        if worker.coming:
            return float("inf") if len(self) else max(worker.since, self._manned) + PATIENCE
        limit = self._timeout * worker.queue[0].clients if worker.queue else 0
        return worker.since + limit if limit else float("inf")

    def _late(self) -> list[tuple[Call, bool, str]]:
        """Actors whose call takes too long are ended."""
        late = [worker for worker in self._workers if monotonic() >= self._end(worker)]
        if any(worker.coming for worker in late):
            raise ArnoError(
                "engine=ray", f"no worker came up in {PATIENCE:.0f} s", "are there free CPUs? see: ray status"
            )
        why = f"it took longer than engine.timeout = {self._timeout:g} s"
        return [news for worker in late for news in self._lost(worker, why)]

    def _lost(self, worker: Worker, why: str) -> list[tuple[Call, bool, str]]:
        """Give its calls back and hire another one."""
        import ray

        with suppress(Exception):
            ray.kill(worker.actor)
        self._workers.remove(worker)
        self.start()
        return [(call, i == 0, why) for i, call in enumerate(worker.queue)]


def _last(error: Exception) -> str:
    """The last line of a remote traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
