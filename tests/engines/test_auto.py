"""The automatic choice: which engine, said aloud, recorded, and the same again."""

import json

import pytest
import torch

import arno
from arno.config import build
from arno.config.settings import compose, plain
from arno.core.serial import Serial
from arno.engines.auto import Auto, auto, choose
from arno.errors import ArnoError


def chosen(*words, cores=2):
    fed = build.federation(plain(compose(["clients=6", "data.limit=200", *words])))
    return choose(fed.problem, next(fed.blocks(range(6), 0)), cores)


@pytest.mark.parametrize(
    ("words", "cores", "kind"),
    [
        ([], 2, "batched"),
        ([], 1, "batched"),
        (["method=moon"], 2, "processes"),
        (["method=moon"], 1, "serial"),
        (["method=fedrcl"], 2, "processes"),
        (["model.hidden=[3000,200]"], 2, "processes"),
    ],
)
def test_the_choice(words, cores, kind):
    assert chosen(*words, cores=cores) == kind


def test_it_agrees_with_serial_and_says_what_it_took(tmp_path, capsys):
    words = ["rounds=3", "clients=6", "data.limit=200", "dtype=float64"]
    a = arno.run(*words, "engine=serial", f"out={tmp_path / 'a'}")
    b = arno.run(*words, "engine=auto", f"out={tmp_path / 'b'}")
    assert float((a.final - b.final).abs().max()) < 1e-10
    engine = json.loads((tmp_path / "b" / "manifest.json").read_text())["engine"]
    assert engine["name"] == "auto (batched)"
    assert engine["equality"] == "as serial to rounding"
    again = arno.run(*words, "engine=auto", f"out={tmp_path / 'c'}")
    assert torch.equal(b.final, again.final)


def test_a_sequential_method_trains_one_client_on_all_cores(tmp_path):
    words = ["method=lorenzo", "rounds=2", "clients=4", "data.limit=300", "local.epochs=1", "local.batch_size=8"]
    run = arno.run(*words, "engine=auto", "engine.cores=2", f"out={tmp_path / 'l'}")
    assert json.loads((run.path / "manifest.json").read_text())["engine"]["name"] == "auto (batched, serial)"


def test_a_network_of_which_a_block_holds_one_client_needs_no_workers(tmp_path, monkeypatch):
    words = ["rounds=1", "clients=3", "data.limit=100", "model.hidden=[3000,200]", "engine.cores=2"]
    usual = Auto(build.supervised(plain(compose(words))), 2)
    assert usual.scorers() == 2
    for place in ("arno.core.federation.BLOCK", "arno.engines.auto.BLOCK"):
        monkeypatch.setattr(place, usual.problem.layout.size)
    assert Auto(usual.problem, 2).scorers() == 0
    made, threads = [], []
    monkeypatch.setattr("arno.engines.auto.processes", lambda *_, **settings: made.append(settings))
    score = Serial.tally
    monkeypatch.setattr(
        Serial, "tally", lambda self, *of: (threads.append(torch.get_num_threads()), score(self, *of))[1]
    )
    run = arno.run(*words, f"out={tmp_path / 'large'}")
    assert json.loads((run.path / "manifest.json").read_text())["engine"]["name"] == "auto (serial)"
    assert not made
    assert set(threads) == {2}


def test_cores_must_not_be_negative():
    with pytest.raises(ArnoError, match=r"engine\.cores = -1"):
        auto(None, cores=-1)
    assert isinstance(auto(None, cores=3), Auto)
