"""Arno through its normal path: `arno.run` with the data, the clients and the cohorts of the folder.

python benchmarks/speed/by_arno.py FOLDER ROUNDS [own] [key=value ...]

own: with the network that a user writes in place of Arno's own with the same layers.
"""

import os
import sys
import tempfile
from pathlib import Path

import common
from common import Memory, report, settings

import arno
from arno.records import checkpoint

folder, rounds, more = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if more[:1] == ["own"]:
    os.environ["WORKLOAD"] = folder.name
    more = ["model=custom", f"model.target={Path(common.__file__).resolve()}:own", *more[1:]]
# One round more, which is not timed: the last one ends with an evaluation, and nobody else's rounds do.
words = [
    *(word for word in settings(folder) if "model=custom" not in more or not word.startswith("model")),
    f"rounds={rounds + 1}",
    f"eval.every={rounds + 1}",
    f"checkpoint.every={rounds}",
    *more,
]
memory = Memory()
with tempfile.TemporaryDirectory() as out:
    result = arno.run(*words, out=f"{out}/run")
    used, seconds = memory.end(), result.history["seconds"].tolist()[:rounds]
    w = checkpoint.load(result.path / "checkpoints" / f"{rounds:08d}.safetensors").federation["w"]
    accuracy = result.problem.scores(result.problem.total(w, "test"))["accuracy"]
report(seconds, used, accuracy)
