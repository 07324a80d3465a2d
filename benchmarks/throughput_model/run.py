"""How well step times of configurations that were never run are predicted, and what deciding by them costs a step.

    SWELL_DATA=... python benchmarks/throughput_model/run.py

Writes result.json beside this file and prints a table. Takes about a minute on one core.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.throughput_model.deciding import deciding
from benchmarks.throughput_model.measurements import HERE, data_folder, own, pollux
from swell.core.throughput import fit, predict
from swell.core.types import StepSummary

SEEDS = 5
Split = tuple[list[StepSummary], list[StepSummary]]  # fitted, held out


def splits(points: list[StepSummary], protocol: str) -> Iterator[Split]:
    """Ways to hold some configurations out."""
    if protocol == "larger worlds":
        small = [point for point in points if point.replicas <= 8]
        large = [point for point in points if point.replicas > 8]
        if small and large:
            for seed in range(SEEDS):
                chosen = np.random.default_rng(seed).permutation(len(small))[:32]
                yield [small[index] for index in chosen], large
        return
    count = {"a quarter": len(points) // 4, "16 points": 16}[protocol]
    if count < 6 or count > len(points) * 3 // 4:
        return
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(points))
        yield [points[index] for index in order[:count]], [points[index] for index in order[count:]]


def errors(fitted: list[StepSummary], held_out: list[StepSummary]) -> dict[str, float]:
    """Relative errors on what was held out, and how honest the predicted errors are."""
    start = time.process_time()
    law = fit(fitted)
    fit_ms = 1000 * (time.process_time() - start)
    where = {
        axis: np.array([getattr(point, axis) for point in held_out])
        for axis in ("replicas", "nodes", "micro_batch", "accumulation")
    }
    true = np.array([point.step_s for point in held_out])
    predicted = law.predict(**where)
    relative = np.abs(predicted.step_s / true - 1)
    alone = np.abs(predict(law.params, **where) / true - 1)
    within = np.abs(np.log(predicted.step_s / true)) < 2 * predicted.error
    return {
        "median": float(np.median(relative)),
        "p90": float(np.quantile(relative, 0.9)),
        "law_alone": float(np.median(alone)),
        "within_two_errors": float(np.mean(within)),
        "fit_ms": fit_ms,
        "fitted": len(fitted),
        "held_out": len(held_out),
    }


def measure(folder: Path | None) -> list[dict[str, object]]:
    """Errors on every set there is, by every protocol that its size allows."""
    rows = []
    fit([StepSummary(replicas=1, nodes=1, micro_batch=1, accumulation=1, step_s=1.0, count=1)])  # warms caches
    for name, points in {**(pollux(folder) if folder is not None else {}), **own()}.items():
        for protocol in ("a quarter", "16 points", "larger worlds"):
            found = [errors(*split) for split in splits(points, protocol)]
            if found:
                means = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
                means["fit_ms"] = float(np.median([one["fit_ms"] for one in found]))
                rows.append({"set": name, "protocol": protocol, "configurations": len(points), **means})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "result.json")
    output = parser.parse_args().output
    folder = data_folder()
    rows = measure(folder)
    print(f"{'set':28} {'protocol':14} {'n':>5} {'median':>7} {'p90':>7} {'law':>7} {'2 err':>6} {'fit ms':>7}")
    for row in rows:
        print(
            f"{row['set']!s:28} {row['protocol']!s:14} {row['fitted']:5.0f} {row['median']:7.1%} {row['p90']:7.1%} "
            f"{row['law_alone']:7.1%} {row['within_two_errors']:6.0%} {row['fit_ms']:7.1f}"
        )
    for protocol in ("a quarter", "16 points", "larger worlds"):
        of_all = [float(str(row["median"])) for row in rows if row["protocol"] == protocol]
        if of_all:
            print(f"{protocol}: median over {len(of_all)} sets {np.median(of_all):.1%}, worst {max(of_all):.1%}")
    costs = [deciding(replicas) for replicas in (1, 8)]
    for cost in costs:
        print(
            f"deciding on {cost['replicas']:.0f} replicas, {cost['steps']:.0f} steps, fits included: mean "
            f"{cost['mean_ms']:.2f} ms, median {cost['median_ms']:.2f} ms, largest {cost['largest_ms']:.1f} ms"
        )
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "rows": rows,
        "deciding": costs,
    }
    if folder is None:
        print(
            "SWELL_DATA is unset or names no folder with traces/: nothing was written, the measured models are missing"
        )
    else:
        output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
