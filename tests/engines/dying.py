"""A run that is killed, for a process of its own."""

import os
import signal

import arno
from arno.runs import run as runs

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
