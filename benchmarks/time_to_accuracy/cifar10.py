"""CIFAR-10 with a ResNet-18 on one GPU: wall time, steps and accuracy of several ways to choose the batch.

    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True SWELL_DATA=... \\
        python benchmarks/time_to_accuracy/cifar10.py [--seeds 0 1 2] [--only goodput] [--out cifar10.json]

The setting keeps memory from fragmenting while batches change their size; every way runs with it.

Every way trains the same model from the same seed with the learning rate, momentum, weight decay and one-cycle schedule
that were chosen for a batch of 128. Fixed batches are plain torch loops. Data lives on the GPU and is augmented there,
so that only training is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

import swell

sys.path.insert(0, str(Path(__file__).parents[1] / "statistics"))
from models import resnet18  # pyright: ignore[reportMissingImports]

BASE, RATE, EPOCHS = 128, 0.1, 15


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
        return [self.take(torch.tensor(indices).pin_memory().to("cuda", non_blocking=True))]  # nobody waits

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        x, n = self.x[index], len(index)
        if self.train:
            dx, dy = torch.randint(9, (2, n, 1, 1), device="cuda")
            rows = torch.arange(32, device="cuda")
            flip = torch.rand(n, 1, 1, device="cuda") < 0.5
            columns = torch.where(flip, 31 - rows.view(1, 1, 32), rows.view(1, 1, 32)) + dx
            each = torch.arange(n, device="cuda").view(n, 1, 1)
            x = x[each, :, rows.view(1, 32, 1) + dy, columns].permute(0, 3, 1, 2)
        return x.contiguous(memory_format=torch.channels_last), self.y[index]


def first(batches: list[Any]) -> Any:
    return batches[0]


def network(seed: int, *, rate: float, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, LRScheduler]:
    torch.manual_seed(seed)
    model = resnet18().cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return model, optimizer, OneCycleLR(optimizer, max_lr=rate, total_steps=steps + 1, pct_start=0.2)


def loss_of(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return F.cross_entropy(model(x), y)


class Watch:
    """The clock of a run, which stops while accuracy is measured, and the curve."""

    def __init__(self, model: torch.nn.Module, judged: Images) -> None:
        self._model, self._judged = model, judged
        self.curve: list[dict[str, float]] = []
        self._seconds = 0.0
        torch.cuda.synchronize()
        self._began = time.perf_counter()

    def look(self, *, steps: int, samples: int) -> None:
        torch.cuda.synchronize()
        self._seconds += time.perf_counter() - self._began
        place = {"seconds": self._seconds, "steps": steps, "samples": samples}
        self.curve.append({**place, "accuracy": accuracy(self._model, self._judged)})
        self._began = time.perf_counter()


def plain(seed: int, images: Images, judged: Images, *, batch: int, rate: float) -> dict[str, Any]:
    """A plain torch loop at a fixed batch; like ``drop_last``, it leaves out what is left of an epoch."""
    steps = len(images) // batch
    model, optimizer, scheduler = network(seed, rate=rate, steps=EPOCHS * steps)
    watch = Watch(model, judged)
    for epoch in range(1, EPOCHS + 1):
        order = torch.randperm(len(images), device="cuda")
        for start in range(0, steps * batch, batch):
            loss_of(model, *images.take(order[start : start + batch])).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        watch.look(steps=epoch * steps, samples=epoch * steps * batch)
    return {**watch.curve[-1], "curve": watch.curve}


def elastic(seed: int, images: Images, judged: Images, **settings: Any) -> dict[str, Any]:
    """A job that makes as much progress as the plain loop at the base batch."""
    total = EPOCHS * len(images) // BASE
    model, optimizer, scheduler = network(seed, rate=RATE, steps=total)
    job = swell.Job(seed=seed, progress=False, **settings)
    job.wrap(model, optimizer, scheduler=scheduler)
    loader = job.loader(images, shuffle=True, collate_fn=first)
    batches: list[tuple[int, int]] = []
    watch = Watch(model, judged)
    for _ in job.until(steps=total):
        for x, y in loader:
            job.backward(loss_of(model, x, y))
            if job.step() and (not batches or batches[-1][1] != job.global_batch):
                batches.append((job.steps, job.global_batch))
        watch.look(steps=job.steps, samples=job.samples)
    job.close()
    noise = job.noise
    return {
        **watch.curve[-1],
        "progress": job.progress,
        "noise_scale": None if noise is None else noise.total.noise_scale,
        "batches": batches,
        "curve": watch.curve,
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


WAYS: dict[str, Callable[..., dict[str, Any]]] = {
    "batch 128": partial(plain, batch=BASE, rate=RATE),
    "goodput 128 to 4096": partial(elastic, batch=swell.Goodput(BASE, max=4096)),
    "batch 1024, linear": partial(plain, batch=1024, rate=8 * RATE),
    "batch 1024, no rule": partial(plain, batch=1024, rate=RATE),
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
    short = Images(x[:4096], y[:4096], train=True)
    plain(0, short, judged, batch=BASE, rate=RATE)  # lets the device choose its kernels
    for seed in given.seeds:
        for way, train in WAYS.items():
            if given.only and not any(word in way for word in given.only):
                continue
            results.append({"way": way, "seed": seed, **train(seed, images, judged)})
            print(json.dumps({k: v for k, v in results[-1].items() if k != "curve"}), flush=True)
            machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
            given.out.write_text(json.dumps({"date": str(date.today()), "machine": machine, "runs": results}))


if __name__ == "__main__":
    main()
