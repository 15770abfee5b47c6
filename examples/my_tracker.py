"""A tracker of your own: the records of a run as a CSV file.

    arno run rounds=5 track=examples/my_tracker.py:CsvTracker@records.csv
    arno track RUN --to examples/my_tracker.py:CsvTracker@records.csv

The text after the @ is `uri`; here it is the file. To make a tracker part of Arno, put the class into a file of
src/arno/tracking and decorate it with `@trackers.register("csv", needs=())`; then `track=csv` finds it.
"""

import csv
from pathlib import Path

from arno.tracking.tracker import Tracker


class CsvTracker(Tracker):
    """Writes round, time, name and value."""

    def open(self, folder, state):
        self._path = Path(self.uri or folder.path / "records.csv")

    def send(self, records):
        self._write([r.round, r.time, name, value] for r in records for name, value in r.values.items())

    def finish(self, folder, status):
        self._write([["end", "", "status", status]])

    def close(self):
        pass

    def _write(self, rows):
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerows(rows)
