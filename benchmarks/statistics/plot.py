"""Draw what statistics cost: bars from cpu.json and, if it exists, gpu.json.

python benchmarks/statistics/plot.py [--out docs/images/statistics.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COLOURS = {"swell": "#1f77b4", "swell, every step": "#9ecae1", "FairScale": "#ff7f0e", "AdaptDL": "#2ca02c"}
LABELS = {"swell": "swell, by default: one step in 16", "swell, every step": "swell, every step"}


def draw_cpu(axes: Any, document: dict[str, Any]) -> None:
    """One group of bars per case, one bar per library; a dot for the processor time."""
    cases, width = document["results"], 0.8 / len(COLOURS)
    for number, (kind, colour) in enumerate(COLOURS.items()):
        places = [index + (number - (len(COLOURS) - 1) / 2) * width for index in range(len(cases))]
        extra = [100 * (case["ratio"][kind] - 1) for case in cases]
        processor = [100 * (case["processor_ratio"][kind] - 1) for case in cases]
        axes.bar(places, extra, width, color=colour, label=LABELS.get(kind, kind))
        axes.plot(places, processor, "k.", markersize=5, label="processor time" if number == 3 else None)
    _finish(axes, cases, f"2 CPU workers, gloo ({document['date']})", aims=[3.0] * len(cases))


def draw_gpu(axes: Any, document: dict[str, Any]) -> None:
    """Two bars per case: as measured, and at the default rate."""
    cases = document["results"]
    for shift, key, colour, label in (
        (-0.2, "ratio_to_same_loop", "#9ecae1", "swell, as often as it was measured"),
        (0.2, "ratio_in_the_long_run", "#1f77b4", "swell, as often as by default"),
    ):
        extra = [100 * (case[key] - 1) for case in cases]
        axes.bar([index + shift for index in range(len(cases))], extra, 0.4, color=colour, label=label)
    _finish(
        axes, cases, f"{document['machine'].split(',')[0]} ({document['date']})", aims=[aim_of(case) for case in cases]
    )


def aim_of(case: dict[str, Any]) -> float:
    """The most that statistics may add to a step on a GPU, in percent."""
    return 0.5 if case["case"].startswith("GPT") else 2.0


def _finish(axes: Any, cases: list[dict[str, Any]], title: str, *, aims: list[float]) -> None:
    axes.axhline(0, color="black", linewidth=0.8)
    places = range(len(cases))
    lines = {"color": "black", "linewidth": 1, "linestyle": "--", "label": "aim: at most this, by default"}
    axes.hlines(aims, [place - 0.45 for place in places], [place + 0.45 for place in places], **lines)
    names = [case["case"].replace(", ", "\n", 1) for case in cases]
    axes.set_xticks(range(len(cases)), names, fontsize=8)
    axes.set_ylabel("longer step with statistics, %")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs" / "images" / "statistics.png")
    arguments = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = [
        (draw, json.loads((HERE / name).read_text()))
        for name, draw in (("cpu.json", draw_cpu), ("gpu.json", draw_gpu))
        if (HERE / name).exists()
    ]
    figure, axes = pyplot.subplots(1, len(parts), figsize=(6.4 * len(parts), 4), squeeze=False)
    for each, (draw, document) in zip(axes[0], parts, strict=True):
        draw(each, document)
    figure.tight_layout()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
