"""The channel by which a run's events leave it: through its sinks, on the first of its replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from swell.core.events import Event, Stepped, from_json, to_json
from swell.telemetry.fanout import Fanout
from swell.telemetry.log import MOST_HELD, EventLog, last_samples


class Reporter:
    """Emits events if this replica is the first one now; opens the sinks when the first event is due.

    Every replica remembers the latest steps. If the first replica is lost after a commit and before the step is in the
    log, which holds steps for a moment, the next first replica reports it.

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
        self._unsure: deque[Stepped] = deque(maxlen=4 * MOST_HELD)  # the latest that this replica did not report

    @property
    def heard(self) -> bool:
        """Whether anybody wants to know of steps, as far as is known before the first event."""
        return self._sinks is None or self._sinks.shows_steps

    @property
    def latest(self) -> str:
        """The latest step as JSON, for replicas that missed it; empty if there was none."""
        return "" if self._step is None else to_json(self._step)

    def remember(self, latest: str) -> None:
        """Take in another replica's ``latest``, which this one missed."""
        step = from_json(latest) if latest else None
        if isinstance(step, Stepped):
            self._step = step
            self._unsure.append(step)

    def emit(self, event: Event) -> None:
        """Report the event, and before it the latest steps that a replica which is gone did not report."""
        if isinstance(event, Stepped):
            self._step = event
        if not self._is_first():
            if isinstance(event, Stepped):
                self._unsure.append(event)
            return
        if self._sinks is None:
            self._sinks = self._open_sinks()
        if self._unsure:
            self._report_missed(self._sinks)
        self._sinks.emit(event)

    def _report_missed(self, sinks: Fanout) -> None:
        """Report the steps that no log has, and to each log those that it lacks; without a log all are reported."""
        steps = list(self._unsure)
        self._unsure.clear()
        sinks.flush()
        logs = [(sink, last_samples(sink.path)) for sink in sinks.sinks if isinstance(sink, EventLog)]
        done = max((samples for _, samples in logs), default=steps[-1].samples)
        for step in steps:
            lacking = [log for log, samples in logs if step.samples > samples]
            sinks.emit(step, to=sinks.sinks if step.samples > done else lacking)

    def flush(self) -> None:
        """Write what sinks hold: before a checkpoint that contains it, and before another replica may be the first."""
        if self._sinks is not None:
            self._sinks.flush()

    def close(self) -> None:
        """Close the sinks; a later event opens them again."""
        if self._sinks is not None:
            self._sinks.close()
            self._sinks = None
