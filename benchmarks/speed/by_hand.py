"""The loop that people write first: deepcopy, DataLoader, torch.optim, averaged state dictionaries.

python benchmarks/speed/by_hand.py FOLDER ROUNDS THREADS
"""

import copy
import sys

import torch
from common import Memory, Task, clock, report
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

folder, rounds, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
memory, task = Memory(), Task(folder)
data, model, seconds = TensorDataset(task.x, task.y), task.network(), []
for t in range(rounds):
    began = clock()
    states, sizes = [], []
    for k in task.cohorts[t]:
        local = copy.deepcopy(model)
        optimiser = torch.optim.SGD(local.parameters(), lr=task.lr)
        for x, y in DataLoader(Subset(data, task.parts[k]), batch_size=task.batch_size, shuffle=True):
            optimiser.zero_grad()
            F.cross_entropy(local(x), y).backward()
            optimiser.step()
        states.append(local.state_dict())
        sizes.append(len(task.parts[k]))
    total = sum(sizes)
    mean = {name: sum(s[name] * (n / total) for s, n in zip(states, sizes, strict=True)) for name in states[0]}
    model.load_state_dict(mean)
    seconds.append(clock() - began)
accuracy = task.accuracy(model)
report(seconds, memory.end(), accuracy)
