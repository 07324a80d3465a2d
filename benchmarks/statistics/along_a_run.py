"""Probes for one process with one micro-batch, against the truth at the same weights, while the weights move.

    python benchmarks/statistics/along_a_run.py [--out along_a_run.json]

Four small networks train on the digits that come with the package. At every tenth step the slow twin computes the
gradients of the whole data set, batch by batch, at the weights of that moment. Between, three probes look at the steps:

- split: the two halves of a step's batch,
- differences: two consecutive steps,
- second differences: three consecutive steps, whose second difference is free of a drift at constant speed.

Signal and noise are averaged over parts of the run. Cost is processor time, in steps without a probe.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swell.core.moments import consecutive_differences, estimate
from swell.core.types import Moments
from swell.demo.digits import load_digits

BATCH, STEPS, TRUTH = 32, 360, 10
PARTS = ((20, 120), (120, 240), (240, 360))
PROBES = ("split", "differences", "second differences")


def layers(*widths: int, between: Callable[[int], list[nn.Module]]) -> nn.Module:
    modules: list[nn.Module] = []
    for width, following in itertools.pairwise(widths):
        modules += [nn.Linear(width, following), *between(following)]
    return nn.Sequential(*modules[: -len(between(1))])


Make = Callable[[], nn.Module]
TASKS: dict[str, tuple[Make, Callable[[Any], torch.optim.Optimizer]]] = {
    "SGD, large steps": (
        lambda: layers(64, 64, 10, between=lambda _: [nn.ReLU()]),
        lambda p: torch.optim.SGD(p, lr=0.2),
    ),
    "SGD with momentum": (
        lambda: layers(64, 64, 10, between=lambda _: [nn.ReLU()]),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    ),
    "batch norm": (
        lambda: layers(64, 64, 10, between=lambda width: [nn.BatchNorm1d(width), nn.ReLU()]),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    ),
    "Adam, four layers": (
        lambda: layers(64, 32, 32, 32, 10, between=lambda _: [nn.Tanh()]),
        lambda p: torch.optim.Adam(p, lr=3e-3),
    ),
}


class Run:
    """One training run with all probes beside it."""

    def __init__(self, name: str) -> None:
        make, optimizer = TASKS[name]
        (self.x, self.y), _ = (part.tensors for part in load_digits())
        self.x = self.x.flatten(1)
        torch.manual_seed(0)
        self.model = make()
        self.optimizer = optimizer(self.model.parameters())
        self.order = torch.Generator().manual_seed(1)
        self.seconds: dict[str, list[float]] = {}
        self.found: dict[str, list[tuple[int, Moments]]] = {name: [] for name in ("truth", *PROBES)}

    def gradient(self, samples: Tensor) -> Tensor:
        self.model.zero_grad()
        F.cross_entropy(self.model(self.x[samples]), self.y[samples]).backward()
        return torch.cat([p.grad.reshape(-1) for p in self.model.parameters() if p.grad is not None]).double()

    def timed(self, kind: str, function: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = function()
        self.seconds.setdefault(kind, []).append(time.process_time() - began)
        return result

    def truth(self) -> Moments:
        count = len(self.x) // BATCH
        batches = torch.randperm(len(self.x), generator=self.order)[: count * BATCH].view(count, BATCH)
        gradients = torch.stack([self.gradient(batch) for batch in batches])
        mean, small = gradients.mean(0), gradients.square().sum(1).mean()
        return estimate(float(small), float(mean @ mean), count=count, batch=count * BATCH)

    def split(self, samples: Tensor) -> Moments:
        a, b = self.gradient(samples[: BATCH // 2]), self.gradient(samples[BATCH // 2 :])
        mean = (a + b) / 2
        return estimate(float(a @ a + b @ b) / 2, float(mean @ mean), count=2, batch=BATCH)

    def train(self) -> None:
        steps: list[Tensor] = []
        for number in range(STEPS):
            samples = torch.randperm(len(self.x), generator=self.order)[:BATCH]
            buffers = [buffer.clone() for buffer in self.model.buffers()]
            self.found["split"].append((number, self.timed("split", lambda s=samples: self.split(s))))
            if number % TRUTH == 0:
                self.found["truth"].append((number, self.truth()))
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)
            steps = [*steps[-2:], self.timed("step", lambda s=samples: self.gradient(s))]
            if number % 2 == 1:
                pair = self.timed("differences", lambda s=steps: pair_of(*s[-2:]))
                self.found["differences"].append((number, pair))
            if number % 3 == 2:
                three = self.timed("second differences", lambda s=steps: three_of(*s))
                self.found["second differences"].append((number, three))
            self.optimizer.step()

    def report(self) -> dict[str, Any]:
        step_s = middle(self.seconds["step"])
        cost = {"split": middle(self.seconds["split"]) / step_s - 1}
        cost |= {name: middle(self.seconds[name]) / step_s for name in PROBES[1:]}
        result: dict[str, Any] = {"cost": {name: round(value, 2) for name, value in cost.items()}}
        for low, high in PARTS:
            result[f"steps {low} to {high}"] = part = {}
            for name, found in self.found.items():
                moments = [one for number, one in found if low <= number < high]
                signal = sum(one.signal for one in moments) / len(moments)
                noise = sum(one.noise for one in moments) / len(moments)
                part[name] = {"signal": signal, "noise": noise}
        return result


def pair_of(a: Tensor, b: Tensor) -> Moments:
    return consecutive_differences(float(a @ a), float(b @ b), float(a @ b), batch=BATCH)


def three_of(a: Tensor, b: Tensor, c: Tensor) -> Moments:
    second = a - 2 * b + c
    noise = BATCH * float(second @ second) / 6
    return Moments(signal=float(a @ a + b @ b + c @ c) / 3 - noise / BATCH, noise=noise)


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path(__file__).with_name("along_a_run.json"))
    options = arguments.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"torch": torch.__version__, "batch": BATCH, "tasks": {}}
    for name in TASKS:
        run = Run(name)
        run.train()
        report["tasks"][name] = figures = run.report()
        print(name, figures["cost"])
        for low, high in PARTS:
            part = figures[f"steps {low} to {high}"]
            true = part["truth"]
            line = "  ".join(
                f"{probe}: signal {part[probe]['signal'] / true['signal']:.2f} noise "
                f"{part[probe]['noise'] / true['noise']:.2f}"
                for probe in PROBES
            )
            print(f"  {low:3} to {high:3} of the truth  {line}", flush=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
