"""Do the final weights of Lightning and Fabric depend on the number of processes? The plain ones and swell's.

``python benchmarks/trainers/equality_lightning.py`` in ``.venv-trainers`` trains a small float64 network with SGD at a
global batch of 16 and prints the sum of |w|, which the page on Lightning shows as a table.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from torch.utils.data import DistributedSampler

import swell.lightning
from swell.runtime.environment import read_environment

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.lightning.scenario import data, train_with_fabric, train_with_lightning
from tests.workers import run_processes


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
        for samples in (96, 100, 101):
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


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    equality()
