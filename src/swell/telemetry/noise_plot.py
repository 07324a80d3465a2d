"""Pictures of what batch sizes cost: steps and samples from the noise, throughput and goodput as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swell.telemetry.figure import COLOURS, Figure


def draw_noise(
    *, signal: float, noise: float, interval: tuple[float | None, float | None], base: int, path: Path
) -> None:
    """Steps and samples to the same result against batch size, both relative to ``base``; the interval is shaded."""
    batches = np.geomspace(max(1, base / 8), base * 256, 200)
    critical = noise / signal if signal > 0 else np.inf
    with Figure(path, rows=1, columns=1, size=(7.0, 4.5)) as figure:
        (axes,) = figure.axes
        for scale, main in [(critical, True), *((end, False) for end in interval if end)]:
            steps = base / batches if np.isinf(scale) else (1 + scale / batches) / (1 + scale / base)
            style: dict[str, Any] = {"linewidth": 2} if main else {"alpha": 0.4, "linewidth": 1, "linestyle": "--"}
            axes.plot(batches, steps, color=COLOURS[0], label="steps" if main else None, **style)
            axes.plot(batches, steps * batches / base, color=COLOURS[1], label="samples" if main else None, **style)
        axes.set(xscale="log", yscale="log", xlabel="global batch (samples)", ylabel=f"relative to a batch of {base}")
        if np.isfinite(critical) and critical > 0:
            axes.axvline(critical, color="#999999", linewidth=0.8)
            axes.annotate(" critical batch", (critical, axes.get_ylim()[0]), va="bottom", color="#555555")
        axes.legend()


def draw_goodput(rows: Sequence[Mapping[str, Any]], path: Path, *, best: int | None = None) -> None:
    """Samples per second and, if the noise is known, goodput against batch size, with their errors.

    Each row is one batch in its fastest layout. Filled marks were measured, hollow ones predicted; a star marks
    ``best``.
    """
    curves = [("samples_s", "samples per second")]
    if rows and rows[0]["goodput"] is not None:
        curves.append(("goodput", "goodput: samples per second, weighted by their worth at the base batch"))
    batches = [row["batch"] for row in rows]
    with Figure(path, rows=1, columns=1, size=(7.5, 4.5)) as figure:
        (axes,) = figure.axes
        for (key, label), colour in zip(curves, COLOURS, strict=False):
            values = [row[key] for row in rows]
            errors = [row[key] * (row["error"] or 0.0) for row in rows]
            axes.errorbar(batches, values, errors, color=colour, linewidth=1, elinewidth=1, capsize=2, label=label)
            for row in rows:
                fill = colour if row["measured"] else "white"
                axes.plot(row["batch"], row[key], "o", color=colour, markerfacecolor=fill, markersize=5)
        for row in rows:
            if row["batch"] == best:
                layout = f"{row['batch']} in {row['accumulation']} × {row['micro']}"
                axes.plot(best, row[curves[-1][0]], "*", color=COLOURS[len(curves) - 1], markersize=15, label=layout)
        axes.set(xscale="log", xlabel="global batch (samples)", ylabel="samples per second", ylim=(0, None))
        ticks = batches[:: max(1, -(-len(batches) // 10))]
        axes.set_xticks(ticks, [str(batch) for batch in ticks])
        axes.minorticks_off()
        axes.legend(fontsize=8)
