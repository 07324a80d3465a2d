"""What loading through swell costs beside a plain ``torch.utils.data.DataLoader`` with the same workers.

    python benchmarks/loader/run.py

Three loops read the same data set, shuffled, in batches of the same size: a plain ``DataLoader``, a ``swell.data.Feed``
asked for one span after another, and ``job.loader``. They take turns of 100 batches, so that whatever else the machine
does falls on all. Prints a table and writes result.json beside this file.

Without workers the time counted is that inside ``next(loader)``, in processor seconds; a tiny training step runs
between, not counted. With workers a turn does nothing but load, and both its wall time and the processor seconds of all
processes are counted; ``job.loader`` is left out there, because it gives no batch before the last was trained on. On a
busy machine wall times say little and processor seconds still something. Linux only.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import swell
from swell.data import Feed, Span, orders

HERE = Path(__file__).parent
BATCH = 128
TURN = 100  # batches
PARTS = 5  # with new workers each, because where they happen to run matters


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Small colour images with a light transform: a random flip, scaled and normalised; tens of microseconds each."""

    def __init__(self, n: int = 20_000) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.pixels[index].astype(np.float32)
        if np.random.random() < 0.5:
            image = image[:, :, ::-1]
        image = (image / 255 - 0.5) / 0.25
        return torch.from_numpy(np.ascontiguousarray(image)), index % 10


class Digits(Dataset[tuple[np.ndarray, int]]):
    """8 x 8 images without a transform; about a microsecond each, and a few more to collate."""

    def __init__(self, n: int = 60_000) -> None:
        self.pixels = np.random.default_rng(0).random((n, 8, 8), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.pixels[index], index % 10


class Rows(TensorDataset):
    """Rows of a table, read a batch at a time."""

    def __init__(self, n: int = 60_000) -> None:
        super().__init__(torch.rand(n, 16), torch.arange(n))

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return list(zip(*(tensor[indices] for tensor in self.tensors), strict=True))


CASES: dict[str, Callable[[], Dataset[Any]]] = {
    "3x32x32 images, light transform": Images,
    "8x8 images": Digits,
    "table rows, __getitems__": Rows,
    "TensorDataset, 784 numbers": lambda: TensorDataset(torch.rand(20_000, 784), torch.arange(20_000)),
}


class Plain:
    """The loader everybody has, and a tiny model to train."""

    def __init__(self, dataset: Dataset[Any], **loading: Any) -> None:
        self.loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, **loading)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def epochs(self) -> Iterator[Iterator[Any]]:
        while True:
            yield iter(self.loader)

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 1)).mean().backward()
        self.optimizer.step()

    def close(self) -> None:
        del self.loader


class Spans(Plain):
    """A feed asked for one batch after another, each with what will follow, as a job asks."""

    def __init__(self, dataset: Dataset[Any], **loading: Any) -> None:
        super().__init__(dataset)
        self.order_of = orders(dataset, seed=0, shuffle=True)
        self.feed = Feed(dataset, self.order_of, **loading)

    def epochs(self) -> Iterator[Iterator[Any]]:
        return (self.epoch(number, len(self.order_of(number))) for number in itertools.count())

    def epoch(self, number: int, length: int) -> Iterator[Any]:
        for span in self.spans(number, 0, length):
            yield self.feed.fetch(span, lambda stop=span.stop: self.spans(number, stop, length))

    def spans(self, epoch: int, start: int, length: int) -> Iterator[Span]:
        while start < length:
            yield Span(epoch, start, min(start + BATCH, length))
            start += BATCH

    def close(self) -> None:
        self.feed.close()


class ThroughJob(Plain):
    """The loader of a job with a fixed batch, which measures nothing and saves nothing."""

    def __init__(self, dataset: Dataset[Any], **loading: Any) -> None:
        super().__init__(dataset)
        self.job = swell.Job(
            None, batch=BATCH, statistics=False, save=None, progress=False, notices=False, device="cpu"
        )
        self.model, self.optimizer = self.job.wrap(self.model, self.optimizer)
        self.batches = self.job.loader(dataset, shuffle=True, **loading)

    def epochs(self) -> Iterator[Iterator[Any]]:
        return (iter(self.batches) for _ in self.job.epochs(10**6))

    def train(self) -> None:
        self.job.backward(self.model(torch.ones(1, 1)).mean())
        self.job.step()

    def close(self) -> None:
        self.batches.close()


def turns_alone(contender: Plain) -> Iterator[dict[str, float]]:
    """Processor seconds that each turn spends inside of ``next``, with training between."""
    spent, count = 0.0, 0
    for batches in contender.epochs():
        while True:
            before = time.process_time()
            if next(batches, None) is None:
                break
            spent += time.process_time() - before
            contender.train()
            count += 1
            if count % TURN == 0:
                yield {"cpu": spent}
                spent = 0.0


def turns_with_workers(contender: Plain) -> Iterator[dict[str, float]]:
    """Wall and processor seconds of each turn, all processes together."""
    count, wall, cpu = 0, time.perf_counter(), processor_seconds()
    for batches in contender.epochs():
        for _ in batches:
            count += 1
            if count % TURN == 0:
                yield {"wall": time.perf_counter() - wall, "cpu": processor_seconds() - cpu}
                wall, cpu = time.perf_counter(), processor_seconds()


def processor_seconds() -> float:
    """Of this process and its workers, all threads; to the nanosecond, which resource.getrusage is not."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    threads = (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def measure(make: Callable[[], Dataset[Any]], turns: int, **loading: Any) -> dict[str, Any]:
    alone = loading["num_workers"] == 0
    kinds: dict[str, type[Plain]] = {"plain": Plain, "feed": Spans, **({"job": ThroughJob} if alone else {})}
    times: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for _ in range(PARTS):
        dataset = make()
        contenders = {name: kind(dataset, **loading) for name, kind in kinds.items()}
        turns_of = turns_alone if alone else turns_with_workers
        running = {name: turns_of(contender) for name, contender in contenders.items()}
        for turn in range(turns // PARTS + 1):
            for name in itertools.islice(itertools.cycle(kinds), turn, turn + len(kinds)):
                taken = next(running[name])
                if turn:  # the first turn starts workers and warms caches
                    times[name].append(taken)
        for contender in contenders.values():
            contender.close()
    result: dict[str, Any] = {**loading, "turns": len(times["plain"])}
    for name, clock in itertools.product(kinds, times["plain"][0]):
        values = [turn[clock] for turn in times[name]]
        ratios = [ours / turn[clock] for ours, turn in zip(values, times["plain"], strict=True)]
        result[f"{name}, {clock}"] = {
            "us_a_sample": statistics.median(values) * 1e6 / (TURN * BATCH),
            "ratio": statistics.median(ratios),
            "ratio_interval": interval(ratios),
        }
    return result


def interval(values: list[float]) -> list[float]:
    """A 95 % interval of the median, from the order of the values (the binomial, normal approximation)."""
    ordered = sorted(values)
    reach = 0.98 * len(ordered) ** 0.5
    low, high = int(len(ordered) / 2 - reach), int(len(ordered) / 2 + reach + 1)
    return [ordered[max(low, 0)], ordered[min(high, len(ordered)) - 1]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--turns", type=int, default=100)
    arguments.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    arguments.add_argument("--pin", action="store_true", help="into pinned memory, which needs an accelerator")
    arguments.add_argument("--out", type=Path, default=HERE / "result.json")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    results = {}
    print(f"{'case':34} workers  loader, clock us a sample   ratio  (95 % interval of the median ratio)")
    for name, make in CASES.items():
        for num_workers in options.workers:
            loading = {"num_workers": num_workers, "persistent_workers": num_workers > 0, "pin_memory": options.pin}
            result = results[f"{name}, {num_workers} workers"] = measure(make, options.turns, **loading)
            for loader, figures in result.items():
                if isinstance(figures, dict):
                    low, high = figures["ratio_interval"]
                    line = f"{name:34} {num_workers:7}  {loader:12}  {figures['us_a_sample']:11.2f}  "
                    print(line + f"{figures['ratio']:6.3f}  ({low:.3f} to {high:.3f})", flush=True)
    report = {
        "batch": BATCH,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "results": results,
    }
    options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
