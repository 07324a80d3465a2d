"""Pictures of runs: loss, batch and gain over the samples."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swell.core.events import Event, RunStarted
from swell.errors import ConfigError
from swell.telemetry.figure import COLOURS, Figure
from swell.telemetry.series import Series, series_of, smoothed

_MOST_POINTS = 4000  # more would not be visible, only make the file large


def draw_run(events: Iterable[Event], path: str | os.PathLike[str]) -> Path:
    """A picture of one run at ``path`` (png, svg or pdf by its suffix): loss, global batch, gain and lr factor.

    The horizontal axis counts samples. The thin line is the loss of each step, the thick one its average. Replicas
    are drawn if their number changes, with a mark at every resize. Steps that were repeated after a resume are drawn
    once, and an epoch's short last step is not drawn as a change of batch. Raises ``ConfigError`` if the log has no
    step, and ``DependencyError`` if matplotlib is not installed.
    """
    events = list(events)
    run = series_of(events)
    with Figure(path, rows=3, columns=1, size=(8.0, 8.0)) as figure:
        loss, batch, gain = figure.axes
        _draw_loss(loss, run, COLOURS[0], raw=True)
        set_loss_axis(loss, [run])
        _draw_batch(batch, run, COLOURS[0])
        _draw_gain(gain, run)
        for axes in figure.axes:
            for samples in run.resizes:
                axes.axvline(samples, color="#999999", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
        gain.set_xlabel("samples")
        figure.title(_caption(events, run))
    return figure.path


def compare(runs: Mapping[str, Iterable[Event]], path: str | os.PathLike[str]) -> Path:
    """A picture of several runs side by side at ``path``: loss, global batch and gain over the samples of each.

    ``runs`` maps the name of each run to its events; the legend adds its number of steps. Raises the same errors as
    ``draw_run``.
    """
    if not runs:
        raise ConfigError("runs is empty; expected a name and its events for each run to compare. Give at least one.")
    columns = {name: series_of(events) for name, events in runs.items()}
    with Figure(path, rows=1, columns=3, size=(12.0, 4.2)) as figure:
        loss, batch, gain = figure.axes
        for index, run in enumerate(columns.values()):
            colour = COLOURS[index % len(COLOURS)]
            width = 1.6 + 2.0 * (1 - (index + 1) / len(columns))  # so that lines under others are visible
            _draw_loss(loss, run, colour, raw=False)
            _steps(batch, run.samples, run.chosen(run.global_batch), colour, linewidth=width)
            _steps(gain, run.samples, run.chosen(run.gain), colour, linewidth=width)
        set_loss_axis(loss, list(columns.values()))
        set_batch_axis(batch, list(columns.values()))
        start_at_zero(gain, np.concatenate([run.gain for run in columns.values()]))
        gain.set_title("gain: base steps a step is worth")
        for axes in figure.axes:
            axes.set_xlabel("samples")
        figure.legend(COLOURS, [f"{name} ({run.steps:,} steps)" for name, run in columns.items()])
    return figure.path


def _logarithmic(axes: Any, *, base: int, within: Sequence[float]) -> None:
    """Make the vertical axis logarithmic, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log", base=base)
    axes.yaxis.set_major_locator(LogLocator(base=base, subs=within))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def start_at_zero(axes: Any, values: np.ndarray) -> None:
    """Let the vertical axis reach from 0 to a little above the largest value."""
    highest = float(np.max(values[np.isfinite(values)], initial=0.0))
    axes.set_ylim(0, 1.1 * highest if highest > 0 else 1.0)


def _thinned(*columns: np.ndarray) -> list[np.ndarray]:
    stride = -(-len(columns[0]) // _MOST_POINTS)
    keep = np.arange(0, len(columns[0]), stride)
    if len(columns[0]) and keep[-1] != len(columns[0]) - 1:
        keep = np.append(keep, len(columns[0]) - 1)
    return [column[keep] for column in columns]


def average_loss(run: Series) -> np.ndarray:
    """The loss averaged over a fiftieth of the run, or over two steps if that is more."""
    return smoothed(run.loss, run.samples, over=max(run.samples[-1] / 50, 2 * float(np.median(run.global_batch))))


def _draw_loss(axes: Any, run: Series, colour: str, *, raw: bool) -> None:
    samples, loss, average = _thinned(run.samples, run.loss, average_loss(run))
    if raw:
        axes.plot(samples, loss, color=colour, linewidth=0.7, alpha=0.3)
    axes.plot(samples, average, color=colour, linewidth=1.8)


def set_loss_axis(axes: Any, runs: list[Series]) -> None:
    """Set the axis for the loss of these runs: from zero, or logarithmic if it falls far."""
    axes.set_title("loss")
    values = np.concatenate([run.loss for run in runs])
    values = values[np.isfinite(values)]
    if not len(values):
        axes.text(0.5, 0.5, "no loss was recorded", transform=axes.transAxes, ha="center", color="#777777")
        return
    averages = np.concatenate([average_loss(run) for run in runs])
    low, high = np.nanmin(averages), np.nanmax(averages)
    top = max(high, float(np.quantile(values, 0.995)))  # a few outliers do not flatten the rest
    if values.min() < 0:
        return
    if low > 0 and high > 30 * low:  # a fall that is visible on a logarithmic axis only
        _logarithmic(axes, base=10, within=(1, 2, 5) if high < 1000 * low else (1,))
        axes.set_ylim(0.7 * low, 1.4 * top)
    else:
        axes.set_ylim(0, 1.05 * top if top > 0 else 1.0)


def _steps(axes: Any, samples: np.ndarray, values: np.ndarray, colour: str, **style: Any) -> None:
    """Draw a value that is constant during a step, from the step's first sample to its last."""
    samples, values = _thinned(samples, values)
    style = {"linewidth": 1.8, "drawstyle": "steps-pre", **style}
    axes.plot(np.insert(samples, 0, 0.0), np.insert(values, 0, values[0]), color=colour, **style)


def _draw_batch(axes: Any, run: Series, colour: str) -> None:
    _steps(axes, run.samples, run.chosen(run.global_batch), colour)
    set_batch_axis(axes, [run])
    if run.replicas.min() == run.replicas.max():
        return
    axes.set_ylabel("batch", color=colour)
    other = axes.twinx()
    _steps(other, run.samples, run.replicas, COLOURS[1], linewidth=1.2)
    other.set_ylim(0, 1.6 * run.replicas.max())  # below the batch, mostly
    other.set_ylabel("replicas", color=COLOURS[1])
    other.tick_params(colors=COLOURS[1])
    other.grid(visible=False)
    other.yaxis.get_major_locator().set_params(integer=True)


def set_batch_axis(axes: Any, runs: list[Series]) -> None:
    """Set the axis for the global batch of these runs: from zero, or in powers of two if it changes much."""
    axes.set_title("global batch, in samples")
    batches = np.concatenate([run.chosen(run.global_batch) for run in runs])
    if batches.max() >= 8 * batches.min():
        _logarithmic(axes, base=2, within=(1,))
    else:
        start_at_zero(axes, batches)


def _draw_gain(axes: Any, run: Series) -> None:
    """Draw the gain and, if it differs, the lr factor."""
    gain, factor = run.chosen(run.gain), run.chosen(run.lr_factor)
    axes.set_title("gain: base steps a step is worth")
    _steps(axes, run.samples, gain, COLOURS[2], label="gain")
    start_at_zero(axes, gain)
    if np.isnan(factor).all() or np.allclose(gain, factor, equal_nan=True):
        return
    axes.set_title("gain and learning rate factor")
    _steps(axes, run.samples, factor, COLOURS[3], linewidth=1.4, label="lr factor")
    start_at_zero(axes, np.concatenate([gain, factor]))
    axes.legend(loc="best")


def _caption(events: list[Event], run: Series) -> str:
    text = f"{run.steps:,} steps, {run.samples[-1]:,.0f} samples, {run.progress[-1]:,.0f} base steps of progress"
    starts = [event for event in events if isinstance(event, RunStarted)]
    if starts:
        settings = f"{starts[-1].policy}, rule {starts[-1].rule}, base batch {starts[-1].base_batch:,}"
        text += "\n" + textwrap.shorten(settings, 110, placeholder=" …")
    return text
