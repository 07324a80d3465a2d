"""The table of a run of ``run.py``, and what must hold, as figures: results, training loss at equal progress, samples.

    python benchmarks/worth/table.py worth.json [--way goodput]

Without ``--way`` every way gets one line with its figures over all tasks.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

Runs = list[dict[str, Any]]


def of(runs: Runs, task: str, way: str) -> Runs:
    return [run for run in runs if run["task"] == task and run["way"] == way and "error" not in run]


def base_runs(runs: Runs, task: str) -> Runs:
    """The base runs of all seeds; those with measurements beside them are base runs too."""
    found = {run["seed"] + (100 if run["way"] != "base" else 0): run for run in runs if run["task"] == task
             and run["way"] in ("base", "noise", "branches") and "error" not in run}  # fmt: skip
    return list(found.values())


def higher_is_better(task: str) -> bool:
    return task in ("resnet", "convnet", "mlp", "vit", "triplet", "mixer")


def verdict(run: dict[str, Any], base: Runs) -> float:
    """How many standard deviations of the base seeds the result is worse; negative if better."""
    results = [one["result"] for one in base]
    mean, spread = statistics.mean(results), statistics.stdev(results) if len(results) > 1 else math.nan
    sign = 1 if higher_is_better(run["task"]) else -1
    return sign * (mean - run["result"]) / max(spread, 1e-3 * abs(mean))


def equal_progress(run: dict[str, Any], base: Runs) -> tuple[list[float], float]:
    """Training loss over the base run's at equal progress, from a tenth of the run on; and the base seeds' spread."""
    at = [point["progress"] for point in run["curve"]]
    curves = [np.interp(at, [p["progress"] for p in one["curve"]], [p["loss"] for p in one["curve"]]) for one in base]
    mean = np.mean(curves, axis=0)
    spread = np.max(np.abs(np.array(curves) / mean - 1), axis=0)
    ratios = [point["loss"] / mean[i] for i, point in enumerate(run["curve"]) if point["progress"] >= 0.1]
    spreads = [spread[i] for i, point in enumerate(run["curve"]) if point["progress"] >= 0.1]
    return ratios, float(np.median(spreads)) if spreads else math.nan


def line(run: dict[str, Any], base: Runs) -> str:
    ratios, spread = equal_progress(run, base)
    samples = statistics.mean(one["samples"] for one in base)
    mid, last = ratios[len(ratios) // 2], ratios[-1]
    return (
        f"{run['task']:12} {run['way']:24} {run['seed']:3} {run['seconds']:6.1f} s {run['steps']:6} steps "
        f"samples x{run['samples'] / samples:5.2f}  result {run['result']:8.4f} ({verdict(run, base):+5.1f} sd worse)  "
        f"loss at equal progress {min(ratios):.2f}-{max(ratios):.2f} mid {mid:.2f} end {last:.2f} (seeds ±{spread:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--way", nargs="*", default=[])
    given = parser.parse_args()
    found = json.loads(given.file.read_text())
    runs: Runs = found["runs"]
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    ways = list(dict.fromkeys(run["way"] for run in runs if run["way"] not in ("base", "noise", "branches")))
    for task in tasks:
        base = base_runs(runs, task)
        if not base:
            continue
        results = ", ".join(f"{run['result']:.4f}" for run in base)
        steps = base[0]["steps"]
        print(f"\n{task}: base {results} in {steps} steps, loss {statistics.mean(run['loss'] for run in base):.4f}")
        for way in ways:
            if given.way and way not in given.way:
                continue
            for run in of(runs, task, way):
                print("  " + line(run, base))
    print()
    for way in ways:
        rows = [(run, base_runs(runs, run["task"])) for run in runs if run["way"] == way and "error" not in run]
        rows = [(run, base) for run, base in rows if base]
        if not rows:
            continue
        worse = sorted(verdict(run, base) for run, base in rows)
        off = sorted(max(abs(math.log(max(r, 1e-9))) for r in equal_progress(run, base)[0]) for run, base in rows)
        typical = sorted(
            statistics.median(abs(math.log(r)) for r in equal_progress(run, base)[0]) for run, base in rows
        )
        samples = sorted(run["samples"] / base[0]["samples"] for run, base in rows)
        steps = sorted(run["steps"] / base[0]["steps"] for run, base in rows)
        print(
            f"{way:24} {len(rows):3} runs  worse by sd: median {statistics.median(worse):+.1f} worst {worse[-1]:+.1f}, "
            f"within 2: {sum(w <= 2 for w in worse)}  loss off: median {statistics.median(typical):.0%}, "
            f"worst of a run in the median {statistics.median(off):.0%}  samples {statistics.median(samples):.2f}  "
            f"steps {statistics.median(steps):.2f}"
        )


if __name__ == "__main__":
    main()
