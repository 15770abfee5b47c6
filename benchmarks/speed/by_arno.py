"""Arno through its normal path: `arno.run` with the data, the clients and the cohorts of the folder.

python benchmarks/speed/by_arno.py FOLDER ROUNDS [key=value ...]
"""

import json
import sys
import tempfile
from pathlib import Path

from common import BATCH, LR, Memory, report

import arno

folder, rounds, more = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
model = {"W1": "lenet5", "W2": "softmax", "W4": "mlp"}.get(folder.name, "custom")
clients = len(json.loads((folder / "clients.json").read_text()))
settings = [
    "data=npz", f"data.path={folder / 'data.npz'}", "data.val=0", f"clients={clients}",
    "partition=file", f"partition.path={folder / 'clients.json'}",
    "select=schedule", f"select.path={folder / 'cohorts.json'}",
    f"model={model}", f"local.batch_size={BATCH[folder.name]}", f"local.lr={LR}",
    f"rounds={rounds}", f"eval.every={rounds}", "checkpoint.every=0",
]  # fmt: skip
if folder.name == "W3":
    settings.append(f"model.target={Path(__file__).parent / 'common.py'}:five_layers")
if folder.name == "W4":
    settings.append("model.hidden=[128]")
memory = Memory()
with tempfile.TemporaryDirectory() as out:
    result = arno.run(*settings, *more, out=f"{out}/run")
    used, history = memory.end(), result.history
# The last round holds the only evaluation, which the others do not time: it is left out.
report(history["seconds"].tolist()[:-1], used, float(history["test_accuracy"].iloc[-1]))
