"""Every method, killed with SIGKILL in the middle of a run and resumed, ends with the bits of a run never stopped."""

import multiprocessing
import os
import signal

import pytest
import torch

import arno
from arno.experiment import run as runs
from arno.methods import methods

SETTINGS = {
    "cluster_fedvarp": ["method.clusters=3"],
    "fedscavar": ["method.clusters=3"],
    "feddyn": ["method.alpha=0.1"],
    "qrmix": ["method.rank_k=3", "method.oversampling=3"],
    "fedrcl": ["local.augment=false", "local.epochs=1"],
    "lorenzo": ["local.epochs=1", "local.batch_size=8", "participation=1"],
    "compose": ["method.parts=[window,scaffold,cluster_varp,server_momentum]", "method.cluster_varp.clusters=3"],
}


def words(name, out):
    general = ["clients=6", "participation=0.5", "rounds=6", "checkpoint.every=2", "model.hidden=[8]", "data.limit=200"]
    return [f"method={name}", *general, *SETTINGS.get(name, []), f"out={out}"]


def run_and_die(name, out, after):
    real = runs.one_round

    def one_round(fed, *rest):
        if fed.t == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(fed, *rest)

    runs.one_round = one_round
    arno.run(*words(name, out))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the child that is killed is forked")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("state", ["memory", "disk"])
@pytest.mark.parametrize("name", methods.names())
def test_killed_and_resumed_is_never_stopped(name, state, tmp_path):
    if state == "disk" and name not in ("scaffold", "compose"):
        pytest.skip("tables on disk are the same class: two methods stand for all")
    whole = arno.run(*words(name, tmp_path / "whole"))
    child = multiprocessing.get_context("fork").Process(target=run_and_die, args=(name, tmp_path / "cut", 5))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    again = arno.resume(tmp_path / "cut", f"state={state}")
    assert again.folder.manifest()["status"] == "done"
    assert torch.equal(whole.final, again.final)
    assert torch.equal(whole.best, again.best)
    numbers = ["train_loss", "test_accuracy", "test_f1", "val_loss", "local_steps", "uploaded_bytes"]
    assert whole.history[numbers].equals(again.history[numbers])
    own = [column for column in whole.clients.columns if column != "seconds"]
    assert whole.clients[own].equals(again.clients[own])
