"""CIFAR-10 with a ResNet-18 on one GPU: wall time, steps and accuracy of several ways to choose the batch.

    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True SWELL_DATA=... \\
        python benchmarks/time_to_accuracy/cifar10.py [--seeds 0 1 2] [--only goodput] [--out cifar10.json]

The setting keeps memory from fragmenting while batches change their size; every way runs with it.

Every way trains the same model from the same seed with the learning rate, momentum, weight decay and one-cycle schedule
that were chosen for a batch of 128. Data lives on the GPU and is augmented there, so that only training is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import swell

sys.path.insert(0, str(Path(__file__).parents[1] / "statistics"))
from models import resnet18  # pyright: ignore[reportMissingImports]

BASE, EPOCHS = 128, 15


def load_cifar10(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images as (n, 32, 32, 3) uint8 and labels, decoded from prediction residuals."""
    file = np.load(path)
    q = file["q"].item()

    def decode(residuals: np.ndarray) -> np.ndarray:
        channels, n, height, width = residuals.shape
        out = np.empty((n, height, width, channels), np.uint8)
        for start in range(0, n, 10000):
            part = np.ascontiguousarray(residuals[:, start : start + 10000].transpose(2, 3, 0, 1)).astype(np.int16)
            for h in range(height):
                for w in range(width):
                    if h and w:
                        a, b = part[h, w - 1], part[h - 1, w]
                        guess = np.clip(a + b - part[h - 1, w - 1], np.minimum(a, b), np.maximum(a, b))
                    elif w:
                        guess = part[h, w - 1]
                    elif h:
                        guess = part[h - 1, w]
                    else:
                        guess = np.int16(0)
                    part[h, w] = (part[h, w] + guess) & 255
            green = part[:, :, 1]
            part = np.stack([(part[:, :, 0] + green - 128) & 255, green, (part[:, :, 2] + green - 128) & 255], 2)
            out[start : start + 10000] = np.minimum(part * q, 255).astype(np.uint8).transpose(3, 0, 1, 2)
        return out

    return decode(file["r_train"]), file["y_train"], decode(file["r_test"]), file["y_test"]


class Images:
    """Images on the GPU, cropped and mirrored at random there."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, *, train: bool) -> None:
        mean = torch.tensor([125.3, 123.0, 113.9], device="cuda").view(3, 1, 1)
        std = torch.tensor([63.0, 62.1, 66.7], device="cuda").view(3, 1, 1)
        x = torch.from_numpy(images).cuda().permute(0, 3, 1, 2).float().sub_(mean).div_(std)
        self.x = F.pad(x, (4, 4, 4, 4)) if train else x
        self.y = torch.from_numpy(labels.astype(np.int64)).cuda()
        self.train = train

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        index = torch.tensor(indices).pin_memory().to("cuda", non_blocking=True)  # nobody waits for the device
        x, n = self.x[index], len(indices)
        if self.train:
            dx, dy = torch.randint(9, (2, n, 1, 1), device="cuda")
            rows = torch.arange(32, device="cuda")
            flip = torch.rand(n, 1, 1, device="cuda") < 0.5
            columns = torch.where(flip, 31 - rows.view(1, 1, 32), rows.view(1, 1, 32)) + dx
            each = torch.arange(n, device="cuda").view(n, 1, 1)
            x = x[each, :, rows.view(1, 32, 1) + dy, columns].permute(0, 3, 1, 2)
        return [(x.contiguous(memory_format=torch.channels_last), self.y[index])]


def first(batches: list[Any]) -> Any:
    return batches[0]


def train(way: str, seed: int, images: Images, judged: Images, **job_settings: Any) -> dict[str, Any]:
    """One run; the clock stops while accuracy is measured."""
    torch.manual_seed(seed)
    torch.cuda.synchronize()
    model = resnet18().cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    until = job_settings.pop("until", True)
    total = EPOCHS * len(images) // BASE
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total + 1, pct_start=0.2)
    base = BASE if isinstance(job_settings["batch"], int) else None
    job = swell.Job(base=base, seed=seed, progress=False, **job_settings)
    job.wrap(model, optimizer, scheduler=scheduler)
    loader = job.loader(images, shuffle=True, collate_fn=first)
    curve: list[dict[str, float]] = []
    batches: list[tuple[int, int]] = []
    clock, began = 0.0, time.perf_counter()
    for _ in job.until(steps=total) if until else job.epochs(EPOCHS):
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            job.backward(loss)
            if job.step() and (not batches or batches[-1][1] != job.global_batch):
                batches.append((job.steps, job.global_batch))
        torch.cuda.synchronize()
        clock += time.perf_counter() - began
        place = {"seconds": clock, "steps": job.steps, "samples": job.samples}
        curve.append({**place, "accuracy": accuracy(model, judged)})
        began = time.perf_counter()
    job.close()
    noise = job.noise
    return {
        "way": way,
        "seed": seed,
        **curve[-1],
        "progress": job.progress,
        "noise_scale": None if noise is None else noise.total.noise_scale,
        "batches": batches,
        "curve": curve,
    }


@torch.no_grad()
def accuracy(model: torch.nn.Module, judged: Images) -> float:
    model.eval()
    right = torch.zeros((), device="cuda")
    for start in range(0, len(judged), 2000):
        ((x, y),) = judged.__getitems__(list(range(start, min(start + 2000, len(judged)))))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            right += (model(x).argmax(1) == y).sum()
    model.train()
    return float(right) / len(judged)


WAYS: dict[str, dict[str, Any]] = {
    "batch 128": {"batch": 128, "statistics": False, "rule": "linear", "until": False},
    "goodput 128 to 4096": {"batch": swell.Goodput(128, max=4096)},
    "batch 1024, AdaScale": {"batch": 1024, "micro": 256},
    "batch 1024, linear": {"batch": 1024, "micro": 1024, "rule": "linear", "statistics": False, "until": False},
    "batch 1024, no rule": {"batch": 1024, "micro": 1024, "rule": "constant", "statistics": False, "until": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "cifar10.json")
    given = parser.parse_args()
    folder = os.environ.get("SWELL_DATA")
    if folder is None or not torch.cuda.is_available():
        raise SystemExit("This needs a CUDA device, and SWELL_DATA set to a folder with images/cifar10_q5.npz.")
    x, y, test_x, test_y = load_cifar10(Path(folder) / "images" / "cifar10_q5.npz")
    images, judged = Images(x, y, train=True), Images(test_x, test_y, train=False)
    results = []
    warm = {"batch": 512, "micro": 128, "statistics": True, "rule": "constant", "until": False}
    short = Images(x[:4096], y[:4096], train=True)
    train("warm-up", 0, short, judged, **warm)
    for seed in given.seeds:
        for way, settings in WAYS.items():
            if given.only and not any(word in way for word in given.only):
                continue
            results.append(train(way, seed, images, judged, **settings))
            print(json.dumps({k: v for k, v in results[-1].items() if k != "curve"}), flush=True)
            machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
            given.out.write_text(json.dumps({"date": str(date.today()), "machine": machine, "runs": results}))


if __name__ == "__main__":
    main()
