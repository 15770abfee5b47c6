"""FedLab's standalone pipeline: one client after another.

python benchmarks/speed/by_fedlab.py FOLDER ROUNDS THREADS [scaffold]
"""

import os
import sys
import types
from itertools import pairwise

import torch
from common import Memory, Task, clock, report

for name in ("torchvision", "torchvision.transforms", "torchvision.datasets", "torchvision.models"):
    sys.modules.setdefault(name, types.ModuleType(name))  # FedLab imports it; nothing here uses it

from fedlab.contrib.algorithm import basic_client, scaffold  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402
from torch.utils.data import DataLoader, Subset, TensorDataset  # noqa: E402

folder, rounds, threads, controlled = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "scaffold" in sys.argv
torch.set_num_threads(threads)
memory, task = Memory(), Task(folder)
n, m = len(task.parts), len(task.cohorts[0])


class Held:
    data = TensorDataset(task.x, task.y)

    def get_dataloader(self, k, batch_size=None):
        return DataLoader(Subset(self.data, task.parts[k]), batch_size=batch_size, shuffle=True)


class Silent(list):
    def set_description(self, *words, **more):
        pass


basic_client.tqdm = scaffold.tqdm = Silent
Trainer = scaffold.ScaffoldSerialClientTrainer if controlled else basic_client.SGDSerialClientTrainer
Handler = scaffold.ScaffoldServerHandler if controlled else SyncServerHandler
trainer, handler = Trainer(task.network(), n), Handler(task.network(), rounds, m / n)
trainer.setup_dataset(Held())
trainer.setup_optim(1, task.batch_size, task.lr)
handler.num_clients = n
if controlled:
    handler.setup_optim(1.0)
cohorts, marks = iter(task.cohorts), [clock()]
handler.sample_clients = lambda *words: next(cohorts)
type(handler).num_clients_per_round = property(lambda self: m)


class Timed(StandalonePipeline):
    def evaluate(self):
        marks.append(clock())


Timed(handler, trainer).main()
seconds = [later - earlier for earlier, later in pairwise(marks)]
accuracy = task.accuracy(handler.model.eval())
report(seconds, memory.end(), accuracy)
os._exit(0)
