"""The table of the documentation: the default policy beside the plain base loop and the best batch picked by hand.

    python benchmarks/worth/summary.py worth.json alone.json [--way goodput]

``worth.json`` has base runs, hand-picked batches and further seeds (results), ``alone.json`` runs that had the device
to themselves, with the times of plain steps before and after them. Results are of all seeds, times and losses of the
latter. Times of plain loops are their steps times the time of a step. Where no larger batch was as good as the base
runs, the base batch is the best by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from table import base_runs, equal_progress, of, verdict

GOOD = 2.0  # standard deviations of the base seeds


def best_by_hand(runs: list[dict[str, Any]], task: str, times: dict[str, float]) -> tuple[float, str]:
    """Seconds and name of the fastest batch with a result like the base runs', by the median of its seeds.

    That is the base batch itself if no larger one is as good.
    """
    base = base_runs(runs, task)
    found = [(base[0]["steps"] * times["plain 1"], "base")]
    for way in {run["way"] for run in runs if " x, " in run["way"]}:
        seeds, step_s = of(runs, task, way), times.get(f"plain {way.split(' x, ')[0]}")
        if seeds and step_s and statistics.median(verdict(run, base) for run in seeds) <= GOOD:
            found.append((seeds[0]["steps"] * step_s, way))
    return min(found)


def row(run: dict[str, Any], runs: list[dict[str, Any]], times: dict[str, float]) -> dict[str, Any]:
    base = base_runs(runs, run["task"])
    seeds = [run, *sorted(of(runs, run["task"], run["way"]), key=lambda one: one["seed"])]
    verdicts, ratios = [verdict(one, base) for one in seeds], equal_progress(run, base)[0]
    results = sorted(one["result"] for one in base)
    base_s, hand = base[0]["steps"] * times["plain 1"], best_by_hand(runs, run["task"], times)
    return {
        "task": run["task"],
        "base": f"{results[0]:.4g} to {results[-1]:.4g}",
        "result": ", ".join(f"{one['result']:.4g}" for one in seeds),
        "verdicts": verdicts,
        "worse": statistics.median(verdicts),
        "seconds": run["seconds"],
        "time": run["seconds"] / base_s,
        "hand": run["seconds"] / hand[0],
        "hand_way": hand[1],
        "samples": run["samples"] / base[0]["samples"],
        "steps": run["steps"] / base[0]["steps"],
        "loss": statistics.median(ratios),
        "loss_end": ratios[-1],
    }


def sd(worse: float) -> str:
    """So many standard deviations; bold where that is too many."""
    text = f"{worse:+.1f}".replace("-", "−").replace("+0.0", "0.0").replace("−0.0", "0.0")
    return f"**{text}**" if worse > GOOD else text


def read_rows(parser: argparse.ArgumentParser) -> tuple[list[dict[str, Any]], argparse.Namespace]:
    """A row for each task of the files that the command line names; tasks that were held out have a mark."""
    parser.add_argument("worth", type=Path)
    parser.add_argument("alone", type=Path)
    parser.add_argument("--way", default="goodput")
    given = parser.parse_args()
    runs, alone = json.loads(given.worth.read_text())["runs"], json.loads(given.alone.read_text())
    rows = [
        row(run, runs, run["step_times"]) for run in alone["runs"] if run["way"] == given.way and "error" not in run
    ]
    for one in rows:
        one["name"] = f"{one['task']} †" if one["task"] in alone["held_out"] else one["task"]
    return rows, given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows, _ = read_rows(parser)
    titles = ("task", "base runs", "swell", "worse by", "time / base", "time / by hand", "samples", "steps", "loss")
    print(f"| {' | '.join(titles)} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for one in rows:
        hand, worse = f"{one['hand']:.2f} ({one['hand_way']})", ", ".join(map(sd, one["verdicts"]))
        print(
            f"| {one['name']} | {one['base']} | {one['result']} | {worse} | {one['time']:.2f} | "
            f"{hand} | {one['samples']:.2f} | {one['steps']:.2f} | {one['loss']:.2f}, at the end "
            f"{one['loss_end']:.2f} |"
        )
    for name in ("worse", "time", "hand", "samples", "steps", "loss"):
        values = sorted(one[name] for one in rows)
        print(f"{name}: median {statistics.median(values):.2f}, from {values[0]:.2f} to {values[-1]:.2f}")
    every = [worse for one in rows for worse in one["verdicts"]]
    print(
        f"within {GOOD:g} sd: {sum(one['worse'] <= GOOD for one in rows)} of {len(rows)} tasks by the median seed, ",
        end="",
    )
    print(f"{sum(worse <= GOOD for worse in every)} of {len(every)} runs")


if __name__ == "__main__":
    main()
