"""The channel by which a run's events leave it: through its sinks, on the first of its replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swell.core.events import Event, Stepped, from_json, to_json
from swell.core.protocols import Sink
from swell.telemetry.fanout import Fanout
from swell.telemetry.log import EventLog, last_step


class Reporter:
    """Emits events if this replica is the first one now; opens the sinks when the first event is due.

    Every replica remembers the latest step. If the first replica is lost after a commit and before it has reported the
    step, the next first replica reports it.

    >>> from swell.core.events import Warned
    >>> from swell.telemetry import read_events
    >>> path = getfixture("tmp_path") / "events.jsonl"
    >>> reporter = Reporter(lambda: Fanout([EventLog(path)]))
    >>> reporter.emit(Warned(time=0.0, message="slow disk"))
    >>> reporter.close()
    >>> [event.message for event in read_events(path)]
    ['slow disk']
    """

    def __init__(self, open_sinks: Callable[[], Fanout], *, is_first: Callable[[], bool] = lambda: True) -> None:
        self._open_sinks, self._is_first = open_sinks, is_first
        self._sinks: Fanout | None = None
        self._step: Stepped | None = None  # the latest, reported or not
        self._reported = True  # whether this replica reported the latest step, or knows that another one did

    @property
    def latest(self) -> str:
        """The latest step as JSON, for replicas that missed it; empty if there was none."""
        return "" if self._step is None else to_json(self._step)

    def remember(self, latest: str) -> None:
        """Take in another replica's ``latest``, which this one missed."""
        step = from_json(latest) if latest else None
        if isinstance(step, Stepped):
            self._step, self._reported = step, False

    def emit(self, event: Event) -> None:
        """Report the event, and before it the latest step if a replica that is gone did not report it."""
        if isinstance(event, Stepped):
            self._step, self._reported = event, False
        if not self._is_first():
            return
        if self._sinks is None:
            self._sinks = self._open_sinks()
        missed = None if self._reported or self._step is event else self._step
        self._reported = True
        if missed is not None:
            self._sinks.emit(missed, to=_lacking(self._sinks, missed))
        self._sinks.emit(event)

    def close(self) -> None:
        """Close the sinks; a later event opens them again."""
        if self._sinks is not None:
            self._sinks.close()
            self._sinks = None


def _lacking(sinks: Fanout, step: Stepped) -> Sequence[Sink]:
    """The sinks that do not know the step: all if no log has it, otherwise the other logs; none without a log."""
    logs = [sink for sink in sinks.sinks if isinstance(sink, EventLog)]
    lacking = [log for log in logs if last_step(log.path) < step.step]
    return sinks.sinks if logs and len(lacking) == len(logs) else lacking
