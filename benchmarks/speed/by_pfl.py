"""pfl-research: two processes, one thread each.

torchrun --nproc_per_node=2 benchmarks/speed/by_pfl.py FOLDER ROUNDS [scaffold]
"""

import os
import sys
from itertools import pairwise

import torch
from common import Memory, Task, clock, report
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F

folder, rounds, scaffold = sys.argv[1], int(sys.argv[2]), "scaffold" in sys.argv
torch.set_num_threads(1)
first = int(os.environ.get("RANK", 0)) == 0
memory, task, ends = Memory(), Task(folder), []
queue = iter([k for cohort in task.cohorts for k in cohort])
held = [(task.x[rows], task.y[rows]) for rows in task.parts]


def data_of(k: int) -> Dataset:
    x, y = held[k]
    order = torch.randperm(len(y))  # pfl does not shuffle
    return Dataset((x[order], y[order]), user_id=str(k))


class Clock(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        ends.append(clock())
        return False, Metrics()


net = task.network()
net.loss = lambda x, y: F.cross_entropy(net(x), y)
net.metrics = lambda x, y: {}
federated = FederatedDataset(data_of, lambda: next(queue))
settings = {
    "central_num_iterations": rounds, "evaluation_frequency": 10**9,
    "train_cohort_size": len(task.cohorts[0]), "val_cohort_size": None,
}  # fmt: skip
algorithm, params = FederatedAveraging(), NNAlgorithmParams(**settings)
if scaffold:
    from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
    from pfl.data.user_state import DiskUserStateStorage
    from pfl.stats import MappedVectorStatistics

    torch.serialization.add_safe_globals([MappedVectorStatistics])  # pfl's states are older than torch's caution

    states = {
        "population": len(task.parts),
        "user_state_storage": DiskUserStateStorage(str(task.path / f"states-{os.getppid()}")),
    }
    algorithm, params = SCAFFOLD(), SCAFFOLDParams(**settings, **states, use_gradient_as_control_variate=False)
algorithm.run(
    algorithm_params=params,
    backend=SimulatedBackend(training_data=federated, val_data=federated, postprocessors=[WeightByDatapoints()]),
    model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
    model_train_params=NNTrainHyperParams(
        local_batch_size=task.batch_size, local_num_epochs=1, local_learning_rate=task.lr
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=task.batch_size),
    callbacks=[Clock()],
)
if first:
    seconds = [later - earlier for earlier, later in pairwise(ends)]
    others = memory.peak * (int(os.environ.get("WORLD_SIZE", 1)) - 1)  # as much as this one, which alone evaluates
    accuracy = task.accuracy(net.eval())
    report(seconds, memory.end() + others, accuracy)
os._exit(0)
