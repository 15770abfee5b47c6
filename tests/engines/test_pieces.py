"""Pieces of a block: every row once, none too small, in an order that ends no later than the longest first."""

import pytest
import torch

from arno.engines.pieces import order, pieces


@pytest.mark.parametrize("steps", [[3] * 100, [40, 7, 30, 7, 6, 5, 5, 2, 1, 1], [1], [0, 0], [5, 0, 0]], ids=str)
def test_pieces_hold_every_row_once_and_no_crumbs(steps):
    found = pieces(torch.tensor(steps), 2)
    assert sorted(torch.cat(found).tolist()) == list(range(len(steps)))
    assert all(len(piece) == 1 or sum(steps[j] for j in piece.tolist()) <= sum(steps) / 4 for piece in found)
    assert len(found) <= 16


@pytest.mark.parametrize("least", [1, 7, 30, 60, 140, 299, 601, 5000])
def test_no_piece_is_less_than_is_worth_sending(least):
    steps = torch.full((100,), 3)
    found = pieces(steps, 4, least)
    assert sorted(torch.cat(found).tolist()) == list(range(100))
    assert (len(found) == 1) == (least >= 2 * 300)
    assert len(found) == 1 or len(found) % 4 == 0  # as many for each worker
    if least <= 300 / 4:  # where there is enough for everybody
        assert min(int(steps[piece].sum()) for piece in found) >= least * 2 / 3 - 3


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_pieces_end_no_later_than_longest_first(workers):
    def end(sequence):
        free = [0] * workers
        for i in sequence:
            free[free.index(min(free))] += loads[i]
        return max(free)

    draw = torch.Generator().manual_seed(workers)
    better = 0
    for _ in range(50):
        loads = sorted((torch.rand(4 * workers, generator=draw) * 40).int().add(1).tolist(), reverse=True)
        found = order(loads, workers)
        assert sorted(found) == list(range(len(loads)))
        assert end(found) <= end(range(len(loads)))
        better += end(found) < end(range(len(loads)))
    assert better > 10 or workers == 1
