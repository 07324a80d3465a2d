"""Step time with gradient statistics on, against the same loop without, on two CPU workers; beside two other libraries.

benchmarks/statistics/peers.sh && .venv-peers/bin/python benchmarks/statistics/cpu.py [--rounds 30] [--out cpu.json]

All loops run in the same two processes (gloo, one thread each) and take turns, a round of sixteen steps each; ratios
are taken within a round, so a machine that slows down slows both. The processor time of both workers is measured too,
because other programs on the machine lengthen it far less. The other libraries are FairScale (AdaScale) and AdaptDL
(its noise estimator), each against the same DistributedDataParallel loop without it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import peers
import torch
import torch.distributed as dist
import torch.multiprocessing
from models import GPT2, image_loss, resnet18, text_loss
from torch import Tensor, nn
from torch.optim import Optimizer

import swell

WORKERS, STEPS, SAMPLES = 2, 16, 512
OURS = {
    "swell, statistics off": False,
    "swell": swell.Statistics(warm_up=0),  # one step in sixteen, as in every run after its first hundred steps
    "swell, every step": swell.Statistics(every=1),
}
THEIRS = ("plain DDP", "FairScale", "AdaptDL")
WITHOUT = {"swell": "swell, statistics off", "swell, every step": "swell, statistics off"}  # others: plain DDP
Case = tuple[str, Callable[[], nn.Module], Callable[..., Tensor], Callable[[Any], Optimizer], list[Tensor], int, int]


def small_gpt() -> nn.Module:
    return GPT2(4096, length=64, layers=4, width=128, heads=4)


def cases() -> list[Case]:
    """Name, model, loss, optimizer, data, a worker's micro-batch, micro-batches a step on each worker."""
    torch.manual_seed(0)
    images = [torch.randn(SAMPLES, 3, 32, 32), torch.randint(10, (SAMPLES,))]
    tokens = torch.randint(4096, (SAMPLES, 65))
    text = [tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()]

    def sgd(parameters: Any) -> Optimizer:
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, weight_decay=5e-4)

    def adamw(parameters: Any) -> Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-5)

    def narrow() -> nn.Module:
        return resnet18(width=16)

    return [
        ("ResNet-18 (width 16), 2 x 1 x 8", narrow, image_loss, sgd, images, 8, 1),
        ("ResNet-18 (width 16), 2 x 4 x 4", narrow, image_loss, sgd, images, 4, 4),
        ("GPT (1.3 M), 2 x 1 x 8 x 64", small_gpt, text_loss, adamw, text, 8, 1),
        ("GPT (1.3 M), 2 x 4 x 4 x 64", small_gpt, text_loss, adamw, text, 4, 4),
    ]


def ours(model: nn.Module, optimizer: Optimizer, case: Case, kind: str) -> Iterator[None]:
    """Steps of ``swell.Job``."""
    _, _, loss, _, data, micro, accumulation = case
    settings = OURS[kind]
    # With statistics on, AdamW has a second set of norms in its own metric.
    rule = "constant" if settings is False else "auto"
    batch = WORKERS * micro * accumulation
    job = swell.Job(batch=batch, micro=micro, rule=rule, statistics=settings, progress=False, notices=False)
    job.wrap(model, optimizer)
    loader = job.loader(torch.utils.data.TensorDataset(*data), drop_last=True)
    for _ in job.epochs(10**6):
        for each in loader:
            job.backward(loss(model, each))
            if job.step():
                yield


def theirs(model: nn.Module, optimizer: Optimizer, case: Case, kind: str) -> Iterator[None]:
    """Steps of DistributedDataParallel with one of the other estimators, or none."""
    _, _, loss, _, data, micro, accumulation = case
    dataset = torch.utils.data.TensorDataset(*data)
    sampler = torch.utils.data.DistributedSampler(dataset, shuffle=False)
    loader = torch.utils.data.DataLoader(dataset, batch_size=micro, sampler=sampler, drop_last=True)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    return peers.replicated(model, optimizer, loss, batches(), accumulation=accumulation, kind=kind)


def steps_of(case: Case, kind: str) -> Iterator[None]:
    torch.manual_seed(1)
    model = case[1]().train()
    optimizer = case[3](model.parameters())
    return (ours if kind in OURS else theirs)(model, optimizer, case, kind)


def round_of(steps: Iterator[None]) -> tuple[float, float]:
    """Seconds per step, and this worker's seconds of processor time per step."""
    dist.barrier()
    start, processor_start = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        next(steps)
    dist.barrier()
    return (time.perf_counter() - start) / STEPS, (time.process_time() - processor_start) / STEPS


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Median step times of all loops, rounds interleaved, and ratios taken within each round."""
    kinds = (*OURS, *THEIRS)
    loops = {kind: steps_of(case, kind) for kind in kinds}
    for kind in kinds:
        round_of(loops[kind])
    walls: dict[str, list[float]] = {kind: [] for kind in kinds}
    processor: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        turn = number % len(kinds)
        for kind in (*kinds[turn:], *kinds[:turn]):
            wall, own = round_of(loops[kind])
            total = torch.tensor(own, dtype=torch.float64)
            dist.all_reduce(total)
            walls[kind].append(wall)
            processor[kind].append(float(total))

    def ratios(times: dict[str, list[float]], kind: str, other: str) -> list[float]:
        return sorted(a / b for a, b in zip(times[kind], times[other], strict=True))

    def ratio(times: dict[str, list[float]], kind: str, other: str) -> float:
        return statistics.median(ratios(times, kind, other))

    def interval(times: dict[str, list[float]], kind: str, other: str) -> list[float]:
        """95 % interval of the median, from the order of the ratios alone."""
        ordered, half = ratios(times, kind, other), 0.98 * rounds**0.5
        return [ordered[max(0, int(rounds / 2 - half))], ordered[min(rounds - 1, int(rounds / 2 + half))]]

    measured = [kind for kind in kinds if kind not in ("swell, statistics off", "plain DDP")]
    return {
        "case": case[0],
        "rounds": rounds,
        "step_ms": {kind: 1e3 * statistics.median(walls[kind]) for kind in kinds},
        "ratio": {kind: ratio(walls, kind, WITHOUT.get(kind, "plain DDP")) for kind in measured},
        "interval": {kind: interval(walls, kind, WITHOUT.get(kind, "plain DDP")) for kind in measured},
        "processor_ratio": {kind: ratio(processor, kind, WITHOUT.get(kind, "plain DDP")) for kind in measured},
        "processor_interval": {kind: interval(processor, kind, WITHOUT.get(kind, "plain DDP")) for kind in measured},
        "ratio_to_ddp": {kind: ratio(walls, kind, "plain DDP") for kind in OURS},
        "processor_ratio_to_ddp": {kind: ratio(processor, kind, "plain DDP") for kind in OURS},
    }


def document(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The results so far, with the date, the machine and its load."""
    return {
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "load": [round(load, 1) for load in os.getloadavg()],
        "workers": WORKERS,
        "results": results,
    }


def work(rank: int, port: int, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(WORKERS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(WORKERS),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    results: list[dict[str, Any]] = []
    for case in cases():
        if arguments.only in case[0]:
            results.append(measure(case, arguments.rounds))
            if rank == 0:
                print(json.dumps(results[-1]), flush=True)
                arguments.out.write_text(json.dumps(document(results), indent=2) + "\n")
    dist.barrier()
    os._exit(0)  # unfinished loops have nothing to tidy up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "cpu.json")
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, arguments), nprocs=WORKERS)


if __name__ == "__main__":
    main()
