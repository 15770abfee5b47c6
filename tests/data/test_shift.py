"""Feature shift: whose samples change, by how much, and that engines and seeds of training have no say in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arno.config.build import split, supervised
from arno.config.settings import compose, plain
from arno.data.shift import rotated
from arno.errors import ArnoError


def parts(*words: str, clients: int = 4):
    return split(plain(compose([f"clients={clients}", *words])))


def test_rotation_turns_the_images_of_each_client():
    words = ("partition=iid", "data.shift=rotation", "data.shift_strength=360")
    data, train, held, partition = parts(*words)
    plain_data = parts("partition=iid")[0]
    for k in range(4):
        rows = train[partition[k]]
        assert torch.equal(data.x[rows], torch.rot90(plain_data.x[rows], k, (2, 3)))
    assert torch.equal(data.y, plain_data.y)
    for now, before in ((data.x[held], plain_data.x[held]), (data.x_test, plain_data.x_test)):
        turns = [(now == torch.rot90(before, k, (2, 3))).flatten(1).all(1) for k in range(4)]
        assert torch.stack(turns).any(0).all(), "a held-out image is turned as those of some client"
        assert all(0.15 < float(one.double().mean()) < 0.4 for one in turns)


def test_a_sample_that_a_client_holds_out_is_changed_as_its_own(tmp_path):
    path = tmp_path / "t.csv"
    random = np.random.default_rng(0)
    lines = [f"{random.normal():.4f},{i % 2},{'abcd'[i % 4]}\n" for i in range(400)]
    path.write_text("x,y,who\n" + "".join(lines))
    words = ("data=table", f"data.path={path}", "data.label=y", "data.client=who", "data.val=0.25")
    data, _, held, _ = split(plain(compose([*words, "data.shift=scale", "data.shift_strength=16"])))
    before = split(plain(compose(words)))[0]
    factor = (data.x / before.x).flatten()
    assert torch.allclose(factor, 2.0 ** data.client.float(), rtol=1e-5)
    assert len(held) == 80
    assert set((data.x_test / before.x_test).flatten().log2().round().tolist()) == {0.0, 1.0, 2.0, 3.0}


def test_own_test_samples_are_changed_as_the_clients_others():
    problem = supervised(
        plain(compose(["clients=4", "partition=iid", "data.client_test=0.3", "data.shift=noise", "data.val=0"]))
    )
    still = supervised(plain(compose(["clients=4", "partition=iid", "data.client_test=0.3", "data.val=0"])))
    for rows in (problem.partition, problem.own_test):
        off = [(problem.x[rows[k]].float() - still.x[rows[k]].float()).std() / 16 / 0.3760 for k in range(4)]
        assert off[0] == 0
        assert off == sorted(off)
        assert 0.3 < float(off[2]) < 0.5, "half a deviation, less what is cut at black and white"


def test_noise_of_tables_has_the_announced_deviation():
    words = ("data=sklearn", "data.name=breast_cancer", "partition=iid")
    data, train, _, partition = parts(*words, "data.shift=noise", "data.shift_strength=2", clients=2)
    before = parts(*words, clients=2)[0]
    off = (data.x - before.x) / torch.tensor(data.std)
    assert off[train[partition[0]]].abs().max() == 0
    assert float(off[train[partition[1]]].std()) == pytest.approx(1.0, rel=0.05)


def test_the_shift_follows_the_split_and_not_the_run():
    words = ("partition=iid", "partition.seed=0", "data.shift=noise")
    one, other = (parts(*words, f"seed={seed}")[0] for seed in (0, 1))
    assert one.fingerprint() == other.fingerprint()
    assert one.fingerprint() != parts("partition=iid", "partition.seed=0")[0].fingerprint()
    assert "feature shift: of client k = 0, 1, … noise with 1·k/4 deviations is added" in one.notes[-1]


def test_rotation_by_small_angles_keeps_the_middle_and_the_type():
    image = torch.zeros(2, 1, 9, 9, dtype=torch.uint8)
    image[:, :, 4] = 200
    turned = rotated(image, 45)
    assert turned.dtype == torch.uint8
    assert turned[0, 0, 4, 4] == 200
    assert turned[0, 0, 2, 6] > 80, "counter-clockwise: the right end of a horizontal line moves up"
    assert turned[0, 0, 2, 2] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data=sklearn", "data.name=wine", "data.shift=rotation"), "^data.shift = rotation: only images can be"),
        (("data.shift_strength=3",), "^data.shift_strength = 3: there is no shift; add data.shift=rotation"),
        (("data.shift=noise", "data.shift_strength=-1"), "^data.shift_strength = -1: it must be above 0"),
        (("data.shift=noise", "partition=replace"), "^data.shift = noise: clients share samples"),
        (("data.shift=colour",), "data.shift"),
    ],
)
def test_what_cannot_be_shifted_is_an_error(words, said):
    with pytest.raises(ArnoError, match=said):
        parts(*words)
