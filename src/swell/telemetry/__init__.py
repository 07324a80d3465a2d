"""A run's events, shown while it trains and drawn afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from swell.core.protocols import Sink
from swell.telemetry.fanout import Fanout
from swell.telemetry.html_report import write_report
from swell.telemetry.log import EventLog, last_samples, read_events
from swell.telemetry.log_reader import LOG_NAME, LogReader
from swell.telemetry.log_tail import recent_events
from swell.telemetry.mlflow_sink import MlflowSink
from swell.telemetry.progress import ProgressLine
from swell.telemetry.report import compare, draw_run
from swell.telemetry.reporter import Reporter
from swell.telemetry.series import Series, series_of
from swell.telemetry.tensorboard import TensorBoardSink
from swell.telemetry.timeline import draw_timeline
from swell.telemetry.tracker import TrackerSink
from swell.telemetry.warning_log import WarningLog

__all__ = [
    "LOG_NAME",
    "EventLog",
    "Fanout",
    "LogReader",
    "MlflowSink",
    "ProgressLine",
    "Reporter",
    "Series",
    "TensorBoardSink",
    "TrackerSink",
    "WarningLog",
    "compare",
    "draw_run",
    "draw_timeline",
    "last_samples",
    "open_sinks",
    "read_events",
    "recent_events",
    "series_of",
    "write_report",
]


def open_sinks(
    folder: str | os.PathLike[str] | None,
    *,
    progress: bool | None = None,
    extra: Sequence[Sink] = (),
    may_write: Callable[[], bool] = lambda: True,
) -> Fanout:
    """The sinks of one process of a run: its log in ``folder``, a progress line, and the user's own.

    Without a folder there is no log. ``progress`` is True for a progress line, False for none, and None for one only if
    the standard output is a terminal; without one, warnings go to the logger ``swell``. ``may_write`` is asked before
    each event whether this process writes the folder's log.
    """
    sinks: list[Sink] = []
    if folder is not None:
        sinks.append(EventLog(Path(folder) / LOG_NAME, small=True, may_write=may_write))
    line = ProgressLine()
    sinks.append(line if (line.live if progress is None else progress) else WarningLog())
    return Fanout([*sinks, *extra])
