"""What a run would need: memory, disk, traffic and seconds. Only a few steps of local training are run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from .. import machine
from ..config import build
from ..core.federation import Federation
from ..core.resources import Need, allocating, refuse
from ..core.work import Work
from ..errors import TooLarge
from ..records.folder import RunFolder
from .estimate import Estimate, estimate, refuse_records, rooms, tight, total
from .timing import batched_step, first_work, own_tests, scoring, serving, single_step


@dataclass(frozen=True)
class Plan:
    """What a run would need. Memory, disk and seconds are estimates; `up`, `down` and `seconds` are per round.

    up, down: the bytes that clients send and receive, counted as in the records.
    refused: the reasons why the run would not start. tight: lines about memory and disk that would be almost full.
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
        """The plan as plain values."""
        return asdict(self)


def plan(config: dict[str, Any]) -> Plan:
    """The plan of a configuration. Settings that are wrong for another reason than size raise an error."""
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
    """The configuration with engine=processes in place of engine=ray, so that a plan starts no cluster."""
    if config["engine"]["kind"] != "ray":
        return config
    if config["state"] == "workers":
        config = config | {"state": "memory"}
    return config | {"engine": {"kind": "processes", "workers": config["engine"]["workers"], "start": "auto"}}


def planned(config: dict[str, Any], fed: Federation, short: Plan) -> Plan:
    """The plan of a federation; some of its clients are trained for a few steps."""
    out, problem, most = RunFolder.new(config).path, fed.problem, machine.peak()
    found = estimate(config, fed)
    work = None if any(refusal(*needs) for needs in rooms(found, out)) else first_work(fed)
    found = found if work is None else estimate(config, fed, work)
    memory = (*found.memory, Need("while the data are read", max(0, most - total(found.memory))), *found.mapped)
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
    """The error if the needs are larger than the room; otherwise empty."""
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
    score = (scoring(fed) / max(1, parallel) + own_tests(fed)) / config["eval"]["every"]
    down, up = (round(found.cohort * sum(each) / len(work)) * fed.w.element_size() for each in fed.traffic(work))
    return replace(
        short,
        engine="ray" if config["engine"]["kind"] == "ray" else engine,
        up=up,
        down=down,
        seconds=found.steps * step / max(1, workers) + score + serving(fed, found.cohort),
    )
