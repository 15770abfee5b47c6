"""Every method, killed with SIGKILL in the middle of a run and resumed, ends with the bits of a run never stopped."""

import multiprocessing
import os
import signal

import pytest
import torch
from dying import run_and_die, words

import arno
from arno.methods import methods

#: From a process without threads: other tests may have left some in this one, and to fork beside them is a gamble.
CHILDREN = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
CHILDREN.set_forkserver_preload(["arno.runs.run", "pandas", "torch"])

#: Tables that begin at zero, tables of models and of some coordinates that begin at w⁰, and weights that begin at one.
ON_DISK = ("scaffold", "compose", "ditto", "fedper", "fedala", "pfedme")


@pytest.mark.parametrize("state", ["memory", "disk"])
@pytest.mark.parametrize("name", methods.names())
def test_attack_sigkill_and_resume_is_never_stopped(name, state, tmp_path):
    if state == "disk" and name not in ON_DISK:
        pytest.skip("tables on disk are the same class: these methods stand for all")
    whole = arno.run(*words(name, tmp_path / "whole"))
    child = CHILDREN.Process(target=run_and_die, args=(name, tmp_path / "cut", 5))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    again = arno.resume(tmp_path / "cut", f"state={state}")
    assert again.folder.manifest()["status"] == "done"
    assert torch.equal(whole.final, again.final)
    assert torch.equal(whole.best, again.best)
    numbers = ["train_loss", "test_accuracy", "test_f1", "val_loss", "local_steps", "uploaded_bytes"]
    numbers += [column for column in whole.history.columns if column.startswith(("own_", "personal_"))]
    assert whole.history[numbers].equals(again.history[numbers])
    own = [column for column in whole.clients.columns if column != "seconds"]
    assert whole.clients[own].equals(again.clients[own])
