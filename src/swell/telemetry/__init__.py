"""A run's events, shown while it trains and drawn afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from swell.core.protocols import Sink
from swell.telemetry.fanout import Fanout
from swell.telemetry.log import EventLog, last_step, read_events
from swell.telemetry.progress import ProgressLine
from swell.telemetry.report import compare, draw_run
from swell.telemetry.series import Series, series_of
from swell.telemetry.tensorboard import TensorBoardSink
from swell.telemetry.timeline import draw_timeline

LOG_NAME = "events.jsonl"

__all__ = [
    "LOG_NAME",
    "EventLog",
    "Fanout",
    "ProgressLine",
    "Series",
    "TensorBoardSink",
    "compare",
    "draw_run",
    "draw_timeline",
    "last_step",
    "open_sinks",
    "read_events",
    "series_of",
]


def open_sinks(
    folder: str | os.PathLike[str] | None, *, progress: bool | None = None, extra: Sequence[Sink] = ()
) -> Fanout:
    """The sinks of one process of a run: its log in ``folder``, a progress line, and the user's own.

    Without a folder there is no log. ``progress`` is True for a progress line, False for none, and None for one only if
    the standard output is a terminal.
    """
    sinks: list[Sink] = []
    if folder is not None:
        sinks.append(EventLog(Path(folder) / LOG_NAME))
    line = ProgressLine()
    if line.live if progress is None else progress:
        sinks.append(line)
    return Fanout([*sinks, *extra])
