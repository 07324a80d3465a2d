"""A run's events, shown while it trains and drawn afterwards.

A name is loaded when it is first used, because a worker that trains needs neither charts nor pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.lazy_names import lazy_names

_HOME_OF = {
    "LOG_NAME": "log_reader",
    "EventLog": "log",
    "Fanout": "fanout",
    "LogReader": "log_reader",
    "MlflowSink": "mlflow_sink",
    "ProgressLine": "progress",
    "Reporter": "reporter",
    "Series": "series",
    "TensorBoardSink": "tensorboard",
    "TrackerSink": "tracker",
    "WarningLog": "warning_log",
    "compare": "report",
    "draw_run": "report",
    "draw_timeline": "timeline",
    "last_samples": "log",
    "open_sinks": "sinks",
    "read_events": "log",
    "recent_events": "log_tail",
    "series_of": "series",
    "write_report": "html_report",
}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy_names(__name__, {name: f"swell.telemetry.{home}" for name, home in _HOME_OF.items()})

# The same table for type checkers and editors; a test compares the two.
if TYPE_CHECKING:
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
    from swell.telemetry.sinks import open_sinks
    from swell.telemetry.tensorboard import TensorBoardSink
    from swell.telemetry.timeline import draw_timeline
    from swell.telemetry.tracker import TrackerSink
    from swell.telemetry.warning_log import WarningLog
