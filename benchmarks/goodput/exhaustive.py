"""Is the plan that goodput chooses the best there is? Every layout is measured, then the policy is let loose.

    SWELL_DATA=... python benchmarks/goodput/exhaustive.py             # ResNet-18 on CIFAR-10, one GPU
    python benchmarks/goodput/exhaustive.py --workers 2                # a small network, two CPU workers

For each layout (micro-batch and accumulation) the median time of a step is measured in the job's own loop. Then
``Goodput`` trains from nothing, and each of its later choices is compared with the best of the measured layouts at the
noise scale of that moment: true samples a second times efficiency. Writes gpu.json or cpu.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import swell
from swell.core.goodput import goodput

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "time_to_accuracy"))
TIMED, WARM = 24, 8  # steps of each layout


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

    def train(self, batch: Any, *, steps: int, **settings: Any) -> list[tuple[int, int, int, float, float | None]]:
        """Each step: batch, micro-batch, accumulation, seconds, noise scale. The clock waits for the device."""
        torch.manual_seed(0)
        model = self.make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        seen: list[tuple[int, int, int, float, float | None]] = []
        sink = _Steps()
        job = swell.Job(batch=batch, seed=0, progress=False, save=None, sinks=[sink], **settings)
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
        seen = sink.seen
        job.close()
        return seen


class _Steps:
    """Keeps what is compared of each step."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, float, float | None]] = []

    def emit(self, event: Any) -> None:
        if event.kind == "step":
            layout = (event.global_batch, event.micro_batch, event.accumulation)
            self.seen.append((*layout, event.step_s, event.noise_scale))

    def close(self) -> None:
        pass


def measure(workload: Workload, replicas: int) -> dict[tuple[int, int], float]:
    """Seconds of a step by micro-batch and accumulation, over all layouts on a fine grid."""
    times: dict[tuple[int, int], float] = {}
    sizes = sorted({int(workload.base * 2 ** (octave / 2)) // 8 * 8 for octave in range(-6, 15)} - {0})
    for micro in sizes:
        for accumulation in (1, 2, 4, 8):
            batch = micro * accumulation * replicas
            if workload.base <= batch <= workload.largest:
                steps = workload.train(
                    batch, steps=WARM + TIMED, micro=micro, rule="constant", base=workload.base, statistics=False
                )
                whole = [seconds for size, _, _, seconds, _ in steps[WARM:] if size == batch]
                times[micro, accumulation] = statistics.median(whole or [0.0])  # told to the first worker alone
    return times


def compare(workload: Workload, replicas: int, steps: int) -> dict[str, Any]:
    times = measure(workload, replicas)
    policy = swell.Goodput(workload.base, max=workload.largest)
    run = workload.train(policy, steps=steps, rule="constant")
    if not run:
        return {}
    layouts = list(times)
    batches = np.array([replicas * micro * accumulation for micro, accumulation in layouts], float)
    seconds = np.array([times[layout] for layout in layouts])
    settled = run[len(run) // 3 :]
    ratios = []
    for batch, micro, accumulation, _, noise in settled:
        if noise is None or noise <= 0 or not np.isfinite(noise):
            continue
        value = goodput(batches, seconds, workload.base, noise)
        chosen = _time_of(times, micro, accumulation)
        if chosen is not None:
            ratios.append(float(goodput(batch, chosen, workload.base, noise) / value.max()))
    return {
        "replicas": replicas,
        "layouts": [
            {"micro_batch": micro, "accumulation": accumulation, "step_ms": 1e3 * times[micro, accumulation]}
            for micro, accumulation in layouts
        ],
        "steps": len(run),
        "compared": len(ratios),
        "of_best_median": statistics.median(ratios),
        "of_best_worst_tenth": float(np.quantile(ratios, 0.1)),
        "last": run[-1][:3],
        "noise_scale": run[-1][4],
    }


def _time_of(times: dict[tuple[int, int], float], micro: int, accumulation: int) -> float | None:
    """The measured time of a layout, between its neighbours where it was not on the grid."""
    known = sorted((size, t) for (size, count), t in times.items() if count == accumulation)
    if not known or not known[0][0] <= micro <= known[-1][0]:
        return None
    return float(np.interp(micro, [size for size, _ in known], [t for _, t in known]))


def worker(steps: int, out: Path) -> None:
    gpu = torch.cuda.is_available()
    torch.set_num_threads(1 if not gpu else torch.get_num_threads())
    replicas = int(os.environ.get("WORLD_SIZE", "1"))
    found = compare(Workload(gpu), replicas, steps)
    if int(os.environ.get("RANK", "0")) == 0:
        name = torch.cuda.get_device_name() if gpu else f"{platform.processor() or platform.machine()}, CPU"
        about = {"date": str(date.today()), "machine": f"{name}, torch {torch.__version__}", "load": os.getloadavg()[0]}
        out.write_text(json.dumps({**about, **found}, indent=1))
        print(json.dumps({key: value for key, value in found.items() if key != "layouts"}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="CPU workers, started with torchrun")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.workers > 1 and "RANK" not in os.environ:
        command = ["torchrun", f"--nproc-per-node={given.workers}", *sys.argv]
        os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *command[1:]])
    began = time.perf_counter()
    worker(given.steps, given.out or HERE / ("gpu.json" if torch.cuda.is_available() else "cpu.json"))
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
