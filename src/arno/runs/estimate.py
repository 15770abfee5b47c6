"""Estimates of the memory and the disk space that a run needs, before its first round.

When a federation is built, its data and its model are in memory, and nothing else that is large: client tables grow
with the rounds, and workers start with the first round. So a run needs the memory that this process uses now, plus the
memory that the rounds add. `benchmarks/plan.py` prints estimates and measured peaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import machine
from ..core.federation import ROWS, Federation
from ..core.problem import Footprint
from ..core.resources import Need, refuse, shown, summed
from ..core.table import ClientTable
from ..core.work import Work
from ..problems.client_tests import ROWS as SCORED
from ..problems.supervised import Supervised

#: The memory of Python and its libraries; it is used if the system does not report the memory of this process.
PROGRAM = 350 * 2**20
#: The memory of the libraries that a run loads at its end, for tables and pictures.
LATER = 80 * 2**20
#: The memory of a forked worker: the pages of its parent that it changes and therefore copies.
#: The memory of a spawned worker or an actor: the libraries that it loads.
FORKED, LOADED = 30 * 2**20, 350 * 2**20
#: The bytes of one client's record of a round: as Python numbers (until the next checkpoint), as a table, on disk.
ROW, TABLE, STORED = 400, 250, 75
#: How many copies of a block of rows exist while a client table stores the block: the new rows and their sources, the
#: old rows, the differences, and these differences in double precision.
TAKEN = 7
#: The bytes that the selection of clients needs for each client.
SELECTED = 48
#: The bytes of a line in metrics.jsonl without its metrics, and the bytes of each metric.
LINE, METRIC = 250, 40
#: Bytes of pictures and other small files of a run.
PICTURES = 2**20
#: If a run needs more than this share of the free memory or disk, a line says that it is tight.
TIGHT = 0.8


@dataclass(frozen=True)
class Estimate:
    """The needs of a run in bytes.

    engine: the engine that trains. workers: how many processes train. scorers: how many processes only score.
    server: the memory of this process. worker: the memory of each worker or scorer. shared: the shared memory.
    mapped: pages of files. They count as memory of the process, but the system frees them if memory is needed.
    disk: the files in the run's folder, and with state=disk in its parent folder.
    cohort, seen: how many clients take part in a round, and in all rounds. steps: the steps of all clients in a round.
    """

    engine: str
    workers: int
    scorers: int
    server: tuple[Need, ...]
    worker: tuple[Need, ...]
    shared: tuple[Need, ...]
    mapped: tuple[Need, ...]
    disk: tuple[Need, ...]
    cohort: int
    seen: int
    steps: int

    @property
    def memory(self) -> tuple[Need, ...]:
        """The memory of all processes together."""
        count = self.workers + self.scorers
        workers = Need(f"{count} workers" if count > 1 else "1 worker", count * total(self.worker))
        return (*self.server, *self.shared, *([workers] if count else []))


def total(needs: tuple[Need, ...]) -> int:
    """The sum of the bytes of some needs."""
    return sum(need.bytes for need in needs)


def estimate(config: dict[str, Any], fed: Federation, first: Work | None = None) -> Estimate:
    """The needs of a federation that was built and has not run yet.

    first: the first block of a round, if it is known. Without it, the estimate can assume another engine than the run
    will use, if the method changes the local loss or the step.
    """
    first = first_block(fed) if first is None else first
    engine, workers = fed.engine.workers_for(first)
    if any(part.sequential for part in fed.parts) and config["engine"]["kind"] == "auto":
        engine, workers = "serial", 0
    cohort, rounds = fed.cohort, max(0, config["rounds"] - fed.t)
    seen = min(fed.n, cohort * max(1, config["rounds"]))
    tables = [value for value in fed.state().values() if isinstance(value, ClientTable)]
    needs = [table.needs(seen, len(first)) for table in tables]
    vector, local = fed.layout.size * fed.w.element_size() * (fed.w.device.type == "cpu"), workers == 0
    workers = 0 if config["engine"].get("address") else workers  # workers on a cluster use the memory of other machines
    block = len(first) * vector
    spawned = engine.startswith("ray") or config["engine"].get("start") == "spawn"
    takes = fed.problem.footprint(largest_batch(fed))
    matrices = 1 + len(tables)
    server = [
        *process_now(takes.data),
        Need("client tables", sum(memory for memory, _ in needs)),
        Need("records of the clients", records_of(config, cohort, rounds)),
        Need("copies of models that the method keeps", kept(fed)),
        Need("libraries for tables and pictures", LATER),
        Need("selection", SELECTED * fed.n),
        Need("update, step and best model", 6 * vector),
        Need("rows of a block", block * (TAKEN * len(tables) + (matrices if local else 0))),
        Need("personal models that are scored together", personal_models(fed) * vector),
        *(training(fed, takes, engine, first) if local else ()),
    ]
    slabs = [Need("blocks in shared memory", in_flight(first, workers, cohort) * (block * matrices + vector))]
    shared = [*slabs, *([Need("data in shared memory", takes.data)] if spawned else [])]
    program = Need("program", LOADED if spawned else FORKED)
    scorers = 0 if workers else fed.engine.scorers()
    worker = [program, *(training(fed, takes, engine, first) if workers else scoring(vector, takes) if scorers else ())]
    return Estimate(
        engine,
        workers,
        scorers,
        tuple(server),
        tuple(worker) if workers or scorers else (),
        tuple(shared) if workers else (),
        (Need("pages of the tables' files", min(sum(disk for _, disk in needs), machine.available())),),
        tuple(disk_needs(config, fed, seen, sum(disk for _, disk in needs))),
        cohort,
        seen,
        round(steps_of(fed)),
    )


def refuse_records(config: dict[str, Any]) -> None:
    """Refuse a number of clients whose records alone cannot fit into memory, before anything is built."""
    clients, share = config["clients"] or 0, config["participation"]
    if clients > 0 and 0 < share <= 1:
        cohort = max(1, int(share * clients))
        room, where = machine.of_a_process()
        records = Need(f"records of {cohort:,} clients a round", records_of(config, cohort, config["rounds"]))
        remedy = "use a smaller participation=, fewer clients=, or a smaller checkpoint.every="
        refuse([records, Need(f"selection among {clients:,}", SELECTED * clients)], room, where, remedy)


def records_of(config: dict[str, Any], cohort: int, rounds: int) -> int:
    """The records of the clients: as Python numbers until the next checkpoint, at the end as one table."""
    between = min(rounds, config["checkpoint"]["every"] or rounds)
    return max(ROW * cohort * between, TABLE * cohort * rounds)


def process_now(data: int) -> Iterator[Need]:
    """The memory that this process uses now: the data, and the program with the model."""
    yield Need("data", data)
    yield Need("program and model", max(0, (machine.resident() or PROGRAM + data) - data))


def first_block(fed: Federation) -> Work:
    """A block like the first block of a round, but without the changes that the method makes."""
    return next(fed.plain_blocks(range(min(fed.cohort, ROWS)), 0))


def largest_batch(fed: Federation) -> int:
    """The most samples in a step of a client."""
    held = int(fed.clients.sizes.max()) if fed.clients.sampled else 1
    return min(held, int(fed.batch_size.largest))


def steps_of(fed: Federation) -> float:
    """The steps of all clients in a round, on average over the clients."""
    ids = torch.arange(fed.n)
    epochs, batch = fed.epochs.at(ids, 0).long(), fed.batch_size.at(ids, 0).long()
    return float(fed.clients.steps(ids, epochs, batch).double().mean()) * fed.cohort


def training(fed: Federation, takes: Footprint, engine: str, first: Work) -> Iterator[Need]:
    """The memory of a process that trains clients and scores models."""
    vector, sgd = fed.layout.size * fed.w.element_size(), fed.local.sgd
    yield Need("network, gradient, corrections", vector * (6 + bool(sgd.momentum)))
    if engine == "batched" and isinstance(fed.problem, Supervised):  # another problem is refused when it trains
        from ..engines.batched import at_once

        rows = min(len(first), at_once(fed.problem, first))
        samples = int((first.epochs * fed.clients.sizes[first.clients].cpu()).topk(rows).values.sum())
        yield Need("a group of clients", rows * (4 * vector + takes.step) + 40 * samples)
    yield Need("a step or a score", max(takes.step, takes.scoring))


def scoring(vector: int, takes: Footprint) -> Iterator[Need]:
    """The memory of a process that scores models."""
    yield Need("network", 2 * vector)
    yield Need("a score", takes.scoring)


def kept(fed: Federation) -> int:
    """The bytes of clients' models that a part holds in one tensor. While the tensor is replaced, it exists twice."""
    return sum(value.nbytes for value in fed.state().values() if isinstance(value, Tensor) and value.ndim > 1)


def personal_models(fed: Federation) -> int:
    """How many personal models are in memory while they are scored."""
    scored = fed.problem.tests_clients and any("personal" in part.roles for part in fed.parts)
    return 2 * min(SCORED, fed.n) if scored else 0


def in_flight(first: Work, workers: int, cohort: int) -> int:
    """How many blocks are in shared memory at the same time: those that train, and one that the server adds up."""
    blocks = -(-cohort // len(first))
    return min(blocks, max(2, -(-2 * workers // len(first)))) + (blocks > 1)


def disk_needs(config: dict[str, Any], fed: Federation, seen: int, mapped: int) -> Iterator[Need]:
    """The disk space that a run needs."""
    state, rounds, vector = fed.state(), max(0, config["rounds"] - fed.t), fed.w.nbytes
    plain = sum(value.nbytes for value in state.values() if isinstance(value, Tensor)) + vector  # and the best model
    rows = sum(value.stored(seen) for value in state.values() if isinstance(value, ClientTable))
    yield Need(f"{config['checkpoint']['keep'] + 1} checkpoints", (config["checkpoint"]["keep"] + 1) * (plain + rows))
    yield Need("final and best model", 2 * vector)
    yield Need("records of the clients", 2 * STORED * fed.cohort * rounds)
    yield Need("metrics", rounds * (LINE + METRIC * len(fed.problem.metrics)))
    yield Need("client tables on disk", mapped)
    yield Need("pictures", PICTURES)


def check(config: dict[str, Any], fed: Federation, out: Path, written: int = 0) -> list[str]:
    """Raise an error if a run cannot fit into memory, shared memory or disk; return lines about what is tight.

    written: how many bytes the run has already written to the disk. The estimate is for the whole run, so these bytes
    count as free.
    """
    found = estimate(config, fed)
    for needs, room, where, remedy in rooms(found, out, written):
        refuse(needs, room, where, remedy)
    return tight(found, out, written)


def rooms(found: Estimate, out: Path, written: int = 0) -> Iterator[tuple[tuple[Need, ...], int, str, str]]:
    """For each kind of memory and for the disk: the needs, the available bytes, its name, and the remedy."""
    smaller = "use fewer clients or rounds, a smaller model or batch"
    tables = any(need.what == "client tables" and need.bytes > total(found.memory) / 3 for need in found.server)
    remedy = f"use state=disk, {smaller.removeprefix('use ')}" if tables else smaller
    remedy += ", or fewer workers" if found.workers > 1 else ""
    yield found.memory, machine.memory(), machine.owner(), remedy
    room, where = machine.of_a_process()
    yield (*found.server, *found.shared), room, where, remedy
    if found.workers:
        yield (*found.worker, *found.shared, *found.server[:2]), room, where, remedy
        if (free := machine.free_shared()) is not None:
            more = f"use engine=serial, or make {machine.SHARED} larger (docker run --shm-size=8g)"
            yield found.shared, free, f"{machine.SHARED}", more
    remedy = "choose another out=, or set checkpoint.keep=1, fewer rounds or a smaller model"
    yield found.disk, machine.free_disk(out) + written, f"the file system of {out}", remedy


def tight(found: Estimate, out: Path, written: int = 0) -> list[str]:
    """Lines about memory and disk that will be almost full."""
    lines, more = [], total(found.memory) - machine.resident()
    if more > TIGHT * (free := machine.available()):
        needed = f"the run needs {summed(found.memory)}, {shown(more)} more than it uses now"
        lines.append(f"memory is tight: {needed}; {shown(free)} is free")
    if total(found.disk) - written > TIGHT * (free := machine.free_disk(out)):
        lines.append(f"disk is tight: the run needs {summed(found.disk)}; {shown(free)} is free in {out}")
    return lines
