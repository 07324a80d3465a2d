"""A picture of a run over time: workers, batch, lr factor and loss, with what befell it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from swell.core.events import Event, RunStarted
from swell.telemetry.figure import COLOURS, Canvas
from swell.telemetry.report import average_loss, dress_batch, dress_loss, from_zero
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

    Replicas, global batch, lr factor and loss are drawn one below another; where the run was stopped and resumed there
    is a gap. ``marks`` are times (seconds since the epoch, as in events) and a word for each. ``beside`` are other runs
    by name: their loss is drawn where this run had come to the same number of samples. Fails as ``draw_run`` does.
    """
    events = list(events)
    run = series_of(events)
    began = min(event.time for event in events)
    starts = [event.time for event in events if isinstance(event, RunStarted)]
    clock = _Clock(run.time - began, [start - began for start in starts])
    with Canvas(path, rows=4, columns=1, size=(9.0, 7.0), heights=(1.1, 1.0, 1.0, 1.5)) as canvas:
        workers, batch, factor, loss = canvas.axes
        clock.steps(workers, run.replicas, COLOURS[1], filled=True)
        workers.set_title("workers")
        workers.set_ylim(0, 1.7 * run.replicas.max())  # room for the marks' words
        workers.set_yticks(np.arange(0, run.replicas.max() + 1, -(-run.replicas.max() // 4)))
        clock.steps(batch, run.chosen(run.global_batch), COLOURS[0])
        dress_batch(batch, [run])
        lr_factor = run.chosen(run.lr_factor)
        clock.steps(factor, lr_factor, COLOURS[2])
        factor.set_title("learning rate factor")
        from_zero(factor, lr_factor)
        others = {name: series_of(other) for name, other in (beside or {}).items()}
        clock.line(loss, average_loss(run), COLOURS[3], label="this run")
        for name, other in others.items():
            at = np.interp(run.samples, other.samples, average_loss(other))
            clock.line(loss, at, _GREY, linewidth=1.2, linestyle=(0, (4, 2)), label=f"{name}, at the same samples")
        dress_loss(loss, [run, *others.values()])
        if others:
            loss.legend(loc="upper right")
        loss.set_xlabel("seconds")
        _draw_marks(canvas.axes, [(time - began, word) for time, word in marks])
    return canvas.path


def _draw_marks(axes: Sequence[Any], marks: Sequence[tuple[float, str]]) -> None:
    """A line through all axes for each mark; the words stand on two lines in turn, so that neighbours do not touch."""
    for index, (time, word) in enumerate(marks):
        for each in axes:
            each.axvline(time, color="#999999", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
        place = {"xycoords": axes[0].get_xaxis_transform(), "textcoords": "offset points", "va": "top"}
        axes[0].annotate(word, (time, 1.0 - 0.16 * (index % 2)), (4, 0), fontsize=9, color="#444444", **place)


class _Clock:
    """Draws values over time, with a gap wherever the run was not there."""

    def __init__(self, ends: np.ndarray, starts: Sequence[float]) -> None:
        self._ends = ends
        first_steps = {int(np.searchsorted(ends, start)): start for start in starts} or {0: float(ends[0])}
        first_steps.pop(len(ends), None)  # a start that led to no step
        self._lives = [
            (first_steps[first], slice(first, last)) for first, last in pairwise([*sorted(first_steps), len(ends)])
        ]

    def steps(self, axes: Any, values: np.ndarray, colour: str, *, filled: bool = False) -> None:
        """A value that holds for a step, from the end of the step before to its own."""
        for start, part in self._lives:
            times, held = np.insert(self._ends[part], 0, start), np.insert(values[part], 0, values[part][0])
            axes.plot(times, held, color=colour, drawstyle="steps-pre", linewidth=1.8)
            if filled:
                axes.fill_between(times, held, step="pre", color=colour, alpha=0.15, linewidth=0)

    def line(self, axes: Any, values: np.ndarray, colour: str, *, label: str, **how: Any) -> None:
        """A value that changes step by step."""
        for _, part in self._lives:
            axes.plot(self._ends[part], values[part], color=colour, label=label, **{"linewidth": 1.8, **how})
            label = "_"  # the legend names it once
