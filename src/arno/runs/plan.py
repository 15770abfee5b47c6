"""What a run would take, without running it: memory, disk, traffic, and seconds from a few steps of local training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import Any

import torch

from .. import machine
from ..config import build
from ..core.contracts import Learner
from ..core.federation import Federation
from ..core.resources import Need, allocating, refuse
from ..core.steps import train
from ..core.work import Job, Work
from ..engines.batched import Batched, groups
from ..errors import TooLarge
from ..records.folder import RunFolder
from .estimate import Estimate, estimate, refuse_records, rooms, tight, total

#: A client is timed for at most so many steps, and clients for so many seconds.
STEPS, SECONDS = 8, 1.0


@dataclass(frozen=True)
class Plan:
    """What a run would take. Memory, disk and seconds are estimates; bytes are per round.

    up, down: what the clients send and receive, as the records count it.
    refused: why the run would not start. tight: what would almost be full.
    """

    problem: str
    method: str
    rounds: int
    parameters: int = 0
    clients: int = 0
    cohort: int = 0
    local_steps: int = 0
    engine: str = ""
    workers: int = 0
    kernel: str = ""
    kernel_reason: str = ""
    memory: int = 0
    memory_items: dict[str, int] = field(default_factory=dict)
    memory_room: int = field(default_factory=machine.memory)
    shared_memory: int = 0
    disk: int = 0
    disk_items: dict[str, int] = field(default_factory=dict)
    disk_room: int = 0
    up: int = 0
    down: int = 0
    seconds: float | None = None
    refused: tuple[str, ...] = ()
    tight: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Its values by name."""
        return asdict(self)


def plan(config: dict[str, Any]) -> Plan:
    """The plan of a configuration; settings that a run refuses for another reason than its size raise an error."""
    name = config["problem"]["kind"]
    short = Plan(name, config["method"]["kind"], config["rounds"])
    try:
        refuse_records(config)
        with allocating():
            fed = build.federation(without_cluster(config))
            try:
                return planned(config, fed, short)
            finally:
                fed.engine.close()
    except TooLarge as error:
        return replace(short, refused=(str(error),))


def without_cluster(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with processes of this machine in place of Ray: no cluster is started for a plan."""
    if config["engine"]["kind"] != "ray":
        return config
    if config["state"] == "workers":
        config = config | {"state": "memory"}
    return config | {"engine": {"kind": "processes", "workers": config["engine"]["workers"], "start": "auto"}}


def planned(config: dict[str, Any], fed: Federation, short: Plan) -> Plan:
    """The plan of a federation that was built for it; some of its clients are trained for a few steps."""
    out, problem, most = RunFolder.new(config).path, fed.problem, machine.peak()
    found = estimate(config, fed)
    work = None if any(refusal(*needs) for needs in rooms(found, out)) else first_work(fed)
    found = found if work is None else estimate(config, fed, work)
    memory = (*found.memory, Need("while the data are read", max(0, most - total(found.memory))))
    refused = [why for needs in rooms(found, out) if (why := refusal(*needs))]
    short = replace(
        short,
        problem=problem.describe(),
        parameters=fed.layout.d,
        clients=fed.n,
        cohort=found.cohort,
        local_steps=found.steps,
        engine=found.engine,
        workers=found.workers,
        kernel=problem.kernel,
        kernel_reason=problem.kernel_reason,
        memory=total(memory),
        memory_items={need.what: need.bytes for need in memory if need.bytes},
        shared_memory=total(found.shared),
        disk=total(found.disk),
        disk_items={need.what: need.bytes for need in found.disk if need.bytes},
        disk_room=machine.free_disk(out),
        refused=tuple(dict.fromkeys(refused)),
        tight=tuple(tight(found, out)),
    )
    return short if work is None else timed(config, fed, found, work, short)


def refusal(needs: tuple[Need, ...], room: int, where: str, remedy: str) -> str:
    """Why the room is too small; empty if it is not."""
    try:
        refuse(needs, room, where, remedy)
    except TooLarge as error:
        return str(error)
    return ""


def timed(config: dict[str, Any], fed: Federation, found: Estimate, work: Work, short: Plan) -> Plan:
    """The plan with seconds and bytes per round, from a few steps of some clients of the first block."""
    engine, workers = found.engine, found.workers
    if engine == "serial" and config["engine"]["kind"] == "auto" and len(work) == 1:
        torch.set_num_threads(config["engine"]["cores"] or os.cpu_count() or 1)
    step = batched_step(fed, work) if engine == "batched" else single_step(fed, work)
    parallel = found.scorers or (workers if engine != "batched" else 0)
    score = scoring(fed) / max(1, parallel) / config["eval"]["every"]
    down, up = (round(found.cohort * sum(each) / len(work)) * fed.w.element_size() for each in fed.traffic(work))
    return replace(
        short,
        engine="ray" if config["engine"]["kind"] == "ray" else engine,
        up=up,
        down=down,
        seconds=found.steps * step / max(1, workers) + score,
    )


def first_work(fed: Federation) -> Work:
    """The first block of the first round; of a method with a round 0 of its own, without what the method adds."""
    ids: Any = range(fed.n)
    if fed.t < 0:
        return next(fed.plain_blocks(range(min(fed.cohort, 128)), 0))
    for part in fed.parts:
        ids = part.select(ids, fed.t)
    for part in fed.parts:
        part.begin(fed.t)
    return next(fed.blocks(ids, fed.t))


class Few:
    """A learner whose clients train on a few batches only."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.steps = learner, 0
        self.w, self.p, self.g, self.layout = learner.w, learner.p, learner.g, learner.layout
        self.gradient, self.curvature = learner.gradient, learner.curvature
        self.size, self.autograd = learner.size, learner.autograd

    def batches(self, job: Job) -> Iterator[Any]:
        """The first batches of the client."""
        for batch in islice(self.learner.batches(job), STEPS):
            self.steps += 1
            yield batch


def single_step(fed: Federation, work: Work) -> float:
    """Seconds per step of one client, with everything that the method changes in it."""
    learners: dict[Any, Few] = {}
    spent, steps, ends = 0.0, 0.0, perf_counter() + SECONDS
    for turn, (job, whole) in enumerate(zip(work.jobs(), work.steps.tolist(), strict=True)):
        window = job.window if job.window is not None and job.window.extract else None
        shape = None if window is None else window.units
        if shape not in learners:
            learners[shape] = Few(fed.problem.learner(window))
            train(learners[shape], job, torch.empty_like(fed.w))  # the first steps prepare the kernels
        seconds = clock(lambda job=job, few=learners[shape]: train(few, job, torch.empty_like(fed.w)))  # type: ignore[misc]
        spent, steps = spent + seconds, steps + max(1, min(STEPS, whole))
        if turn and perf_counter() > ends:
            break
    return spent / steps


def batched_step(fed: Federation, work: Work) -> float:
    """Seconds per step of one client where groups of clients train together, from one epoch of a group."""
    rows = groups(fed.problem, work)[0].cpu()
    some = work.rows(rows)
    epochs = torch.ones_like(some.epochs)
    some = replace(some, epochs=epochs, steps=fed.clients.steps(some.clients, epochs, some.batch_size).to(some.steps))
    engine = Batched(fed.problem)
    seconds = [clock(lambda: engine.block(some, torch.empty_like(some.start))) for _ in range(2)]
    return seconds[-1] / int(some.steps.sum())


def scoring(fed: Federation) -> float:
    """Seconds to score a model on all splits, from one piece of each."""
    seconds = 0.0
    for split in fed.problem.splits:
        pieces = fed.problem.pieces(split)
        if pieces:
            fed.problem.tally(fed.w, split, *pieces[0])
            seconds += len(pieces) * clock(lambda split=split, at=pieces[0]: fed.problem.tally(fed.w, split, *at))  # type: ignore[misc]
    return seconds


def clock(job: Callable[[], object]) -> float:
    """The seconds of a call."""
    began = perf_counter()
    job()
    return perf_counter() - began
