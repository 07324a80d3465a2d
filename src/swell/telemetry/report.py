"""Pictures of runs: how loss, batch and gain went over the samples."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swell.core.events import Event, RunStarted
from swell.errors import ConfigError
from swell.telemetry.figure import COLOURS, Canvas
from swell.telemetry.series import Series, series_of, smoothed

_MOST_POINTS = 4000  # a picture shows no more; the rest would only make the file large


def draw_run(events: Iterable[Event], path: str | os.PathLike[str]) -> Path:
    """A picture of one run at ``path`` (png, svg or pdf by its suffix): loss, global batch, gain and lr factor.

    The horizontal axis counts samples. The thin line is the loss of each step, the thick one its average. Replicas
    are drawn where their number changes, with a mark at every resize. Steps that were done again after a resume are
    drawn once, and an epoch's short last step is not drawn as a change of batch. Fails where the log holds no step
    (``ConfigError``) and where matplotlib is not installed (``DependencyError``).
    """
    events = list(events)
    run = series_of(events)
    with Canvas(path, rows=3, columns=1, size=(8.0, 8.0)) as canvas:
        loss, batch, gain = canvas.axes
        _draw_loss(loss, run, COLOURS[0], raw=True)
        dress_loss(loss, [run])
        _draw_batch(batch, run, COLOURS[0])
        _draw_gain(gain, run)
        for axes in canvas.axes:
            for samples in run.resizes:
                axes.axvline(samples, color="#999999", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
        gain.set_xlabel("samples")
        canvas.title(_in_words(events, run))
    return canvas.path


def compare(runs: Mapping[str, Iterable[Event]], path: str | os.PathLike[str]) -> Path:
    """A picture of several runs side by side at ``path``: loss, global batch and gain over the samples of each.

    ``runs`` are the events of each run by the name the picture gives it; the legend adds how many steps it took.
    Fails as ``draw_run`` does.
    """
    if not runs:
        raise ConfigError(
            "there are no runs to compare; expected a name and its events for each. Give at least one run."
        )
    drawn = {name: series_of(events) for name, events in runs.items()}
    with Canvas(path, rows=1, columns=3, size=(12.0, 4.2)) as canvas:
        loss, batch, gain = canvas.axes
        for index, run in enumerate(drawn.values()):
            colour = COLOURS[index % len(COLOURS)]
            width = 1.6 + 2.0 * (1 - (index + 1) / len(drawn))  # so that one under another still shows
            _draw_loss(loss, run, colour, raw=False)
            _steps(batch, run.samples, run.chosen(run.global_batch), colour, linewidth=width)
            _steps(gain, run.samples, run.chosen(run.gain), colour, linewidth=width)
        dress_loss(loss, list(drawn.values()))
        dress_batch(batch, list(drawn.values()))
        from_zero(gain, np.concatenate([run.gain for run in drawn.values()]))
        gain.set_title("gain: base steps a step is worth")
        for axes in canvas.axes:
            axes.set_xlabel("samples")
        canvas.legend(COLOURS, [f"{name} ({run.steps:,} steps)" for name, run in drawn.items()])
    return canvas.path


def _logarithmic(axes: Any, *, base: int, within: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers on it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log", base=base)
    axes.yaxis.set_major_locator(LogLocator(base=base, subs=within))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def from_zero(axes: Any, values: np.ndarray) -> None:
    """An axis from 0 to a little above the largest value."""
    highest = float(np.max(values[np.isfinite(values)], initial=0.0))
    axes.set_ylim(0, 1.1 * highest if highest > 0 else 1.0)


def _thinned(*columns: np.ndarray) -> list[np.ndarray]:
    stride = -(-len(columns[0]) // _MOST_POINTS)
    keep = np.arange(0, len(columns[0]), stride)
    if len(columns[0]) and keep[-1] != len(columns[0]) - 1:
        keep = np.append(keep, len(columns[0]) - 1)
    return [column[keep] for column in columns]


def average_loss(run: Series) -> np.ndarray:
    """The loss averaged over a fiftieth of the run, or two steps where that is more."""
    return smoothed(run.loss, run.samples, over=max(run.samples[-1] / 50, 2 * float(np.median(run.global_batch))))


def _draw_loss(axes: Any, run: Series, colour: str, *, raw: bool) -> None:
    samples, loss, average = _thinned(run.samples, run.loss, average_loss(run))
    if raw:
        axes.plot(samples, loss, color=colour, linewidth=0.7, alpha=0.3)
    axes.plot(samples, average, color=colour, linewidth=1.8)


def dress_loss(axes: Any, runs: list[Series]) -> None:
    """The axis for the loss of these runs: from zero, or logarithmic where it falls far."""
    axes.set_title("loss")
    values = np.concatenate([run.loss for run in runs])
    values = values[np.isfinite(values)]
    if not len(values):
        axes.text(0.5, 0.5, "no loss was recorded", transform=axes.transAxes, ha="center", color="#777777")
        return
    averages = np.concatenate([average_loss(run) for run in runs])
    low, high = np.nanmin(averages), np.nanmax(averages)
    top = max(high, float(np.quantile(values, 0.995)))  # a few wild steps do not press the rest flat
    if values.min() < 0:
        return
    if low > 0 and high > 30 * low:  # a fall that is seen on a logarithmic axis only
        _logarithmic(axes, base=10, within=(1, 2, 5) if high < 1000 * low else (1,))
        axes.set_ylim(0.7 * low, 1.4 * top)
    else:
        axes.set_ylim(0, 1.05 * top if top > 0 else 1.0)


def _steps(axes: Any, samples: np.ndarray, values: np.ndarray, colour: str, **how: Any) -> None:
    """A value that holds for a step, drawn from the step's first sample to its last."""
    samples, values = _thinned(samples, values)
    how = {"linewidth": 1.8, "drawstyle": "steps-pre", **how}
    axes.plot(np.insert(samples, 0, 0.0), np.insert(values, 0, values[0]), color=colour, **how)


def _draw_batch(axes: Any, run: Series, colour: str) -> None:
    _steps(axes, run.samples, run.chosen(run.global_batch), colour)
    dress_batch(axes, [run])
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


def dress_batch(axes: Any, runs: list[Series]) -> None:
    """The axis for the global batch of these runs: from zero, or in powers of two where it changes much."""
    axes.set_title("global batch, in samples")
    batches = np.concatenate([run.chosen(run.global_batch) for run in runs])
    if batches.max() >= 8 * batches.min():
        _logarithmic(axes, base=2, within=(1,))
    else:
        from_zero(axes, batches)


def _draw_gain(axes: Any, run: Series) -> None:
    """Gain and, where it is another line, the lr factor."""
    gain, factor = run.chosen(run.gain), run.chosen(run.lr_factor)
    axes.set_title("gain: base steps a step is worth")
    _steps(axes, run.samples, gain, COLOURS[2], label="gain")
    from_zero(axes, gain)
    if np.isnan(factor).all() or np.allclose(gain, factor, equal_nan=True):
        return
    axes.set_title("gain and learning rate factor")
    _steps(axes, run.samples, factor, COLOURS[3], linewidth=1.4, label="lr factor")
    from_zero(axes, np.concatenate([gain, factor]))
    axes.legend(loc="best")


def _in_words(events: list[Event], run: Series) -> str:
    text = f"{run.steps:,} steps, {run.samples[-1]:,.0f} samples, {run.progress[-1]:,.0f} base steps of progress"
    begun = [event for event in events if isinstance(event, RunStarted)]
    if begun:
        how = f"{begun[-1].policy}, rule {begun[-1].rule}, base batch {begun[-1].base_batch:,}"
        text += "\n" + textwrap.shorten(how, 110, placeholder=" …")
    return text
