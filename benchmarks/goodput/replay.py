"""Goodput against layouts that were all measured: how near the best of them does it end up, and how soon?

    python benchmarks/goodput/replay.py [--layouts benchmarks/goodput/h200_layouts.json]

The times of steps are those measured on the machine (with 3 % jitter and the odd stall), between neighbours where a
layout is not on the grid; the noise scale grows as it did in training ResNet-18 on CIFAR-10. Only the clock and the
gradient are made up: the policy is the one that trains.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import numpy as np

import swell
from swell.core.goodput import goodput
from swell.core.planning import plan
from swell.core.profile import Profile
from swell.core.types import Layout, Moments, NoiseEstimate, Observation, StepTimes

HERE = Path(__file__).parent
BASE, LARGEST, TARGET = 128, 4096, 5860.0
# Progress in base steps and noise scale, from a run with batches of 1,024 (ResNet-18, CIFAR-10, one-cycle schedule).
NOISE = [
    (0, 900),
    (190, 320),
    (1000, 370),
    (1450, 500),
    (2000, 850),
    (2800, 1700),
    (3800, 3300),
    (4900, 7000),
    (5860, 16000),
]


class Machine:
    """Step times as they were measured."""

    def __init__(self, layouts: list[dict[str, float]]) -> None:
        counts = sorted({int(one["accumulation"]) for one in layouts})
        self._grid = {
            count: sorted((one["micro_batch"], one["step_ms"] / 1e3) for one in layouts if one["accumulation"] == count)
            for count in counts
        }
        self.measured = [(int(one["micro_batch"]), int(one["accumulation"]), one["step_ms"] / 1e3) for one in layouts]

    def seconds(self, micro: int, accumulation: int) -> float:
        """Of one step; more accumulation than was measured takes proportionally longer."""
        nearest = min(self._grid, key=lambda count: abs(math.log(count / accumulation)))
        sizes, times = zip(*self._grid[nearest], strict=True)
        beyond = max(0.0, micro - sizes[-1]) * (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        return (float(np.interp(micro, sizes, times)) + beyond) * accumulation / nearest


class Smooth(Machine):
    """The same machine without the scatter of its measurements: bound by launching kernels, then by computing."""

    launching_ms, fixed_ms, sample_ms, sharp = 8.4, 2.3, 0.014, 8

    def __init__(self, layouts: list[dict[str, float]]) -> None:
        sizes = [(int(one["micro_batch"]), int(one["accumulation"])) for one in layouts]
        self.measured = [(micro, accumulation, self.seconds(micro, accumulation)) for micro, accumulation in sizes]

    def seconds(self, micro: int, accumulation: int) -> float:
        computing = self.fixed_ms + self.sample_ms * micro
        return accumulation * (self.launching_ms**self.sharp + computing**self.sharp) ** (1 / self.sharp) / 1e3


def true_noise(progress: float) -> float:
    return float(np.exp(np.interp(progress, [p for p, _ in NOISE], [math.log(n) for _, n in NOISE])))


def gain(batch: int, noise_scale: float) -> float:
    return (noise_scale / BASE + 1) / (noise_scale / batch + 1)


def foreseen(machine: Machine, slack: float) -> dict[str, float]:
    """What nobody can beat: all times and the noise known beforehand, and changes for nothing."""
    fastest: dict[int, float] = {}
    for micro, accumulation, seconds in machine.measured:
        batch = micro * accumulation
        if BASE <= batch <= LARGEST:
            fastest[batch] = min(seconds, fastest.get(batch, math.inf))
    progress, steps, seconds = 0.0, 0, 0.0
    while progress < TARGET:
        phi = true_noise(progress)
        value = {batch: gain(batch, phi) / took for batch, took in fastest.items()}
        batch = max(one for one in value if value[one] >= max(value.values()) * (1 - slack))
        progress, steps, seconds = progress + gain(batch, phi), steps + 1, seconds + fastest[batch]
    return {"seconds": round(seconds, 2), "steps": steps}


def train(machine: Machine, policy: swell.Goodput, seed: int) -> dict[str, float]:
    """Train to the target; how good each settled choice was, what it took, and what the best constant plan would."""
    random = np.random.default_rng(seed)
    profile, progress, samples, since, steps, seconds = Profile(), 0.0, 0, 0, 0, 0.0
    batch, micro = BASE, None
    ratios = []
    while progress < TARGET:
        true = true_noise(progress)
        told = true * math.exp(0.1 * random.standard_normal())
        width = 1.5 if steps >= 50 else 8.0
        seen = Observation(
            step=steps, samples=samples, epoch=0, epoch_samples=samples, epoch_size=None,
            total_samples=int(TARGET * BASE), progress=progress, base_batch=BASE, batch=batch, batch_since=since,
            replicas=1, micro_batch=micro,
            noise=NoiseEstimate(
                total=Moments(1.0, told), groups=(), interval=(told / width, told * width), observations=steps
            ),
            profile=profile.summaries(),
        )  # fmt: skip
        layout: Layout = policy.layout(seen)
        laid = plan(layout.global_batch, 1, max_micro=layout.micro_batch)
        step_s = machine.seconds(laid.micro_batch, laid.accumulation)
        if steps >= 200:
            best = max(float(goodput(m * a, t, BASE, true)) for m, a, t in machine.measured if BASE <= m * a <= LARGEST)
            ratios.append(float(goodput(layout.global_batch, step_s, BASE, true)) / best)
        noisy = step_s * math.exp(0.03 * random.standard_normal()) * (5 if random.random() < 0.01 else 1)
        shape = {"micro_batch": laid.micro_batch, "accumulation": laid.accumulation}
        profile.add(StepTimes(replicas=1, nodes=1, step_s=noisy, **shape))
        if layout.global_batch != batch:
            batch, since = layout.global_batch, samples
        micro = laid.micro_batch
        progress += gain(layout.global_batch, true)
        samples, steps, seconds = samples + layout.global_batch, steps + 1, seconds + step_s
    return {
        "of_best_median": statistics.median(ratios),
        "of_best_worst_tenth": float(np.quantile(ratios, 0.1)),
        "seconds": seconds,
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", type=Path, default=HERE / "h200_layouts.json")
    given = parser.parse_args()
    measured = json.loads(given.layouts.read_text())
    about = {"date": measured["date"], "machine": measured["machine"]}
    machines = {f"table {number}": Machine(one["layouts"]) for number, one in enumerate(measured["tables"], start=1)}
    for name, machine in {**machines, "smooth": Smooth(measured["tables"][0]["layouts"])}.items():
        about[name] = {}
        for slack in (0.0, 0.05, 0.08):
            runs = [train(machine, swell.Goodput(BASE, max=LARGEST, slack=slack), seed) for seed in range(5)]
            found = {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
            about[name][f"slack {slack}"] = {**found, "foreseen": foreseen(machine, slack)}
            print(name, f"slack {slack}:", about[name][f"slack {slack}"])
    (HERE / "replay.json").write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
