"""The one channel by which events leave a job: the first replica writes them to whatever sinks there are."""

from __future__ import annotations

from collections.abc import Callable

from swell.core.events import Event, Stepped, from_json, to_json
from swell.job.peers import Peers
from swell.telemetry import EventLog, Fanout, last_step


class Reporter:
    """Emits events; opens the sinks with the first event on the first replica.

    Every replica remembers the latest step, so that it is logged even if the first replica is lost between the commit
    and its logging.
    """

    def __init__(self, peers: Peers, open_sinks: Callable[[], Fanout]) -> None:
        self._peers, self._open_sinks = peers, open_sinks
        self._sinks: Fanout | None = None
        self._step: Stepped | None = None  # the latest, logged or not
        self._logged = True  # whether this replica logged it, or knows that it was logged

    @property
    def latest(self) -> str:
        """The latest step, for replicas that missed it; empty where there was none."""
        return "" if self._step is None else to_json(self._step)

    def take_over(self, latest: str) -> None:
        """Remember another replica's latest step, which this one missed."""
        step = from_json(latest) if latest else None
        if isinstance(step, Stepped):
            self._step, self._logged = step, False

    def emit(self, event: Event) -> None:
        """Log an event if this replica is the first one now; it becomes that when those before it leave."""
        if isinstance(event, Stepped):
            self._step, self._logged = event, False
        if not self._peers.is_first:
            return
        if self._sinks is None:
            self._sinks = self._open_sinks()
        missed = None if self._logged or self._step is event else self._step
        self._logged = True
        if missed is not None and not _has_logged(self._sinks, missed):
            self._sinks.emit(missed)
        self._sinks.emit(event)

    def close(self) -> None:
        """Close the sinks; a later event opens them again."""
        if self._sinks is not None:
            self._sinks.close()
            self._sinks = None


def _has_logged(sinks: Fanout, step: Stepped) -> bool:
    """Whether the replica that was the first one before has written that step to the log."""
    logs = [sink for sink in sinks.sinks if isinstance(sink, EventLog)]
    return not logs or any(last_step(log.path) >= step.step for log in logs)
