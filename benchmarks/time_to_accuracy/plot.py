"""Curves of the last results: accuracy or loss against seconds and against optimizer steps.

python benchmarks/time_to_accuracy/plot.py [--out docs/images/time_to_accuracy.png]
"""

from __future__ import annotations

import argparse
import json
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


def drawn(runs: list[dict[str, Any]], axes: Any, *, by: str, figure: str, scale: float) -> None:
    """One line a run, the ways in colours; the first run of each way is in the legend."""
    told: set[str] = set()
    for run in runs:
        colour = next((c for word, c in COLOURS.items() if word in run["way"]), "black")
        points = [(0.0, None), *((point[by], scale * point[figure]) for point in run["curve"])][1:]
        label = None if run["way"] in told else run["way"]
        told.add(run["way"])
        axes.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.4, alpha=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs" / "images" / "time_to_accuracy.png")
    given = parser.parse_args()
    images, text = (json.loads((HERE / f"{name}.json").read_text())["runs"] for name in ("cifar10", "wikitext2"))
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 6.0))
    for column, by in enumerate(("seconds", "steps")):
        drawn(images, axes[0, column], by=by, figure="accuracy", scale=100.0)
        axes[0, column].set(ylim=(50, 94), ylabel="test accuracy (%)", title=f"CIFAR-10, ResNet-18, SGD: by {by}")
        drawn(text, axes[1, column], by=by, figure="loss", scale=1.0)
        axes[1, column].set(ylim=(4.8, 6.2), ylabel="validation loss", title=f"WikiText-2, small GPT, AdamW: by {by}")
        for row in (0, 1):
            axes[row, column].set_xlabel("seconds" if by == "seconds" else "optimizer steps")
            axes[row, column].grid(alpha=0.25)
            axes[row, column].legend(fontsize=8, frameon=False, loc="lower right" if row == 0 else "upper right")
    figure.tight_layout()
    figure.savefig(given.out, dpi=110)


if __name__ == "__main__":
    main()
