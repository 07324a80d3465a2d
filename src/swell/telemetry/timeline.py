"""A picture of a run over time: workers, batch, lr factor and loss, with marks for what happened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from swell.core.events import Event, RunStarted
from swell.telemetry.figure import COLOURS, Figure
from swell.telemetry.report import average_loss, set_batch_axis, set_loss_axis, start_at_zero
from swell.telemetry.series import series_of

_GREY = "#777777"


def draw_timeline(
    events: Iterable[Event],
    path: str | os.PathLike[str],
    *,
    marks: Sequence[tuple[float, str]] = (),
    beside: Mapping[str, Iterable[Event]] | None = None,
) -> Path:
    """A picture of one run at ``path`` (png, svg or pdf by its suffix) over the seconds since it began.

    Replicas, global batch, lr factor and loss are drawn one below another, with a gap where the run was stopped and
    resumed. ``marks`` are times (seconds since the epoch, as in events) with a word for each. ``beside`` are other runs
    by name: their loss is drawn at the time when this run had reached the same number of samples. Raises the same
    errors as ``draw_run``.
    """
    events = list(events)
    run = series_of(events)
    began_at = min(event.time for event in events)
    starts = [event.time for event in events if isinstance(event, RunStarted)]
    clock = _Clock(run.time - began_at, [start - began_at for start in starts])
    with Figure(path, rows=4, columns=1, size=(9.0, 7.0), heights=(1.1, 1.0, 1.0, 1.5)) as figure:
        workers, batch, factor, loss = figure.axes
        clock.steps(workers, run.replicas, COLOURS[1], filled=True)
        workers.set_title("workers")
        workers.set_ylim(0, 1.7 * run.replicas.max())  # room for the words of the marks
        workers.set_yticks(np.arange(0, run.replicas.max() + 1, -(-run.replicas.max() // 4)))
        clock.steps(batch, run.chosen(run.global_batch), COLOURS[0])
        set_batch_axis(batch, [run])
        lr_factor = run.chosen(run.lr_factor)
        clock.steps(factor, lr_factor, COLOURS[2])
        factor.set_title("learning rate factor")
        start_at_zero(factor, lr_factor)
        others = {name: series_of(other) for name, other in (beside or {}).items()}
        clock.line(loss, average_loss(run), COLOURS[3], label="this run")
        for name, other in others.items():
            values = np.interp(run.samples, other.samples, average_loss(other))
            clock.line(loss, values, _GREY, linewidth=1.2, linestyle=(0, (4, 2)), label=f"{name}, at the same samples")
        set_loss_axis(loss, [run, *others.values()])
        if others:
            loss.legend(loc="upper right")
        loss.set_xlabel("seconds")
        _draw_marks(figure.axes, [(time - began_at, word) for time, word in marks])
    return figure.path


def _draw_marks(axes: Sequence[Any], marks: Sequence[tuple[float, str]]) -> None:
    """Draw a line through all axes for each mark; words take turns on two lines, so that they do not touch."""
    for index, (time, word) in enumerate(marks):
        for each in axes:
            each.axvline(time, color="#999999", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
        place = {"xycoords": axes[0].get_xaxis_transform(), "textcoords": "offset points", "va": "top"}
        axes[0].annotate(word, (time, 1.0 - 0.16 * (index % 2)), (4, 0), fontsize=9, color="#444444", **place)


class _Clock:
    """Draws values over time, with a gap wherever the run was stopped."""

    def __init__(self, ends: np.ndarray, starts: Sequence[float]) -> None:
        self._ends = ends
        first_steps = {int(np.searchsorted(ends, start)): start for start in starts} or {0: float(ends[0])}
        first_steps.pop(len(ends), None)  # a start that led to no step
        self._lives = [
            (first_steps[first], slice(first, last)) for first, last in pairwise([*sorted(first_steps), len(ends)])
        ]

    def steps(self, axes: Any, values: np.ndarray, colour: str, *, filled: bool = False) -> None:
        """Draw a value that is constant during a step, from the end of the previous step to its own."""
        for start, part in self._lives:
            times, levels = np.insert(self._ends[part], 0, start), np.insert(values[part], 0, values[part][0])
            axes.plot(times, levels, color=colour, drawstyle="steps-pre", linewidth=1.8)
            if filled:
                axes.fill_between(times, levels, step="pre", color=colour, alpha=0.15, linewidth=0)

    def line(self, axes: Any, values: np.ndarray, colour: str, *, label: str, **style: Any) -> None:
        """Draw a value that changes from step to step."""
        for _, part in self._lives:
            axes.plot(self._ends[part], values[part], color=colour, label=label, **{"linewidth": 1.8, **style})
            label = "_"  # the legend names it once
