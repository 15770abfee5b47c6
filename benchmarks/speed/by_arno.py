"""Arno through its normal path: `arno.run` with the data, the clients and the cohorts of the folder.

python benchmarks/speed/by_arno.py FOLDER ROUNDS [key=value ...]
"""

import sys
import tempfile
from pathlib import Path

from common import Memory, report, settings

import arno

folder, rounds, more = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
words = [*settings(folder), f"rounds={rounds}", f"eval.every={rounds}", "checkpoint.every=0", *more]
memory = Memory()
with tempfile.TemporaryDirectory() as out:
    result = arno.run(*words, out=f"{out}/run")
    used, history = memory.end(), result.history
# The last round holds the only evaluation, which the others do not time: it is left out.
report(history["seconds"].tolist()[:-1], used, float(history["test_accuracy"].iloc[-1]))
