"""BlazeFL: two processes that share memory, or two threads, with one torch thread each.

python benchmarks/speed/by_blazefl.py FOLDER ROUNDS processes|threads
"""

import os
import sys
import tempfile
import threading
from itertools import pairwise
from pathlib import Path

import torch
import torch.multiprocessing as mp
from blazefl.contrib import fedavg
from blazefl.core import IPCMode
from common import Memory, Task, clock, network, report
from torch.utils.data import DataLoader, Subset, TensorDataset

PARALLEL = 2
folder, rounds, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
task = Task(folder)
data = TensorDataset(task.x, task.y)
making = threading.Lock()


class Held:
    """Every worker process inherits the data: only this object is sent."""

    def get_dataset(self, type_, cid):
        return Subset(data, task.parts[cid])

    def set_dataset(self, type_, cid, dataset):
        pass

    def get_dataloader(self, type_, cid, batch_size, generator=None):
        return DataLoader(self.get_dataset(type_, cid), batch_size=batch_size, shuffle=True, generator=generator)


class Selector:
    def select_model(self, name):
        with making:  # `network` seeds torch's global stream
            return network(name)


class Handler(fedavg.FedAvgBaseServerHandler):
    def sample_clients(self):
        return task.cohorts[self.round]


def main() -> None:
    memory, marks = Memory(), [clock()]
    fedavg.tqdm = lambda jobs, **more: jobs
    n, m, seed = len(task.parts), len(task.cohorts[0]), int(os.environ.get("SEED", 0))
    handler = Handler(Selector(), task.name, Held(), rounds, n, m / n, "cpu", task.batch_size, seed)
    handler.num_clients_per_round = m
    handler.model = task.network()
    settings = {
        "model_selector": Selector(), "model_name": task.name, "dataset": Held(), "device": "cpu", "num_clients": n,
        "epochs": 1, "batch_size": task.batch_size, "lr": task.lr, "seed": seed, "num_parallels": PARALLEL,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        if kind == "threads":
            trainer = fedavg.FedAvgThreadPoolClientTrainer(**settings)
        else:
            places = {"share_dir": Path(scratch) / "share", "state_dir": Path(scratch) / "state"}
            trainer = fedavg.FedAvgProcessPoolClientTrainer(**settings, **places, ipc_mode=IPCMode.SHARED_MEMORY)
        while not handler.if_stop():
            trainer.local_process(handler.downlink_package(), handler.sample_clients())
            for package in trainer.uplink_package():
                handler.load(package)
            marks.append(clock())
        seconds = [later - earlier for earlier, later in pairwise(marks)]
        accuracy = task.accuracy(handler.model.eval())
        report(seconds, memory.end(), accuracy)
        if kind == "processes":
            trainer.manager.shutdown()
    os._exit(0)


if __name__ == "__main__":
    mp.set_start_method("fork")
    main()
