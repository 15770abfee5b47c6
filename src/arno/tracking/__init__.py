"""Send the records of a run to MLflow, TensorBoard, Weights & Biases or a tracker of your own. One tracker, one file.

A run does not wait for its trackers. It writes `metrics.jsonl`, tracked or not; for each tracker a second process,
`arno track RUN --to mlflow --follow`, reads that file while it grows, sends the records in batches, and notes in
`track/mlflow.json` how far it is. The file is the queue: memory stays bounded, and a server that is slow or down delays
records but loses none. `arno track RUN --to mlflow` sends the rest later. (A thread in place of the process would take
half of the interpreter's time.)
"""

from ..registry import Registry

trackers = Registry("tracker", "arno.tracking")
