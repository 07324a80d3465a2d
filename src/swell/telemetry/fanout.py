"""One sink that passes every event on to several."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from swell.core.events import Event
from swell.core.protocols import Sink
from swell.telemetry.log import EventLog
from swell.telemetry.warning_log import WarningLog

_LOGGER = logging.getLogger("swell")


class Fanout:
    """Passes every event on to each sink; a sink that raises is closed with one warning and gets no more events.

    A watcher must not be able to end a run.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = list(sinks)
        self._look()

    def _look(self) -> None:
        # Whether any sink wants more than warnings; asked in each step, so worked out when sinks come and go.
        self.shows_steps = any(not isinstance(sink, WarningLog) for sink in self._sinks)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks that still work."""
        return tuple(self._sinks)

    def emit(self, event: Event, *, to: Sequence[Sink] | None = None) -> None:
        for sink in self.sinks if to is None else to:
            try:
                sink.emit(event)
            except Exception as error:
                self._sinks.remove(sink)
                self._look()
                _LOGGER.warning(
                    "%s failed on a %r event (%s: %s) and gets no more events; training goes on.",
                    type(sink).__name__,
                    event.kind,
                    type(error).__name__,
                    error,
                )
                self._close(sink)

    def flush(self) -> None:
        """Let the logs among the sinks write what they hold."""
        for sink in self._sinks:
            if isinstance(sink, EventLog):
                sink.flush()

    def close(self) -> None:
        while self._sinks:
            self._close(self._sinks.pop(0))
        self._look()

    def _close(self, sink: Sink) -> None:
        try:
            sink.close()
        except Exception as error:
            _LOGGER.warning("%s could not be closed (%s: %s).", type(sink).__name__, type(error).__name__, error)
