"""TensorBoard."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from time import time
from typing import Any

from ..limits import IMAGE, read_bytes
from ..records.folder import RunFolder
from . import trackers
from .tracker import Record, State, Tracker


@trackers.register("tensorboard", needs=("tensorboard",))
class TensorBoard(Tracker):
    """Event files in the folder `uri`, by default `tensorboard` in the run's folder. They are written without torch."""

    def open(self, folder: RunFolder, state: State) -> None:
        """Begin an event file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(self.uri or str(folder.path / "tensorboard"))
        if not state.get("described"):
            self._add(0, time(), [self._text("config", json.dumps(folder.config(), indent=2))])
            state["described"] = True

    def send(self, records: Sequence[Record]) -> None:
        """Write one event per round."""
        for record in records:
            values = [self._summary.Value(tag=name, simple_value=value) for name, value in record.values.items()]
            self._add(record.round, record.time, values)
        self._writer.flush()

    def finish(self, folder: RunFolder, status: str) -> None:
        """Write the pictures and the manifest."""
        now = time()
        for path in sorted(path for path in folder.path.glob("*.png") if path.is_file()):
            data = read_bytes(path, most=IMAGE) if path.stat().st_size <= IMAGE else b""
            if len(data) < 24:  # a damaged picture without its size
                continue
            width, height = struct.unpack(">II", data[16:24])
            image = self._summary.Image(height=height, width=width, colorspace=4, encoded_image_string=data)
            self._add(0, now, [self._summary.Value(tag=path.stem, image=image)])
        self._add(0, now, [self._text("manifest", json.dumps(folder.manifest(), indent=2))])
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def _text(self, tag: str, text: str) -> Any:
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto

        about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype="DT_STRING", string_val=[f"```\n{text}\n```".encode()])
        return self._summary.Value(tag=tag, metadata=about, tensor=tensor)

    def _add(self, step: int, when: float, values: Sequence[Any]) -> None:
        self._writer.add_event(self._event(wall_time=when, step=step, summary=self._summary(value=values)))
