"""The loop that people write first: deepcopy, DataLoader, torch.optim, averaged models.

python benchmarks/speed/by_hand.py FOLDER ROUNDS THREADS [scaffold | fedvarp]
"""

import copy
import sys

import torch
from common import Memory, Task, clock, report
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, Subset, TensorDataset

folder, rounds, threads, method = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), (*sys.argv[4:], "fedavg")[0]
torch.set_num_threads(threads)
memory, task = Memory(), Task(folder)
data, model, seconds = TensorDataset(task.x, task.y), task.network(), []
n, w = len(task.parts), parameters_to_vector(model.parameters()).detach()
mean, kept = torch.zeros_like(w), {}  # SCAFFOLD's c and c_k, FedVARP's mean of y and y_k
for t in range(rounds):
    began = clock()
    deltas, sizes, change = [], [], torch.zeros_like(w)
    for k in task.cohorts[t]:
        local, steps, mine = copy.deepcopy(model), 0, kept.get(k, torch.zeros_like(w))
        optimiser = torch.optim.SGD(local.parameters(), lr=task.lr)
        pieces = [p.numel() for p in local.parameters()]
        for x, y in DataLoader(Subset(data, task.parts[k]), batch_size=task.batch_size, shuffle=True):
            optimiser.zero_grad()
            F.cross_entropy(local(x), y).backward()
            if method == "scaffold":
                for p, drift in zip(local.parameters(), (mean - mine).split(pieces), strict=True):
                    p.grad += drift.view_as(p)
            optimiser.step()
            steps += 1
        delta = parameters_to_vector(local.parameters()).detach() - w
        if method == "scaffold":
            new = mine - mean - delta / (steps * task.lr)
        elif method == "fedvarp":
            new = delta
        if method != "fedavg":
            kept[k], change = new, change + new - mine
        deltas.append(delta)
        sizes.append(len(task.parts[k]))
    total, m = sum(sizes), len(sizes)
    if method == "fedvarp":
        w = w + mean + change / m
    else:
        w = w + sum(delta * (size / total) for delta, size in zip(deltas, sizes, strict=True))
    mean = mean + change / n
    vector_to_parameters(w, model.parameters())
    seconds.append(clock() - began)
accuracy = task.accuracy(model)
report(seconds, memory.end(), accuracy)
