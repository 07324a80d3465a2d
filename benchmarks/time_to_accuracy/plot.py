"""Curves of the last results: accuracy or loss against seconds and against optimizer steps.

python benchmarks/time_to_accuracy/plot.py [--out docs/images/time_to_accuracy.png]

The dashed line is the target, the small batch's result in the mean over seeds. A curve is pale after it has reached it.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
COLOURS = {
    "goodput": "#d1495b",
    "batch 128": "#30638e",
    "batch 8": "#30638e",
    "linear": "#8d96a3",
    "no rule": "#c8ccd2",
}

Curve = list[tuple[float, float]]


def draw_runs(runs: list[dict[str, Any]], axes: Any, *, by: str, figure: str, scale: float) -> None:
    """One line a run, the ways in colours; the first run of each way is in the legend. The first way is the target."""
    small = [scale * run[figure] for run in runs if run["way"] == runs[0]["way"]]
    target = sum(small) / len(small)
    axes.axhline(target, color="black", linewidth=0.9, linestyle="--", alpha=0.6)
    labelled: set[str] = set()
    for run in runs:
        colour = next((colour for word, colour in COLOURS.items() if word in run["way"]), "black")
        curve = [(float(point[by]), scale * point[figure]) for point in run["curve"]]
        label = None if run["way"] in labelled else run["way"]
        labelled.add(run["way"])
        axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1.2, alpha=0.3)
        axes.plot(*zip(*until(curve, target), strict=True), color=colour, label=label, linewidth=1.5, alpha=0.9)


def until(curve: Curve, target: float) -> Curve:
    """The curve up to where it first crosses the target, interpolated; all of it where it never does."""
    below = curve[0][1] < target
    for index, ((x, y), (next_x, next_y)) in enumerate(pairwise(curve)):
        if (next_y < target) != below:
            return [*curve[: index + 1], (x + (next_x - x) * (target - y) / (next_y - y), target)]
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs" / "images" / "time_to_accuracy.png")
    arguments = parser.parse_args()
    images, text = (json.loads((HERE / f"{name}.json").read_text())["runs"] for name in ("cifar10", "wikitext2"))
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 5.6))
    for column, by in enumerate(("seconds", "steps")):
        draw_runs(images, axes[0, column], by=by, figure="accuracy", scale=100.0)
        axes[0, column].set(ylim=(50, 94), ylabel="test accuracy (%)", title=f"CIFAR-10, ResNet-18, SGD: by {by}")
        draw_runs(text, axes[1, column], by=by, figure="loss", scale=1.0)
        axes[1, column].set(ylim=(4.7, 6.0), ylabel="validation loss", title=f"WikiText-2, small GPT, AdamW: by {by}")
        for row in (0, 1):
            axes[row, column].set_xlabel("seconds" if by == "seconds" else "optimizer steps")
            axes[row, column].set_xlim(left=0)
            axes[row, column].grid(alpha=0.25)
            axes[row, column].legend(fontsize=8, frameon=False, loc="lower right" if row == 0 else "upper right")
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
