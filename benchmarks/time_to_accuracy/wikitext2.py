"""WikiText-2 with a small GPT and AdamW on one GPU: wall time, steps and validation loss, small batch against goodput.

    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True SWELL_DATA=... \\
        python benchmarks/time_to_accuracy/wikitext2.py [--seeds 0 1 2] [--out wikitext2.json]

The setting keeps memory from fragmenting while batches change their size; every way runs with it.

Both ways train the same model from the same seed with the learning rate, weight decay and schedule that were chosen for
8 sequences of 128 words.
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

import swell

sys.path.insert(0, str(Path(__file__).parents[1] / "statistics"))
from models import GPT2  # pyright: ignore[reportMissingImports]

BASE, LENGTH = 8, 128


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
        index = torch.tensor(indices).pin_memory().to(self.rows.device, non_blocking=True)  # no waiting for it
        return [self.rows[index]]


def first(batches: list[Any]) -> Any:
    return batches[0]


def loss_of(model: torch.nn.Module, rows: Tensor) -> Tensor:
    with torch.autocast(rows.device.type, dtype=torch.bfloat16):
        logits = model(rows[:, :-1])
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))


def train(way: str, seed: int, data: tuple[Tensor, Tensor, int], *, epochs: int, **settings: Any) -> dict[str, Any]:
    """One run; the clock stops while the validation loss is measured."""
    rows, judged, vocabulary = data
    torch.manual_seed(seed)
    model = GPT2(vocabulary, length=LENGTH, layers=4, width=256, heads=4).to(rows.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1)
    total = epochs * len(rows) // BASE
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-3, total_steps=total + 1, pct_start=0.1, cycle_momentum=False
    )
    job = swell.Job(seed=seed, progress=False, **settings)
    job.wrap(model, optimizer, scheduler=scheduler)
    loader = job.loader(Rows(rows), shuffle=True, collate_fn=first)
    batches: list[tuple[int, int]] = []
    curve: list[dict[str, float]] = []
    clock, began = 0.0, time.perf_counter()
    for _ in job.until(steps=total):
        for part in loader:
            job.backward(loss_of(model, part))
            if job.step() and (not batches or batches[-1][1] != job.global_batch):
                batches.append((job.steps, job.global_batch))
        if rows.device.type == "cuda":
            torch.cuda.synchronize()
        clock += time.perf_counter() - began
        curve.append({"seconds": clock, "steps": job.steps, "samples": job.samples, "loss": judge(model, judged)})
        began = time.perf_counter()
    job.close()
    noise = None if job.noise is None else job.noise.total.noise_scale
    return {"way": way, "seed": seed, **curve[-1], "noise_scale": noise, "batches": batches, "curve": curve}


@torch.no_grad()
def judge(model: torch.nn.Module, judged: Tensor) -> float:
    parts = judged.split(64)
    return sum(float(loss_of(model, part)) * len(part) for part in parts) / len(judged)


WAYS: dict[str, dict[str, Any]] = {
    "batch 8": {"batch": BASE, "statistics": False, "rule": "constant"},
    "goodput 8 to 256": {"batch": swell.Goodput(BASE, max=256)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
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
    train("warm-up", 0, (rows[:512], judged[:64], vocabulary), epochs=1, **WAYS["goodput 8 to 256"])
    results = []
    for seed in given.seeds:
        for way, settings in WAYS.items():
            results.append(train(way, seed, data, epochs=given.epochs, **settings))
            print(json.dumps({k: v for k, v in results[-1].items() if k != "curve"}), flush=True)
            name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
            about = {"date": str(date.today()), "machine": f"{name}, torch {torch.__version__}", "runs": results}
            given.out.write_text(json.dumps(about))


if __name__ == "__main__":
    main()
