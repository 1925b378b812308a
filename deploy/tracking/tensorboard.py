"""Write event files that TensorBoard reads, into a folder for each training. Nothing leaves the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from precad.deploy.tracking.points import Point
from precad.deploy.tracking.scalars import Named

_ALL = {"scalars": 0}
"""How many an accumulator keeps of each name: all."""
_PLUGIN = SummaryMetadata.PluginData(plugin_name="scalars")
"""The page of TensorBoard that shows a value."""


class TensorBoardWriter:
    """A folder of event files."""

    def __init__(self, folder: Path, training: str) -> None:
        """Raises OSError."""
        self._folder = folder / training
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = EventFileWriter(str(self._folder))

    def written(self) -> set[Named]:
        """Return the scalars of all event files; what a crash left of an event is none."""
        found = EventAccumulator(str(self._folder), size_guidance=_ALL, purge_orphaned_data=False)
        found.Reload()
        return {(tag, event.step) for tag in found.Tags()["scalars"] for event in found.Scalars(tag)}

    def write(self, points: Sequence[Point], labels: Mapping[str, str]) -> None:
        """Add an event per point. Labels are the descriptions of the plots."""
        for point in points:
            metadata = SummaryMetadata(plugin_data=_PLUGIN, summary_description=labels.get(point.name, ""))
            value = Summary.Value(tag=point.name, simple_value=_single(point), metadata=metadata)
            self._file.add_event(Event(wall_time=point.at, step=point.round, summary=Summary(value=[value])))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _single(point: Point) -> float:
    """Return the value in single precision, which the files have: a bound is rounded up, so that it is one still."""
    value = np.float32(point.value)
    if point.is_bound and math.isfinite(point.value) and float(value) < point.value:
        value = np.nextafter(value, np.float32(np.inf))
    return float(value)
