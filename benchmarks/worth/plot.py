"""The picture of docs/worth.md: time and result of every task, swell beside the best batch picked by hand.

python benchmarks/worth/plot.py worth.json alone.json [--way goodput] [--out docs/images/worth.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from summary import GOOD, read_rows

MOST = 6.0  # standard deviations that the picture shows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/worth.png"))
    rows, given = read_rows(parser)
    rows.sort(key=lambda one: one["time"], reverse=True)
    places = range(len(rows))
    figure, (time, result) = plt.subplots(1, 2, figsize=(10, 5), sharey=True, layout="constrained")
    time.barh(places, [one["time"] for one in rows], color="#4c78a8", height=0.6, label="swell")
    by_hand = [one["time"] / one["hand"] for one in rows]
    time.plot(by_hand, places, "D", color="#e45756", label="best of nine batches by hand")
    time.axvline(1, color="#333333", linewidth=1)
    time.set_yticks(places, [one["name"] for one in rows])
    time.set_xlabel("time / plain base loop")
    time.legend(frameon=False, loc="center right", bbox_to_anchor=(0.93, 0.75), fontsize=9)
    result.axvspan(-MOST, GOOD, color="#54a24b", alpha=0.12)
    result.axvline(0, color="#333333", linewidth=1)
    for place, one in zip(places, rows, strict=True):
        for worse in one["verdicts"]:
            result.plot(worse, place, "o", markersize=4, color="#4c78a8" if worse <= GOOD else "#e45756")
        result.plot(one["worse"], place, "|", markersize=14, markeredgewidth=2, color="#333333")
    result.set_xlim(-MOST - 0.3, MOST + 0.3)
    result.set_xlabel("result worse by (standard deviations of base runs)")
    for axes in (time, result):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(given.out, dpi=120)


if __name__ == "__main__":
    main()
