"""WikiText-2 with a small GPT and AdamW on one GPU: wall time, steps and validation loss, small batch against goodput.

    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True SWELL_DATA=... \\
        python benchmarks/time_to_accuracy/wikitext2.py [--seeds 0 1 2] [--only goodput] [--out wikitext2.json]

The setting keeps memory from fragmenting while batches change their size; every way runs with it.

Both ways train the same model from the same seed with the learning rate, weight decay and schedule that were chosen for
8 sequences of 128 words; the small batch is a plain torch loop.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

import swell

sys.path.insert(0, str(Path(__file__).parents[1] / "statistics"))
from models import GPT2  # pyright: ignore[reportMissingImports]

BASE, LENGTH = 8, 128
Data = tuple[Tensor, Tensor, int]  # to train on, to judge by, and how many words there are


def load(folder: Path, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Sequences of LENGTH + 1 words to train on and to judge by, as numbers, and how many words there are."""

    def words(name: str) -> list[str]:
        with gzip.open(folder / "text" / f"wikitext2.{name}.txt.gz", "rt", encoding="utf-8") as file:
            return file.read().replace("\n", " <eos> ").split()

    train, valid = words("train"), words("valid")
    vocabulary = {word: number for number, word in enumerate(sorted(set(train)))}
    unknown = vocabulary["<unk>"]

    def cut(text: list[str]) -> Tensor:
        numbers = torch.tensor([vocabulary.get(word, unknown) for word in text])
        rows = (len(numbers) - 1) // LENGTH
        starts = torch.arange(rows).view(-1, 1) * LENGTH
        return numbers[starts + torch.arange(LENGTH + 1)].to(device)

    return cut(train), cut(valid), len(vocabulary)


class Rows:
    """Sequences that live on the device."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        index = torch.tensor(indices)
        if self.rows.is_cuda:
            index = index.pin_memory().to(self.rows.device, non_blocking=True)  # nobody waits for the device
        return [self.rows[index]]


def first(batches: list[Any]) -> Any:
    return batches[0]


def loss_of(model: torch.nn.Module, rows: Tensor) -> Tensor:
    with torch.autocast(rows.device.type, dtype=torch.bfloat16):
        logits = model(rows[:, :-1])
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))


class Watch:
    """The clock of a run, which stops while the validation loss is measured, and the curve."""

    def __init__(self, model: torch.nn.Module, judged: Tensor) -> None:
        self._model, self._judged = model, judged
        self.curve: list[dict[str, float]] = []
        self._seconds = 0.0
        self._synchronize()
        self._began = time.perf_counter()

    def look(self, *, steps: int, samples: int) -> None:
        self._synchronize()
        self._seconds += time.perf_counter() - self._began
        place = {"seconds": self._seconds, "steps": steps, "samples": samples}
        self.curve.append({**place, "loss": judge(self._model, self._judged)})
        self._began = time.perf_counter()

    def _synchronize(self) -> None:
        if self._judged.is_cuda:
            torch.cuda.synchronize()


def network(seed: int, data: Data, *, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, LRScheduler]:
    rows, _, vocabulary = data
    torch.manual_seed(seed)
    model = GPT2(vocabulary, length=LENGTH, layers=4, width=256, heads=4).to(rows.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps + 1, pct_start=0.1, cycle_momentum=False)
    return model, optimizer, schedule


def plain(seed: int, data: Data, *, epochs: int) -> dict[str, Any]:
    """A plain torch loop at the base batch; like ``drop_last``, it leaves out what is left of an epoch."""
    rows, judged, _ = data
    steps = len(rows) // BASE
    model, optimizer, scheduler = network(seed, data, steps=epochs * steps)
    watch = Watch(model, judged)
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(rows), device=rows.device)
        for start in range(0, steps * BASE, BASE):
            loss_of(model, rows[order[start : start + BASE]]).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        watch.look(steps=epoch * steps, samples=epoch * steps * BASE)
    return {**watch.curve[-1], "curve": watch.curve}


def elastic(seed: int, data: Data, *, epochs: int) -> dict[str, Any]:
    """A job that makes as much progress as the plain loop."""
    rows, judged, _ = data
    total = epochs * len(rows) // BASE
    model, optimizer, scheduler = network(seed, data, steps=total)
    job = swell.Job(batch=swell.Goodput(BASE, max=256), seed=seed, progress=False)
    job.wrap(model, optimizer, scheduler=scheduler)
    loader = job.loader(Rows(rows), shuffle=True, collate_fn=first)
    batches: list[tuple[int, int]] = []
    watch = Watch(model, judged)
    for _ in job.until(steps=total):
        for part in loader:
            job.backward(loss_of(model, part))
            if job.step() and (not batches or batches[-1][1] != job.global_batch):
                batches.append((job.steps, job.global_batch))
        watch.look(steps=job.steps, samples=job.samples)
    job.close()
    noise = None if job.noise is None else job.noise.total.noise_scale
    return {**watch.curve[-1], "noise_scale": noise, "batches": batches, "curve": watch.curve}


@torch.no_grad()
def judge(model: torch.nn.Module, judged: Tensor) -> float:
    parts = judged.split(64)
    return sum(float(loss_of(model, part)) * len(part) for part in parts) / len(judged)


WAYS = {"batch 8": plain, "goodput 8 to 256": elastic}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, help="train on the first N sequences only")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "wikitext2.json")
    given = parser.parse_args()
    folder = os.environ.get("SWELL_DATA")
    if folder is None:
        raise SystemExit("This needs SWELL_DATA set to a folder with text/wikitext2.train.txt.gz and .valid.txt.gz.")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows, judged, vocabulary = load(Path(folder), device)
    data = (rows[: given.rows], judged[: given.rows], vocabulary)
    plain(0, (rows[:512], judged[:64], vocabulary), epochs=1)  # lets the device choose its kernels
    results = []
    for seed in given.seeds:
        for way, train in WAYS.items():
            if given.only and not any(word in way for word in given.only):
                continue
            results.append({"way": way, "seed": seed, **train(seed, data, epochs=given.epochs)})
            print(json.dumps({k: v for k, v in results[-1].items() if k != "curve"}), flush=True)
            name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
            about = {"date": str(date.today()), "machine": f"{name}, torch {torch.__version__}", "runs": results}
            given.out.write_text(json.dumps(about))


if __name__ == "__main__":
    main()
