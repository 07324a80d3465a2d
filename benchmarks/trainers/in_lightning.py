"""What swell costs inside Lightning and Fabric, and how weights compare.

``python benchmarks/trainers/in_lightning.py`` needs an environment with lightning, as ``make test-trainers`` makes one.
Times are of whole fits at a fixed batch on one process, plain and with swell in turn, per step; the median of the
rounds. The second table trains one small model in float64 and shows the sum of |w|.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import swell.lightning
from swell.runtime.environment import read_environment
from tests.lightning.scenario import data, train_with_fabric, train_with_lightning
from tests.workers import run_processes

BATCH, STEPS = 64, 60


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
        self.head = nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def images() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (BATCH * STEPS,), generator=generator)
    return TensorDataset(torch.randn(BATCH * STEPS, 784, generator=generator), labels)


def strategy_of(kind: str) -> Any:
    if kind == "plain":
        return "auto"
    return swell.lightning.Strategy(batch=BATCH, statistics=kind == "swell, statistics on", progress=False)


class Clock(lightning.Callback):
    """When each batch ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.times.append(time.perf_counter())


def seconds_of_step(times: list[float]) -> float:
    """Seconds of a step after the first five batches; a step that is measured may be two of them."""
    return (times[-1] - times[4]) / (len(times) - 5) * (len(times) / STEPS)


def time_trainer(kind: str, data: TensorDataset) -> float:
    clock = Clock()
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=strategy_of(kind),
        max_epochs=1,
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Network(), DataLoader(data, batch_size=BATCH))
    return seconds_of_step(clock.times)


def time_fabric(kind: str, data: TensorDataset) -> float:
    strategy = strategy_of(kind)
    fabric = Fabric(accelerator="cpu", strategy=strategy)
    fabric.launch()
    module = Network()
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=BATCH))
    times = []
    for _ in range(1) if kind == "plain" else strategy.epochs(1):
        for x, y in loader:
            optimizer.zero_grad()
            fabric.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            times.append(time.perf_counter())
    return seconds_of_step(times)


def overhead(rounds: int) -> None:
    pictures, kinds = images(), ("plain", "swell, statistics off", "swell, statistics on")
    for name, measure in (("Trainer", time_trainer), ("Fabric", time_fabric)):
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind in kinds:
                seconds[kind].append(measure(kind, pictures))
        plain = statistics.median(seconds["plain"])
        for kind in kinds:
            ratios = [own / of for own, of in zip(seconds[kind], seconds["plain"], strict=True)]
            figures = f"{statistics.median(seconds[kind]) * 1e3:6.2f} ms  ratio of medians "
            figures += (
                f"{statistics.median(seconds[kind]) / plain:.3f}  median of ratios {statistics.median(ratios):.3f}"
            )
            print(f"{name:8} {kind:22} {figures}", flush=True)


def digest(library: str, samples: int, micro: int, swells: bool) -> float:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    strategy: Any = swell.lightning.Strategy(batch=16, schedule="manual") if swells else "auto"
    if library == "Fabric":
        return sum(map(abs, train_with_fabric(samples, micro=micro, strategy=strategy)))
    return sum(map(abs, train_with_lightning(samples, micro=micro, strategy=strategy)[0]))


def plain_ddp(samples: int, in_order: bool) -> float:
    """Two processes with Lightning's own sampler, or with one that gives each every second sample, in order."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    sampler = DistributedSampler(data(samples), num_replicas=2, rank=read_environment().local_rank, shuffle=False)
    options: dict[str, Any] = {"strategy": "ddp", "devices": 2}
    if in_order:
        options |= {"use_distributed_sampler": False, "sampler": sampler}
    return sum(map(abs, train_with_lightning(samples, micro=8, **options)[0]))


def equality() -> None:
    for library in ("Trainer", "Fabric"):
        for samples in (96, 100):
            print(
                f"{library} {samples} samples, plain, 1 process: {digest(library, samples, 16, False):.12f}", flush=True
            )
            if library == "Trainer":
                for in_order in (False, True):
                    two = run_processes(2, plain_ddp, samples, in_order, timeout_s=300)
                    name = "with samples in order" if in_order else "as it comes"
                    print(f"{library} {samples} samples, plain ddp, 2 processes, {name}: {two[0]:.12f}", flush=True)
            print(f"{library} {samples} samples, swell, 1 worker: {digest(library, samples, 4, True):.12f}", flush=True)
            for workers in (2, 3):
                results = run_processes(workers, digest, library, samples, 4, True, timeout_s=300)
                print(f"{library} {samples} samples, swell, {workers} workers: {results[0]:.12f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["overhead", "equality"])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    if args.only != "equality":
        overhead(args.rounds)
    if args.only != "overhead":
        equality()


if __name__ == "__main__":
    main()
