"""Pictures of what batch sizes cost: steps and samples by gradient noise, throughput and goodput by measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swell.telemetry.figure import COLOURS, Canvas


def draw_noise(
    *, signal: float, noise: float, interval: tuple[float | None, float | None], base: int, path: Path
) -> None:
    """Steps and samples to the same result against batch size, both relative to ``base``; the interval is shaded."""
    batches = np.geomspace(max(1, base / 8), base * 256, 200)
    critical = noise / signal if signal > 0 else np.inf
    with Canvas(path, rows=1, columns=1, size=(7.0, 4.5)) as canvas:
        (axes,) = canvas.axes
        for value, sure in [(critical, True), *((end, False) for end in interval if end)]:
            steps = base / batches if np.isinf(value) else (1 + value / batches) / (1 + value / base)
            style: dict[str, Any] = {"linewidth": 2} if sure else {"alpha": 0.4, "linewidth": 1, "linestyle": "--"}
            axes.plot(batches, steps, color=COLOURS[0], label="steps" if sure else None, **style)
            axes.plot(batches, steps * batches / base, color=COLOURS[1], label="samples" if sure else None, **style)
        axes.set(xscale="log", yscale="log", xlabel="global batch (samples)", ylabel=f"relative to a batch of {base}")
        if np.isfinite(critical) and critical > 0:
            axes.axvline(critical, color="#999999", linewidth=0.8)
            axes.annotate(" critical batch", (critical, axes.get_ylim()[0]), va="bottom", color="#555555")
        axes.legend()


def draw_goodput(rows: Sequence[Mapping[str, Any]], path: Path, *, best: int | None = None) -> None:
    """Samples a second and, where the noise is known, goodput against batch size, with their errors.

    Each row is one batch in its fastest layout. Full marks were measured, hollow ones predicted; ``best`` is the batch
    with the star.
    """
    known = bool(rows) and rows[0]["goodput"] is not None
    figures = [("samples_s", "samples a second")]
    if known:
        figures.append(("goodput", "goodput: samples a second, each by its worth at the base batch"))
    batches = [row["batch"] for row in rows]
    with Canvas(path, rows=1, columns=1, size=(7.5, 4.5)) as canvas:
        (axes,) = canvas.axes
        for (key, label), colour in zip(figures, COLOURS, strict=False):
            values = [row[key] for row in rows]
            errors = [row[key] * (row["error"] or 0.0) for row in rows]
            axes.errorbar(batches, values, errors, color=colour, linewidth=1, elinewidth=1, capsize=2, label=label)
            for row in rows:
                fill = colour if row["measured"] else "white"
                axes.plot(row["batch"], row[key], "o", color=colour, markerfacecolor=fill, markersize=5)
        for row in rows:
            if row["batch"] == best:
                layout = f"{row['batch']} in {row['accumulation']} × {row['micro']}"
                axes.plot(best, row[figures[-1][0]], "*", color=COLOURS[len(figures) - 1], markersize=15, label=layout)
        axes.set(xscale="log", xlabel="global batch (samples)", ylabel="samples a second", ylim=(0, None))
        shown = batches[:: max(1, -(-len(batches) // 10))]
        axes.set_xticks(shown, [str(batch) for batch in shown])
        axes.minorticks_off()
        axes.legend(fontsize=8)
