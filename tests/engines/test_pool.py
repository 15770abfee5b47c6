"""The loop that all parallel engines share, on a transport that runs requests in this process and loses some."""

from collections import deque
from contextlib import contextmanager

import pytest
import torch
from training import parts, same_bits, same_scores, train

from arno.core import federation as rounds
from arno.core.federation import Federation
from arno.core.serial import Serial
from arno.engines.packing import answer, ask
from arno.engines.pool import Pool
from arno.engines.transport import Lost, Piece, Transport
from arno.errors import ArnoError


class Desk:
    def __init__(self):
        self.queue = deque()

    @property
    def load(self):
        return len(self.queue), sum(request.steps for request in self.queue)


class Here(Transport):
    """Answers the newest queue first; `lose` says why a request is lost, `vanish` whether its deltas are."""

    name, remedy = "here", "try another day"

    def __init__(self, problem, count=2, worth=0.0):
        self.problem, self.count, self.worth, self.engine = problem, count, worth, Serial(problem)
        self.workers, self.blocks, self.fetched = [], {}, {}
        self.lose = self.vanish = lambda request: ""
        self.sent, self.stopped, self.ended = [], 0, []

    def start(self):
        self.workers += [Desk() for _ in range(self.count - len(self.workers))]

    def room(self, depth):
        return [worker for worker in self.workers if len(worker.queue) < depth]

    @property
    def busy(self):
        return any(worker.queue for worker in self.workers)

    def open(self, block):
        self.blocks[block] = torch.full(block.work.start.shape, torch.nan, dtype=block.work.start.dtype)
        self.fetched[block] = []

    def send(self, worker, request):
        worker.queue.append(request)
        self.sent.append((self.workers.index(worker), len(worker.queue), request))

    def first(self):
        return [(worker, worker.queue[0], True) for worker in self.workers if worker.queue]

    def end(self, worker, why):
        self.ended.append(worker)
        self.workers[self.workers.index(worker)] = Desk()
        return [Lost(request, i == 0, why) for i, request in enumerate(worker.queue)]

    def wait(self, seconds):
        worker = [worker for worker in self.workers if worker.queue][-1]
        request = worker.queue[0]
        if why := self.lose(request):
            lost = [Lost(each, i == 0, why) for i, each in enumerate(worker.queue)]
            worker.queue.clear()
            return [], lost
        worker.queue.popleft()
        if isinstance(request, Piece):
            work = request.block.work.rows(torch.tensor(request.rows))
            out = self.engine.block(work, torch.empty_like(work.start))
            request.answer = answer(out)
            self.fetched[request.block].append((request, out.delta))
        else:
            request.answer = ask(self.problem, request.what, request.model, *request.arguments)
        return [request], []

    def fetch(self, block):
        found, self.fetched[block] = self.fetched[block], []
        lost = [Lost(piece, True, why) for piece, _ in found if (why := self.vanish(piece))]
        for piece, delta in found:
            self.blocks[block][piece.rows] = delta
        return lost

    def take(self, block):
        return self.blocks.pop(block)

    def drop(self, block):
        del self.blocks[block]

    @contextmanager
    def share(self, models):
        yield models

    def stop(self):
        self.workers, self.stopped = [], self.stopped + 1


def once(rule):
    """`rule` for the first request that it holds for, and never again."""
    done = []

    def first(request):
        if not done and rule(request):
            done.append(request)
            return "its worker was lost"
        return ""

    return first


def trains(client):
    """Whether a request trains this client."""
    return lambda request: isinstance(request, Piece) and client in request.block.work.clients[request.rows]


@pytest.fixture
def here(digits):
    return Here(digits)


@pytest.mark.parametrize("name", ["scaffold", "fedrolex", "qrmix"])
def test_the_bits_are_those_of_serial_whatever_comes_first(name, digits, here, monkeypatch):
    monkeypatch.setattr(rounds, "BLOCK", 2 * digits.layout.size)
    same_bits(digits, Pool(digits, here), name)
    same_scores(digits, Pool(digits, here))
    assert not here.blocks
    assert not here.stopped


def test_rows_that_are_lost_are_trained_again_alone(digits, here):
    here.lose = once(trains(2))
    train(digits, Pool(digits, here), parts("scaffold"), times=1, share=1.0)
    again = [request.rows for _, _, request in here.sent if request.tries]
    assert [2] in again
    assert all(len(rows) == 1 for rows in again)


def test_a_piece_that_its_worker_had_not_begun_is_sent_again_as_it_was(digits, here):
    seen = []

    def lose(request):
        queue = here.workers[-1].queue
        if not seen and len(queue) == 2:
            seen.append(queue[1])
            return "its worker was lost"
        return ""

    here.lose = lose
    train(digits, Pool(digits, here), [], times=1, share=1.0, epochs=1, batch_size=100)
    assert seen[0].tries == 0
    assert [request for _, _, request in here.sent].count(seen[0]) == 2


def test_rows_that_must_be_trained_together_stay_together(digits, here):
    def halves(problem, work):
        return list(torch.arange(len(work)).chunk(2))

    here.lose = once(trains(2))
    train(digits, Pool(digits, here, cut=halves), [], times=1, share=1.0)
    assert [request.rows for _, _, request in here.sent] == [[0, 1, 2, 3], [4, 5, 6], [0, 1, 2, 3]]


def test_deltas_that_are_lost_before_they_are_fetched_are_made_again(digits, here):
    here.vanish = once(trains(3))
    same_bits(digits, Pool(digits, here), "scaffold", share=1.0)
    assert any(request.tries for _, _, request in here.sent)


@pytest.mark.parametrize("where", ["lose", "vanish"])
def test_a_client_that_is_lost_three_times_is_named(where, digits, here):
    setattr(here, where, lambda request: "it was lost" if trains(2)(request) else "")
    with pytest.raises(
        ArnoError, match=r"client 2 in round 1: it was lost while it trained \(\d+ steps\), 3 times; try another day"
    ):
        train(digits, Pool(digits, here), [], share=1.0)
    assert sum(trains(2)(request) for _, _, request in here.sent) == 3


def test_a_score_that_is_lost_three_times_is_given_up(digits, here):
    here.lose = lambda request: "its worker was lost"
    with pytest.raises(
        ArnoError, match=r"scoring before the first round: its worker was lost while it scored test, .*, 3 times"
    ):
        Pool(digits, here).tally(digits.init(0), "test")


def test_a_second_piece_waits_behind_a_worker_only_while_many_are_left(digits, here):
    train(digits, Pool(digits, here), [], times=1, share=1.0, epochs=1, batch_size=100)
    depths = [depth for _, depth, _ in here.sent]
    assert depths[:4] == [1, 1, 2, 2]
    assert depths[-here.count :] == [1] * here.count


def test_a_piece_that_may_not_wait_is_sent_to_idle_workers_only(digits, here):
    here.may_wait = lambda piece: False
    train(digits, Pool(digits, here), [], times=1, share=1.0, epochs=1, batch_size=100)
    assert {depth for _, depth, _ in here.sent} == {1}


def test_short_pieces_wait_too_and_a_message_carries_what_it_is_worth(digits):
    here = Here(digits, worth=1e9)
    pool = Pool(digits, here)
    for _ in range(2):  # the first round shows how long a step takes
        here.sent.clear()
        train(digits, pool, [], times=1, share=1.0)
    assert [len(request.rows) for _, _, request in here.sent] == [7]


def test_a_loop_that_is_left_early_leaves_nothing_behind(digits, monkeypatch):
    monkeypatch.setattr(rounds, "BLOCK", 2 * digits.layout.size)
    here = Here(digits, count=1)
    results = Pool(digits, here).train(Federation(digits).blocks(range(7), 0))
    next(results)
    assert here.busy
    results.close()
    assert not here.blocks
    assert not here.busy
    assert here.stopped == 1


def test_a_question_that_fails_stops_the_other_ones(digits, here, monkeypatch):
    def fails(self, w, split):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(type(digits), "total", fails)
    w = digits.init(0)
    with pytest.raises(ZeroDivisionError):
        Pool(digits, here).score([w, w], "test")
    assert here.stopped == 1
