"""What happened in a run, one sentence for each event that a person wants to know of."""

from __future__ import annotations

from swell.core.events import (
    BatchChanged,
    EpochEnded,
    Event,
    Faulted,
    Noticed,
    Resized,
    RunEnded,
    RunStarted,
    Saved,
    StepSkipped,
    Warned,
)
from swell.telemetry.run_summary import compact, duration


def sentence(event: Event) -> str | None:
    """The event in words; None for steps and other events that happen all the time.

    >>> sentence(Resized(time=0.0, step=7, before=2, after=4, reason="workers joined", pause_s=0.3))
    'from 2 to 4 workers in 0.3 s: workers joined'
    """
    if isinstance(event, RunStarted):
        begun = f"resumed at {event.samples:,} samples" if event.samples else "started"
        return f"{begun} on {workers(event.replicas)}"
    if isinstance(event, RunEnded):
        return f"{event.reason} after {event.step:,} steps, {event.samples:,} samples"
    if isinstance(event, BatchChanged):
        if event.before == event.after:
            return f"micro-batches from {event.micro_before} to {event.micro_after} samples"
        return f"batch from {event.before:,} to {event.after:,} by {event.policy.partition('(')[0]}"
    if isinstance(event, Resized):
        pause = "" if event.pause_s is None else f" in {duration(event.pause_s)}"
        return f"from {event.before} to {workers(event.after)}{pause}: {event.reason}"
    if isinstance(event, EpochEnded):
        figures = "".join(f", {name} {value:.4g}" for name, value in event.metrics.items())
        return f"epoch {event.epoch + 1} {'done' if event.complete else 'left early'}{figures}"
    return _trouble(event)


def _trouble(event: Event) -> str | None:
    if isinstance(event, Saved):
        return f"saved {compact(event.bytes / 1e6)} MB; training waited {duration(event.held_s)}"
    if isinstance(event, Noticed):
        left = "" if event.deadline_s is None else f", {duration(event.deadline_s)} left"
        return f"asked to stop by {event.source}{left}"
    if isinstance(event, Faulted):
        return f"{'failed' if event.fatal else 'recovered'}: {event.message}"
    if isinstance(event, StepSkipped):
        return f"a step is {'done again' if event.redone else 'passed over'}: {event.reason}"
    if isinstance(event, Warned):
        return f"warning: {event.message}"
    return None


def workers(count: int) -> str:
    """A number of workers in words."""
    return f"{count} worker{'s' if count != 1 else ''}"
