"""What a change of plan costs a loader that fetches ahead: other micro-batches, a resize, a step in two halves.

    python benchmarks/loader/changes.py

Three feeds take turns: one whose plan never changes, and two whose plan does. The first of these cuts and joins what it
has fetched ahead; the second has a ``collate_fn``, whose batches cannot be cut, so it drops a batch unless exactly its
span is asked for. A sample takes 0.5 ms. In "loading" it waits (as for a disk) and nothing is trained; in "training"
the loop also trains, a quarter longer than the workers take for the same batch, so that a plan that never changes hides
the loading; in "computing" a sample computes, and processor time is counted instead of wall time.

Prints a table and writes changes.json beside this file. ``ratio`` is the median over turns of the time for a sample to
that of the plan that never changes, ``fetched`` is how many samples were loaded for each that was handed out: it does
not depend on the machine. Linux only.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from run import processor_seconds
from torch.utils.data import Dataset, default_collate

from swell.core.order import Sequential
from swell.data import Feed, Span

HERE = Path(__file__).parent
N = 10**6  # samples: the epoch does not end
COST_S = 0.0005
MODES = ("loading", "training", "computing")


@dataclass(frozen=True)
class Layout:
    """How one step is dealt out: in rounds, in each of which every replica takes one micro-batch."""

    micro: int
    accumulation: int = 1
    rank: int = 0
    replicas: int = 1

    @property
    def batch(self) -> int:
        return self.micro * self.accumulation * self.replicas

    def spans(self, position: int) -> Iterator[Span]:
        """This replica's spans from ``position`` on, as long as the layout stays."""
        for number in itertools.count():
            start = position + (number * self.replicas + self.rank) * self.micro
            yield Span(0, start, start + self.micro)


def alternating(every: int, *layouts: Layout) -> Callable[[int], Layout]:
    return lambda step: layouts[step // every % len(layouts)]


def split_every(every: int) -> Callable[[int], Layout]:
    return lambda step: Layout(32) if step % every else Layout(16, accumulation=2)


def ramp(step: int) -> Layout:
    """One sample more every step, from 32 to 64 and from the start."""
    return Layout(32 + step % 33)


CASES: dict[str, tuple[Callable[[int], Layout], int]] = {  # with the steps of a turn
    "other micro-batch every step": (alternating(1, Layout(32), Layout(48)), 48),
    "other micro-batch every 8": (alternating(8, Layout(32), Layout(48)), 48),
    "other micro-batch every 24": (alternating(24, Layout(32), Layout(48)), 96),
    "other micro-batch every 100": (alternating(100, Layout(32), Layout(48)), 200),
    "other accumulation every step": (alternating(1, Layout(32), Layout(32, accumulation=2)), 48),
    "other accumulation every 24": (alternating(24, Layout(32), Layout(32, accumulation=2)), 48),
    "ramp by 1 sample every step": (ramp, 66),
    "step in halves every 8": (split_every(8), 48),
    "resize every 24": (alternating(24, Layout(32), Layout(32, 1, 1, 2), Layout(32, 1, 0, 2), Layout(32, 1, 2, 3)), 96),
}


class Samples(Dataset[int]):
    """Samples that cost as much as small images do to read and transform."""

    def __init__(self, *, computes: bool) -> None:
        self.computes = computes

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        if self.computes:
            stop = time.thread_time() + COST_S
            while time.thread_time() < stop:
                pass
        else:
            time.sleep(COST_S)
        return index


def own_collate(samples: list[int]) -> torch.Tensor:
    """A collate_fn of the user's own, whose batches a feed does not cut."""
    return default_collate(samples)


class Reader:
    """Reads by one plan, a turn at a time; each turn starts where the one before ended."""

    def __init__(self, layout_of: Callable[[int], Layout], mode: str, workers: int, collate_fn: Any = None) -> None:
        self.layout_of, self.mode, self.workers = layout_of, mode, workers
        self.feed = Feed(
            Samples(computes=mode == "computing"),
            lambda epoch: Sequential(N),
            collate_fn=collate_fn,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        self.position = 0

    def turn(self, steps: int) -> dict[str, float]:
        fetched, samples = self.feed.fetched, 0
        wall, processor = time.perf_counter(), processor_seconds()
        for step in range(steps):
            layout = self.layout_of(step)
            for number, span in enumerate(itertools.islice(layout.spans(self.position), layout.accumulation)):
                later = itertools.islice(layout.spans(self.position), number + 1, None)
                batch = self.feed.fetch(span, lambda later=later: later)
                assert batch.tolist() == list(range(span.start, span.stop))
                samples += span.size
                if self.mode == "training":
                    time.sleep(1.25 * span.size * COST_S / max(1, self.workers))
            self.position += layout.batch
        spent = processor_seconds() - processor if self.mode == "computing" else time.perf_counter() - wall
        return {"us_a_sample": 1e6 * spent / samples, "fetched": (self.feed.fetched - fetched) / samples}


def measure(case: str, mode: str, workers: int, turns: int) -> dict[str, Any]:
    layout_of, steps = CASES[case]
    steady = Reader(lambda step: Layout(32), mode, workers)
    readers = {"cut and joined": Reader(layout_of, mode, workers)}
    readers["dropped"] = Reader(layout_of, mode, workers, collate_fn=own_collate)
    for reader in (steady, *readers.values()):
        reader.turn(8)  # starts workers and warms caches
    alone: list[float] = []
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in readers}
    for turn in range(turns):
        alone.append(steady.turn(steps)["us_a_sample"])
        for name in itertools.islice(itertools.cycle(readers), turn, turn + len(readers)):
            rows[name].append(readers[name].turn(steps))
    for reader in (steady, *readers.values()):
        reader.feed.close()
    figures: dict[str, Any] = {"steady_us_a_sample": statistics.median(alone)}
    for name in readers:
        ratios = sorted(row["us_a_sample"] / time for row, time in zip(rows[name], alone, strict=True))
        figures[name] = {
            "ratio": statistics.median(ratios),
            "ratio_quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
            "fetched": statistics.median(row["fetched"] for row in rows[name]),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="*", default=[2])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=HERE / "changes.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    print(f"{'the plan changes':31} workers  mode       requests        ratio (quartiles)       fetched")
    for workers, mode, case in itertools.product(options.workers, options.modes, options.cases):
        result = results[f"{case}, {workers} workers, {mode}"] = measure(case, mode, workers, options.turns)
        for name in ("cut and joined", "dropped"):
            low, high = result[name]["ratio_quartiles"]
            line = f"{case:31} {workers:7}  {mode:9}  {name:14}  {result[name]['ratio']:.3f} ({low:.3f} to {high:.3f})"
            print(f"{line}  {result[name]['fetched']:.3f}", flush=True)
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "turns": options.turns,
        "results": results,
    }
    options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
