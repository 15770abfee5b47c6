"""Send the records of a run to MLflow, TensorBoard, Weights & Biases or your own tracker. A tracker is one file.

A run does not wait for its trackers. Every run writes `metrics.jsonl`. For each tracker, a separate process
(`arno track RUN --to mlflow --follow`) reads this file while the run continues, sends the records in batches, and
writes into `track/mlflow.json` which rounds it has sent. Because the records are in the file, the process needs little
memory, and no record is lost if a server is slow or not available. `arno track RUN --to mlflow` sends the rest later.
(A thread in the process of the run would take time from the run, because both need Python's interpreter.)
"""

from ..registry import Registry

trackers = Registry("tracker", "arno.tracking")
