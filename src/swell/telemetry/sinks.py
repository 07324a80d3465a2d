"""The sinks of one process of a run: its log, a line that shows how it is doing, and the user's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from swell.core.protocols import Sink
from swell.telemetry.fanout import Fanout
from swell.telemetry.log import EventLog
from swell.telemetry.log_reader import LOG_NAME
from swell.telemetry.warning_log import WarningLog


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
    line = _progress_line(only_live=not progress) if progress or (progress is None and _may_be_live()) else None
    sinks.append(WarningLog() if line is None else line)
    return Fanout([*sinks, *extra])


def _progress_line(*, only_live: bool) -> Sink | None:
    from swell.telemetry.progress import ProgressLine  # with all of rich, which most workers do without

    line = ProgressLine()
    return line if line.live or not only_live else None


def _may_be_live() -> bool:
    """Whether this may be a terminal or a notebook; only then rich is asked, which knows."""
    try:
        terminal = sys.stdout is not None and sys.stdout.isatty()
    except ValueError:  # it was closed
        terminal = False
    return terminal or "IPython" in sys.modules
