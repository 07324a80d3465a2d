"""Is the plan that goodput chooses the best there is? Every layout is measured, then the policy is let loose.

    SWELL_DATA=... python benchmarks/goodput/exhaustive.py             # ResNet-18 on CIFAR-10, one GPU
    python benchmarks/goodput/exhaustive.py --workers 2                # a small network, two CPU workers

``Goodput`` trains from nothing, three times for each slack. In turns with that every layout (micro-batch and
accumulation), and all those it chose, are timed in the job's own loop, over many rounds. Each of its later choices is
compared with the best of the layouts at the noise scale of that moment: true samples a second times efficiency. The
best of many measurements is partly luck, so it is found by the even rounds and compared by the odd ones, and the other
way round. Writes gpu.json or cpu.json beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import swell
from swell.core.goodput import goodput
from swell.core.types import Layout

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "time_to_accuracy"))
RUNS = 3
SLACKS = (0.0, 0.08)  # goodput alone, and the default, which gives some of it for fewer steps
STAY, SETTLING = 12, 4  # steps at each layout of a round, and how many of them are not timed


class Blobs:
    """Images with labels that a small network can learn; in memory, read a batch at a time."""

    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.y = torch.randint(10, (n,), generator=generator)
        centres = torch.randn(10, 3, 16, 16, generator=generator)
        self.x = 0.1 * centres[self.y] + torch.randn(n, 3, 16, 16, generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        return [(self.x[indices], self.y[indices])]


def first(batches: list[Any]) -> Any:
    return batches[0]


def small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 64, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


class Workload:
    """What is trained: model, optimizer, data and loss."""

    def __init__(self, gpu: bool) -> None:
        self.gpu = gpu
        self.base, self.largest = (128, 4096) if gpu else (32, 1024)
        if gpu:
            from cifar10 import Images, load_cifar10  # pyright: ignore[reportMissingImports]
            from models import resnet18  # pyright: ignore[reportMissingImports]

            x, y, _, _ = load_cifar10(Path(os.environ["SWELL_DATA"]) / "images" / "cifar10_q5.npz")
            self.data: Any = Images(x, y, train=True)
            self.make: Callable[[], nn.Module] = lambda: resnet18().cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        else:
            self.data, self.make = Blobs(16384), small_network

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.gpu):
            return F.cross_entropy(model(batch[0]), batch[1])

    def train(self, policy: Any, *, steps: int, seed: int = 0, **settings: Any) -> Told:
        """A run, and what was chosen in it; the clock waits for the device."""
        torch.manual_seed(seed)
        model = self.make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        told = Told(policy)
        job = swell.Job(batch=told, seed=seed, progress=False, save=None, sinks=[told], rule="constant", **settings)
        job.wrap(model, optimizer)
        loader = job.loader(self.data, shuffle=True, collate_fn=first)
        for _ in job.epochs(10**6):
            for part in loader:
                job.backward(self.loss(model, part))
                job.step()
                if job.steps >= steps:
                    break
            if job.steps >= steps:
                break
        job.close()
        return told


class Step(NamedTuple):
    """What was chosen for a step, what it took, and the noise scale."""

    chosen: Layout
    as_chosen: bool
    seconds: float
    noise_scale: float | None


class Told:
    """Passes on what a policy chooses and keeps what came of it."""

    def __init__(self, policy: Any) -> None:
        self.base, self.policy = policy.base, policy
        self.layouts: dict[Layout, None] = {}  # in the order they were chosen in, on every worker
        self.steps: list[Step] = []  # on the first worker, which is told of events

    def batch(self, seen: Any) -> int:
        return self.layout(seen).global_batch

    def layout(self, seen: Any) -> Layout:
        self.chosen: Layout = self.policy.layout(seen)
        self.layouts[self.chosen] = None
        return self.chosen

    def emit(self, event: Any) -> None:
        if event.kind == "step":
            laid = (event.global_batch, event.micro_batch)
            chosen = (self.chosen.global_batch, self.chosen.micro_batch)
            self.steps.append(Step(self.chosen, laid == chosen, event.step_s, event.noise_scale))

    def close(self) -> None:
        pass


class Tour:
    """Every layout for a few steps, again and again, each time in another order; asking costs what Goodput does."""

    def __init__(self, layouts: list[Layout], asked: swell.Goodput, rounds: range) -> None:
        self.base, self.policy = asked.base, asked
        orders = [np.random.default_rng(number).permutation(len(layouts)) for number in rounds]
        self.stops = [layouts[index] for order in orders for index in order]

    def layout(self, seen: Any) -> Layout:
        self.policy.layout(seen)
        return self.stops[min(seen.step // STAY, len(self.stops) - 1)]


def all_layouts(workload: Workload, replicas: int) -> list[Layout]:
    """On a fine grid."""
    sizes = sorted({int(workload.base * 2 ** (octave / 2)) // 8 * 8 for octave in range(-6, 15)} - {0})
    pairs = [(replicas * micro * count, micro) for micro in sizes for count in (1, 2, 4, 8)]
    return [
        Layout(global_batch=batch, micro_batch=micro)
        for batch, micro in pairs
        if workload.base <= batch <= workload.largest
    ]


Times = dict[Layout, list[float]]


def measure(workload: Workload, layouts: list[Layout], rounds: range) -> list[Times]:
    """Seconds of steps of each layout, in each round."""
    tour = Tour(layouts, swell.Goodput(workload.base, max=workload.largest), rounds)
    steps = workload.train(tour, steps=STAY * len(tour.stops)).steps
    times: list[Times] = [{one: [] for one in layouts} for _ in rounds]
    for number, step in enumerate(steps):
        if number % STAY >= SETTLING and step.as_chosen:
            times[number // (STAY * len(layouts))][step.chosen].append(step.seconds)
    return times


def medians(rounds: list[Times], layouts: list[Layout]) -> np.ndarray:
    every = [[seconds for times in rounds for seconds in times.get(one, [])] for one in layouts]
    return np.array([statistics.median(seconds or [math.nan]) for seconds in every])


def compare(workload: Workload, replicas: int, steps: int, rounds: int) -> dict[str, Any]:
    """Runs of the policy and rounds over the layouts in turns, since a machine's speed drifts."""
    runs: dict[float, list[Told]] = {slack: [] for slack in SLACKS}
    found = dict.fromkeys(all_layouts(workload, replicas))
    times: list[Times] = []
    for seed in range(RUNS):
        for slack, told in runs.items():
            policy = swell.Goodput(workload.base, max=workload.largest, slack=slack)
            told.append(workload.train(policy, steps=steps, seed=seed))
            found.update(told[-1].layouts)
        until = max(len(times) + 2, rounds * (seed + 1) // RUNS)
        times += measure(workload, list(found), range(len(times), until))
    layouts = list(found)
    halves = medians(times[::2], layouts), medians(times[1::2], layouts)
    if not runs[SLACKS[0]][0].steps:  # on the other workers, which are told of nothing
        return {}
    return {
        "replicas": replicas,
        "layouts": [
            {
                "micro_batch": one.micro_batch,
                "accumulation": -(-one.global_batch // (replicas * one.micro_batch)),
                "step_ms": [round(1e3 * float(half[index]), 3) for half in halves],
            }
            for index, one in enumerate(layouts)
        ],
        "steps": steps,
        "slack": {
            str(slack): of_best([run.steps for run in of_slack], layouts, halves, workload.base)
            for slack, of_slack in runs.items()
        },
    }


def stays(run: list[Step]) -> Iterator[dict[str, Any]]:
    """What was chosen one after the other, for how many steps, and the noise scale at the last of them."""
    for chosen, steps in itertools.groupby(run, key=lambda step: step.chosen):
        count, noise_scale = 0, None
        for step in steps:
            count, noise_scale = count + 1, step.noise_scale
        told = None if noise_scale is None or not math.isfinite(noise_scale) else round(noise_scale)
        yield {"batch": chosen.global_batch, "micro": chosen.micro_batch, "steps": count, "noise_scale": told}


def of_best(
    runs: list[list[Step]], layouts: list[Layout], halves: tuple[np.ndarray, np.ndarray], base: int
) -> dict[str, Any]:
    """The goodput of what was chosen as a part of the best layout's, over all steps after the first third."""
    batches = np.array([one.global_batch for one in layouts], float)
    place = {one: index for index, one in enumerate(layouts)}
    ratios: list[list[float]] = []
    for run in runs:
        ratios.append([])
        for step in run[len(run) // 3 :]:
            if step.noise_scale is None or step.noise_scale <= 0 or not math.isfinite(step.noise_scale):
                continue
            values = [goodput(batches, half, base, step.noise_scale) for half in halves]
            mine = place[step.chosen]
            pairs = zip(values, reversed(values), strict=True)
            ratios[-1].append(statistics.mean(float(by[mine] / by[int(np.nanargmax(found))]) for found, by in pairs))
    every = [ratio for of_run in ratios for ratio in of_run]
    return {
        "compared": len(every),
        "of_best_median": statistics.median(every),
        "of_best_median_by_run": [round(statistics.median(of_run), 4) for of_run in ratios],
        "of_best_worst_tenth": float(np.quantile(every, 0.1)),
        "chosen": [list(stays(run)) for run in runs],
    }


def worker(steps: int, rounds: int, out: Path) -> None:
    gpu = torch.cuda.is_available()
    torch.set_num_threads(1 if not gpu else torch.get_num_threads())
    replicas = int(os.environ.get("WORLD_SIZE", "1"))
    found = compare(Workload(gpu), replicas, steps, rounds)
    if int(os.environ.get("RANK", "0")) == 0:
        name = torch.cuda.get_device_name() if gpu else f"{platform.processor() or platform.machine()}, CPU"
        about = {"date": str(date.today()), "machine": f"{name}, torch {torch.__version__}", "load": os.getloadavg()[0]}
        out.write_text(json.dumps({**about, **found}))
        for slack, of_slack in found["slack"].items():
            print(f"slack {slack}:", {key: value for key, value in of_slack.items() if key != "chosen"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="CPU workers, started with torchrun")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.workers > 1 and "RANK" not in os.environ:
        # Memory that goes back to the system after every step makes the time of a layout depend on the one before it.
        os.environ.update(MALLOC_MMAP_THRESHOLD_=str(2**30), MALLOC_TRIM_THRESHOLD_=str(2**40))
        command = ["torchrun", f"--nproc-per-node={given.workers}", *sys.argv]
        os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *command[1:]])
    began = time.perf_counter()
    out = given.out or HERE / ("gpu.json" if torch.cuda.is_available() else "cpu.json")
    worker(given.steps, given.rounds, out)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
