"""A run on the terminal: one picture of its state, one line of it, and its figures for programs."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swell.core.harmless import harmless
from swell.telemetry.run_document import batch_words, finite, noise_words
from swell.telemetry.run_model import RunModel
from swell.telemetry.run_summary import compact, duration
from swell.telemetry.sentences import sentence
from swell.telemetry.time_account import WORDS

_STYLES = {"running": "bold green", "finished": "bold", "stopped": "bold yellow", "silent": "bold red", "empty": "dim"}
_BARS = "▁▂▃▄▅▆▇█"


def picture(model: RunModel, *, name: str, state: str, notes: int = 8, width: int = 80) -> RenderableType:
    """Where the run is, how it is laid out, what it measures, where its time goes and what happened last."""
    shown = [(harmless(name), "bold"), "  ", (state, _STYLES.get(state, "bold"))]
    title = Text.assemble(*shown, overflow="ellipsis", no_wrap=True)
    if model.latest is None:
        return Group(title, Text("No step was taken yet.", style="dim"), *_happened(model, notes))
    return Group(title, _progress(model, state), _figures(model, width), _spent(model), *_happened(model, notes))


def _progress(model: RunModel, state: str) -> RenderableType:
    began, done = model.epoch_started, model.done
    epoch = f"epoch {model.latest.epoch + 1}" if model.latest is not None else ""
    if began is not None and began.epochs:
        epoch += f"/{began.epochs}"
    if model.epoch_part is not None and (began is None or began.epochs != 1):
        epoch += f" ({model.epoch_part:.0%})"
    grid = Table.grid(padding=(0, 2, 0, 0))
    row: list[RenderableType] = [Text(epoch)]
    if done is not None:
        row += [ProgressBar(total=1.0, completed=done, width=30, complete_style="green"), Text(f"{done:.0%}")]
    left = model.left
    if state == "running":
        row.append(Text("" if left is None else f"{left} left", style="cyan"))
    else:
        row.append(Text(f"in {duration(model.active_s)}", style="dim"))
    for _ in row:
        grid.add_column(no_wrap=True)
    grid.add_row(*row)
    return grid


def _figures(model: RunModel, width: int) -> Table:
    latest = model.latest
    assert latest is not None
    pairs = [
        ("workers", str(latest.replicas)),
        ("batch", batch_words(latest)),
        ("lr factor", " ".join(f"×{factor:.3g}" for factor in dict.fromkeys(latest.lr_factor)) or "-"),
        ("gain", f"{latest.gain:.3g}"),
        ("noise scale", noise_words(latest.noise_scale, latest.noise_low, latest.noise_high) or "not measured"),
        ("loss", "-" if latest.loss is None else f"{latest.loss:.4g}  {spark(model.columns['loss'])}"),
        ("samples/s", "-" if model.samples_per_s is None else compact(model.samples_per_s)),
        ("goodput", "-" if model.goodput is None else f"{compact(model.goodput)} base samples/s"),
        ("samples", f"{compact(latest.samples)} in {latest.step:,} steps"),
        ("progress", f"{compact(latest.progress)} base steps"),
    ]
    columns = 3 if width >= 110 else 2
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(style="cyan", no_wrap=True)
    for first in range(0, len(pairs), columns):
        cells = [cell for pair in pairs[first : first + columns] for cell in pair]
        grid.add_row(*cells, *[""] * (2 * columns - len(cells)))
    return grid


def _spent(model: RunModel) -> Text:
    parts = model.account.parts()
    total = sum(parts.values()) or 1.0
    shown = [(kind, seconds / total) for kind, seconds in parts.items() if seconds / total >= 0.005]
    shown.sort(key=lambda part: -part[1])
    words = ", ".join(f"{WORDS[kind].partition(':')[0]} {share:.0%}" for kind, share in shown)
    return Text.assemble(("time  ", "dim"), words or "none yet", overflow="ellipsis", no_wrap=True)


def _happened(model: RunModel, most: int) -> list[Text]:
    lines = []
    for note in model.notes[-most:] if most else []:
        words = sentence(note.event)
        if words is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(note.event.time))
            lines.append(Text.assemble((f"{clock}  ", "dim"), harmless(words), overflow="ellipsis", no_wrap=True))
    return [Text(""), *lines] if lines else []


def line(model: RunModel, *, state: str, short: bool = False) -> str:
    """The run in one line of plain text; a short one fits a narrow terminal."""
    latest, left = model.latest, model.left
    if latest is None:
        return f"{state}: no step was taken yet"
    noise = math.nan if latest.noise_scale is None else latest.noise_scale
    if short:
        return _short_line(model, state)
    parts = [state, f"epoch {latest.epoch + 1}"]
    if model.done is not None:
        parts.append(f"{model.done:.0%}")
    parts += [
        f"step {latest.step:,}",
        f"samples {compact(latest.samples)}",
        f"batch {latest.global_batch:,} = {latest.micro_batch} x {latest.accumulation} x {latest.replicas}",
        f"lr x{latest.lr_factor[0]:.3g}" if latest.lr_factor else "",
        f"gain {latest.gain:.3g}",
        f"noise {compact(noise)}" if math.isfinite(noise) else "",
        "" if model.samples_per_s is None else f"samples/s {compact(model.samples_per_s)}",
        "" if latest.loss is None else f"loss {latest.loss:.4g}",
        f"left {left}" if left is not None and state == "running" else "",
    ]
    return "  ".join(part for part in parts if part)


def _short_line(model: RunModel, state: str) -> str:
    latest, left = model.latest, model.left
    assert latest is not None
    parts = [
        state if model.done is None else f"{model.done:4.0%}",
        f"batch {latest.global_batch:,} on {latest.replicas}",
        f"lr x{latest.lr_factor[0]:.3g}" if latest.lr_factor else "",
        "" if latest.loss is None else f"loss {latest.loss:.4g}",
        "" if model.samples_per_s is None else f"samples/s {compact(model.samples_per_s)}",
        f"left {left}" if left is not None else "",
    ]
    return "  ".join(part for part in parts if part)


def figures(model: RunModel, *, name: str, state: str) -> dict[str, Any]:
    """The run's newest figures for programs; names as in events, None for what is not known."""
    latest, left = model.latest, model.left
    fields = ("step", "epoch", "samples", "progress", "global_batch", "micro_batch", "accumulation", "replicas", "gain")
    fields += ("loss", "noise_scale", "noise_low", "noise_high", "step_s")
    known = {field: None if latest is None else getattr(latest, field) for field in fields}
    return {
        "run": name,
        "state": state,
        "done": model.done,
        "left_s": None if left is None else left.seconds,
        "left_low_s": None if left is None else left.low,
        "left_high_s": None if left is None else left.high,
        **finite({key: math.nan if value is None else value for key, value in known.items()}),
        "lr_factor": None if latest is None else list(latest.lr_factor),
        "samples_per_s": model.samples_per_s,
        "goodput": model.goodput,
        "metrics": finite(model.metrics),
        "spent_s": {kind: round(seconds, 3) for kind, seconds in model.account.parts().items()},
        "last_time": model.last_time,
    }


def spark(values: list[float], *, width: int = 16) -> str:
    """A small curve of the values, averaged over equal parts.

    >>> spark([8.0, 6.0, 4.0, 2.0, 1.0, 1.0], width=3)
    '█▃▁'
    """
    numbers = [value for value in values[-4096:] if math.isfinite(value)]
    if len(numbers) < 2:
        return ""
    width = min(width, len(numbers))
    edges = [round(place * len(numbers) / width) for place in range(width + 1)]
    means = [sum(numbers[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(_BARS[round((mean - low) / (high - low or 1.0) * (len(_BARS) - 1))] for mean in means)
