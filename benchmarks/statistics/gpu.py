"""Step time and peak memory with gradient statistics on, against the same loop without, interleaved, on one GPU.

python benchmarks/statistics/gpu.py [--rounds 30] [--out result.json]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from models import GPT2, resnet18
from resident import Resident, first
from torch import Tensor, nn
from torch.nn import functional as F

import swell


def image_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return F.cross_entropy(model(batch[0]), batch[1])


def text_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(batch[0])
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), batch[1].view(-1))


Case = tuple[str, Callable[[], nn.Module], Callable[..., Tensor], Callable[[Any], Any], Resident, int, int]


def cases() -> list[Case]:
    """Name, model, loss, optimizer, data, global batch, micro-batch."""
    torch.manual_seed(0)
    images = Resident(torch.randn(8192, 3, 32, 32, device="cuda"), torch.randint(10, (8192,), device="cuda"))
    tokens = torch.randint(50257, (2048, 1025), device="cuda")
    text = Resident(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, weight_decay=5e-4)

    def adamw(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    return [
        ("ResNet-18, 4 x 128", resnet18, image_loss, sgd, images, 512, 128),
        ("ResNet-18, 1 x 512", resnet18, image_loss, sgd, images, 512, 512),
        ("GPT-2 124M, 4 x 8 x 1024", GPT2, text_loss, adamw, text, 32, 8),
        ("GPT-2 124M, 1 x 8 x 1024", GPT2, text_loss, adamw, text, 8, 8),
    ]


class Runner:
    """Steps of one loop, one round of a few steps at a time."""

    def __init__(self, case: Case, kind: str, steps: int) -> None:
        _, make, self.loss, optimizer, data, self.batch, self.micro = case
        torch.manual_seed(1)
        self.model = make().cuda().train()
        self.optimizer = optimizer(self.model.parameters())
        self.steps = steps
        self.take = self.plain(data) if kind == "plain loop" else self.job(data, kind)

    def plain(self, data: Resident) -> Iterator[None]:
        count = self.batch // self.micro
        while True:
            for start in range(0, len(data) - self.batch + 1, self.batch):
                for part in range(start, start + self.batch, self.micro):
                    batch = tuple(t[part : part + self.micro] for t in data.tensors)
                    (self.loss(self.model, batch) / count).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                yield

    def job(self, data: Resident, kind: str) -> Iterator[None]:
        settings = {
            "without statistics": False,
            "with statistics": swell.Statistics(warm_up=0, split_every=16),
        }[kind]
        rule = "constant" if kind == "without statistics" else "auto"  # for AdamW a second set of norms, in its metric
        job = swell.Job(batch=self.batch, micro=self.micro, rule=rule, statistics=settings, progress=False)
        job.wrap(self.model, self.optimizer)
        loader = job.loader(data, collate_fn=first)
        for _ in job.epochs(10**6):
            for batch in loader:
                job.backward(self.loss(self.model, batch))
                if job.step():
                    yield

    def round_s(self) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(self.steps):
            next(self.take)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / self.steps


KINDS = ("plain loop", "without statistics", "with statistics")


def peak_bytes(case: Case, kind: str) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    runner = Runner(case, kind, 4)
    runner.round_s()
    runner.round_s()
    return torch.cuda.max_memory_allocated()


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Median step times of all loops, rounds interleaved, and ratios taken within each round."""
    peaks = {kind: peak_bytes(case, kind) for kind in KINDS}
    gc.collect()
    torch.cuda.empty_cache()
    alone = case[5] == case[6]  # then one step in sixteen is split to be measured
    runners = {kind: Runner(case, kind, steps=16) for kind in KINDS}  # one of them is measured
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for runner in runners.values():
        runner.round_s()
        runner.round_s()
    for number in range(rounds):
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            times[kind].append(runners[kind].round_s())

    def ratio(other: str) -> float:
        pairs = zip(times["with statistics"], times[other], strict=True)
        return statistics.median(measured / plain for measured, plain in pairs)

    return {
        "case": case[0],
        "rounds": rounds,
        "step_ms": {kind: 1e3 * statistics.median(values) for kind, values in times.items()},
        "ratio_to_same_loop": ratio("without statistics"),
        "ratio_to_plain_loop": ratio("plain loop"),
        # In the long run one step in 256 is split, so a sixteenth of what one in sixteen costs.
        "ratio_in_the_long_run": 1 + (ratio("without statistics") - 1) / 16 if alone else ratio("without statistics"),
        "peak_gib": {kind: peak / 2**30 for kind, peak in peaks.items()},
        "peak_ratio": peaks["with statistics"] / peaks["plain loop"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "gpu.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device; expected one. Run this benchmark on a machine with a GPU.")
    torch.backends.cuda.matmul.allow_tf32 = True
    results = []
    for case in cases():
        if arguments.only in case[0]:
            results.append(measure(case, arguments.rounds))
            print(json.dumps(results[-1]), flush=True)
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    arguments.out.write_text(json.dumps({"date": str(date.today()), "machine": machine, "results": results}, indent=2))


if __name__ == "__main__":
    main()
