"""The loop of all parallel engines: it sends the pieces of several blocks to workers, and returns results in order.

A worker that takes longer than `engine.timeout` for a request is ended and counts as lost. Lost requests are sent
again.

Each worker trains with one thread, and the result of a client depends only on its row. So the bits do not depend on
which worker trains a client, nor on how often its worker was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from ..core.engine import Engine
from ..core.problem import Problem
from ..core.work import Result, SumResult, Vec, Work
from ..errors import Unanswered
from .packing import tensor
from .pieces import pieces
from .timing import TIMEOUT, Timing
from .transport import TRIES, Block, Lost, Piece, Question, Request, Transport

#: Cuts the rows of a block into groups that must be trained together.
Cut = Callable[[Problem, Work], list[Tensor]]


class Pool(Engine):
    """Trains clients in the workers of a transport.

    timeout: seconds that a worker may take for a request; 0: no limit.
    cut: a function that says which rows must be trained together. Without it, a block is cut into pieces of similar
        length.
    """

    equality = "bit for bit as serial"

    def __init__(
        self, problem: Problem, transport: Transport[Any], timeout: float = TIMEOUT, cut: Cut | None = None
    ) -> None:
        self.problem, self.name = problem, transport.name
        self._transport, self._cut, self.timing = transport, cut, Timing(timeout)
        self._round = 0  # the number of rounds whose training has begun

    def train(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result | SumResult]]:
        """Train block after block; a bounded number of blocks is in progress at the same time."""
        return self.rows(works)

    def workers_for(self, work: Work) -> tuple[str, int]:
        """The name of the engine and the number of all its workers."""
        return self.name, self._transport.count

    def rows(self, works: Iterable[Work]) -> Iterator[tuple[Work, Result]]:
        """Train blocks, several at the same time; return them in the order in which they were given."""
        transport = self._transport
        transport.start()
        source, flight, todo = iter(works), deque[Block](), deque[Request]()
        try:
            while True:
                self._open_blocks(source, flight, todo)
                if not flight:
                    return
                while not self._complete(flight[0], todo):
                    self._feed(todo)
                    self._collect(todo)
                yield self._taken(flight.popleft())
        finally:
            if transport.busy:  # the caller stopped early: later requests must not receive these answers
                transport.stop()
            for block in flight:
                transport.drop(block)

    def score(self, models: Iterable[Vec], split: str) -> list[dict[str, float]]:
        """The scores of models on a split.

        Each worker scores whole models; if there are few models, pieces of the split.
        """
        models = list(models)
        if len(models) < self._transport.count:
            return super().score(models, split)
        found = self._ask("total", models, [(i, split) for i in range(len(models))])
        return [self.problem.scores(tally) for tally in found]

    def tally(self, w: Vec, split: str) -> Tensor:
        """The statistics of a model on a split; the workers score the pieces of the split."""
        return self.problem.join(self._ask("tally", [w], [(0, split, *piece) for piece in self.problem.pieces(split)]))

    def loss(self, w: Vec, clients: Tensor) -> Tensor:
        """The mean loss of `w` on the data of each client; each worker computes it for some of the clients."""
        return self._losses("losses", w, clients)

    def batch_loss(self, w: Vec, clients: Tensor, batch_size: Tensor, seed: int, t: int) -> Tensor:
        """An estimate of `loss` from one mini-batch of each client, drawn for round t."""
        return self._losses("batch_losses", w, clients, batch_size, rest=(seed, t))

    def close(self) -> None:
        """End the workers."""
        self._transport.close()

    def _losses(self, what: str, w: Vec, *columns: Tensor, rest: tuple[int, ...] = ()) -> Tensor:
        chunks = zip(*(column.chunk(self._transport.count) for column in columns), strict=True)
        arguments = [(0, *(column.numpy() for column in chunk), *rest) for chunk in chunks]
        return torch.cat(self._ask(what, [w], arguments))

    def _ask(self, what: str, models: Sequence[Vec], arguments: Sequence[tuple[Any, ...]]) -> list[Tensor]:
        """Call the method `what` of the problem in the workers, for each (index of a model, other arguments)."""
        with self._transport.share(models) as shared:
            questions = [Question(what, shared[i], tuple(rest), self._round) for i, *rest in arguments]
            self._run(questions)
        return [tensor(question.answer) for question in questions]

    def _run(self, requests: Sequence[Request]) -> None:
        """Send requests, one at a time to each worker, until all of them are answered."""
        self._transport.start()
        todo, waiting, began = deque(requests), len(requests), monotonic()
        try:
            while waiting:
                for worker in self._transport.room(1):
                    if todo:
                        self._transport.send(worker, todo.popleft())
                waiting -= len(self._collect(todo))
            self.timing.asked(requests, began)
        finally:
            if self._transport.busy:  # one of them failed: later requests must not receive the other answers
                self._transport.stop()

    def _open_blocks(self, source: Iterator[Work], flight: deque[Block], todo: deque[Request]) -> None:
        """Open blocks until at least two are open and each worker has at least two rows."""
        while len(flight) < 2 or sum(len(block.work) for block in flight) < 2 * self._transport.count:
            if (work := next(source, None)) is None:
                return
            block, self._round = Block(work), work.round + 1
            self._transport.open(block)
            flight.append(block)
            steps = work.steps.tolist()
            for rows in (group.tolist() for group in self._pieces(work)):
                piece = Piece(block, rows, steps=sum(steps[j] for j in rows))
                alone = self._cut is None and self.timing.too_long(piece)
                todo.extend(piece.split() if alone else [piece])

    def _pieces(self, work: Work) -> list[Tensor]:
        if self._cut is not None:
            return self._cut(self.problem, work)
        least = self._transport.worth / self.timing.pace if self.timing.pace else 0.0
        return pieces(work.steps, self._transport.count, least)

    def _feed(self, todo: deque[Request]) -> None:
        """Send a piece to every idle worker, and a second one to busy workers.

        Workers with the fewest requests are first; of these, workers with the fewest steps.
        """
        room = self._transport.room(2)
        while todo and room:
            worker = min(room, key=lambda worker: worker.load)
            if worker.load[0] and not self._may_wait(todo):
                return
            self._transport.send(worker, todo.popleft())
            if worker.load[0] == 2:
                room.remove(worker)

    def _may_wait(self, todo: deque[Request]) -> bool:
        """Whether the next piece may wait in the queue of a busy worker.

        It may wait if many pieces are left, or if it takes so little time that its message would take longer.
        """
        piece = todo[0]
        assert isinstance(piece, Piece)
        short = 0 < self.timing.pace * piece.steps < self._transport.worth / 4
        return (len(todo) > self._transport.count or short) and self._transport.may_wait(piece)

    def _collect(self, todo: deque[Request]) -> list[Request]:
        """Wait for the workers; return the answered requests. Lost requests go to the front of `todo`."""
        answered, lost = self.timing.waits(self._transport.wait)
        for request in answered:
            if isinstance(request, Piece):
                self._add(request)
        self._again([*lost, *self.timing.late(self._transport, self.caller)], todo)
        return answered

    def _add(self, piece: Piece) -> None:
        """Add an answered piece to its block."""
        piece.block.add(piece.rows, piece.answer)
        self.timing.trained(float(piece.answer[1].sum()), piece.steps)

    def _again(self, lost: Iterable[Lost], todo: deque[Request]) -> None:
        """Put lost requests at the front of `todo`: each row separately, unless the rows must be trained together."""
        again: list[Request] = []
        for request, begun, why, remedy in lost:
            request.tries += begun
            if request.tries >= TRIES:
                rule = f"{why} {request.doing}, {TRIES} times"
                error = Unanswered(str(request), rule, remedy or self._transport.remedy)
                if not self._may_drop(request):
                    raise error
                assert isinstance(request, Piece)
                request.block.fail(request.rows[0], str(error))
                continue
            if begun:
                self.caller.say(f"{request}: {why} {request.doing}; another worker does it again")
            again += request.split() if begun and self._cut is None else [request]
        todo.extendleft(reversed(again))

    def _may_drop(self, request: Request) -> bool:
        """Whether a lost request is one client that the round can leave out; never while the user stops the run."""
        if not isinstance(request, Piece) or len(request.rows) > 1 or self._cut is not None:
            return False
        return request.block.work.on_error == "drop" and not self.caller.stopping

    def _complete(self, block: Block, todo: deque[Request]) -> bool:
        """Whether all updates of a block have arrived. Updates that are still at the workers are fetched."""
        lost = self._transport.fetch(block)
        for request, *_ in lost:
            assert isinstance(request, Piece)
            block.waiting += len(request.rows)
        self._again(lost, todo)
        return not block.waiting

    def _taken(self, block: Block) -> tuple[Work, Result]:
        return block.work, block.result(self._transport.take(block))
