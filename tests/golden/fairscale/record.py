"""Write ``numbers.json``: what FairScale's own AdaScale says in each scenario.

Run in an environment of its own with torch and ``pip install --no-deps fairscale==0.4.13`` (its AdaScale needs nothing
but torch and numpy), from the root of the repository: ``python -m tests.golden.fairscale.record``.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from tests.golden.fairscale.scenarios import REPLICATED, SCENARIOS, replicated


def work(rank: int, replicas: int, accumulation: int, port: int, folder: str) -> None:
    from fairscale.optim import AdaScale  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(torch.float64)  # FairScale adds up squares in the default type
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=replicas)
    rows = replicated(AdaScale, rank=rank, replicas=replicas, accumulation=accumulation)
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def main() -> None:
    import tempfile

    from fairscale.optim import AdaScale  # pyright: ignore[reportMissingImports]

    torch.set_default_dtype(torch.float64)
    numbers = {name: run(AdaScale, **arguments) for name, (run, arguments) in SCENARIOS.items()}
    for number, (name, (replicas, accumulation)) in enumerate(REPLICATED.items()):
        with tempfile.TemporaryDirectory() as folder:
            arguments = (replicas, accumulation, 29731 + number, folder)
            torch.multiprocessing.spawn(work, arguments, nprocs=replicas)
            numbers[name] = json.loads(Path(folder, "rows.json").read_text())
    document = {"fairscale": version("fairscale"), "numbers": numbers}
    Path(__file__).with_name("numbers.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
