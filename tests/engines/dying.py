"""A run that is killed, for a process of its own."""

import os
import signal

from training import words as method_words

import arno
from arno.methods import methods
from arno.runs.loop import Loop

LOCAL = {
    "fedrcl": ["local.augment=false", "local.epochs=1"],
    "lorenzo": ["local.epochs=1", "local.batch_size=8", "participation=1"],
}


def words(name, out):
    general = ["clients=7", "participation=0.5", "rounds=6", "checkpoint.every=2", "model.hidden=[8]", "data.limit=200"]
    if methods.info(name)["family"] == "personal":
        general.append("data.client_test=0.3")
    return [*method_words(name), *general, *LOCAL.get(name, []), f"out={out}"]


def run_and_die(name, out, after):
    real = Loop.round

    def one_round(self):
        if self.fed.t == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self)

    Loop.round = one_round
    arno.run(*words(name, out))
