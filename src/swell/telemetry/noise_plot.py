"""Pictures of what batch sizes cost: steps and samples by gradient noise, throughput and goodput by measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swell.telemetry.canvas import COLOURS, Canvas


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


def draw_goodput(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Samples a second and, where the noise is known, goodput against batch size."""
    batches = [row["batch"] for row in rows]
    with Canvas(path, rows=1, columns=1, size=(7.0, 4.5)) as canvas:
        (axes,) = canvas.axes
        axes.plot(batches, [row["samples_s"] for row in rows], "o", color=COLOURS[0], label="samples/s", markersize=4)
        if rows and rows[0]["goodput"] is not None:
            axes.plot(batches, [row["goodput"] for row in rows], "o", color=COLOURS[1], label="goodput", markersize=4)
        axes.set(xscale="log", xlabel="global batch (samples)", ylabel="samples a second", ylim=(0, None))
        axes.legend()
