"""Flower's simulation on Ray: two actors with one thread each, FedAvg; its sampler draws the cohorts.

python benchmarks/speed/by_flower.py FOLDER ROUNDS
"""

import os
import sys
from itertools import pairwise
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parent)}

import torch
from common import Memory, Task, clock, network, report
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

folder, rounds = sys.argv[1], int(sys.argv[2])
task, memory, ends, final = Task(folder), Memory(), [], {}
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    import common
    import torch
    from torch.utils.data import DataLoader, Subset, TensorDataset

    torch.set_num_threads(1)
    if not hasattr(common, "kept"):  # data once per actor
        common.kept = common.Task(message.content["config"]["folder"])
    task, k = common.kept, context.node_config["partition-id"]
    model = common.network(task.name)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=task.lr)
    data = Subset(TensorDataset(task.x, task.y), task.parts[k])
    for x, y in DataLoader(data, batch_size=task.batch_size, shuffle=True):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(task.parts[k])})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


class Timed(FedAvg):
    def aggregate_train(self, server_round, replies):
        out = super().aggregate_train(server_round, replies)
        ends.append(clock())
        return out


@server.main()
def main(grid: Grid, context: Context) -> None:
    n, m = len(task.parts), len(task.cohorts[0])
    strategy = Timed(fraction_train=m / n, fraction_evaluate=0.0, min_train_nodes=m, min_available_nodes=n)
    start = ArrayRecord(task.network().state_dict())
    result = strategy.start(
        grid=grid, initial_arrays=start, train_config=ConfigRecord({"folder": folder}), num_rounds=rounds
    )
    final.update(result.arrays.to_torch_state_dict())


resources = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"address": "local", "num_cpus": 2, "include_dashboard": False},
}
run_simulation(server, client, num_supernodes=len(task.parts), backend_config=resources)
model = network(task.name)
model.load_state_dict(final)
seconds = [later - earlier for earlier, later in pairwise(ends)]
torch.set_num_threads(1)
accuracy = task.accuracy(model)
report(seconds, memory.end(), accuracy)
