"""The noise scale of one model by every probe, on the same weights: do they agree within their intervals?

SWELL_DATA=... python benchmarks/statistics/agreement.py [--samples 512] [--only gpt] [--out agreement.json]

A ResNet-18 on CIFAR-10 and a small GPT on WikiText-2 are trained for a few steps; then the learning rate is zero, and
each probe goes once through the same samples, in its own order, in micro-batches of one size (because the gradient of a
model with batch normalisation depends on it).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from models import GPT2, image_loss, resnet18, text_loss
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import swell

sys.path.insert(0, str(Path(__file__).parents[1] / "time_to_accuracy"))
LENGTH, WORDS = 32, 2000
# Replicas, micro-batches per batch, whether a batch is computed whole, whether the model is sharded, settings.
PROBES: dict[str, tuple[int, int, bool, bool, dict[str, Any]]] = {
    "accumulation, one process": (1, 4, False, False, {}),
    "two replicas": (2, 2, False, False, {}),
    "two replicas, accumulation": (2, 4, False, False, {}),
    "FSDP2, two replicas": (2, 2, False, True, {}),
    "FSDP2, two replicas, accumulation": (2, 4, False, True, {}),
    "one micro-batch, steps split": (1, 2, True, False, {"split_every": 1}),
    "one micro-batch, differences": (1, 1, True, False, {"alone": "differences"}),
}


def images(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """The first images of CIFAR-10, centred, with labels."""
    from cifar10 import load_cifar10  # pyright: ignore[reportMissingImports]

    file = np.load(next(folder.glob("images/cifar10*.npz")))
    with tempfile.TemporaryDirectory() as scratch:  # to decode only these
        cuts = {"r": (slice(None), slice(count)), "y": (slice(count),), "q": ()}
        part = {key: file[key][cuts[key[0]]] for key in file.files}
        np.savez(Path(scratch, "part.npz"), **part)
        x, y, _, _ = load_cifar10(Path(scratch, "part.npz"))
    return torch.tensor(x).permute(0, 3, 1, 2) / 64 - 2, torch.tensor(y).long()


def text(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """The first sequences of WikiText-2, in its most frequent words; one number stands for all others."""
    with gzip.open(folder / "text" / "wikitext2.train.txt.gz", "rt", encoding="utf-8") as file:
        words = file.read().replace("\n", " <eos> ").split()
    frequency: dict[str, int] = {}
    for word in words:
        frequency[word] = frequency.get(word, 0) + 1
    known = {word: n for n, word in enumerate(sorted(frequency, key=lambda w: -frequency[w])[: WORDS - 1])}
    numbers = torch.tensor([known.get(word, WORDS - 1) for word in words[: count * LENGTH + 1]])
    rows = numbers[torch.arange(count).view(-1, 1) * LENGTH + torch.arange(LENGTH + 1)]
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def small_gpt() -> nn.Module:
    return GPT2(WORDS, length=LENGTH, layers=4, width=128, heads=4)


Make = Callable[[], nn.Module]
Loss = Callable[[nn.Module, Any], Tensor]
# Model, loss, data, micro-batch, steps of training beforehand, their learning rate.
MODELS: dict[str, tuple[Make, Loss, Callable[[Path, int], tuple[Tensor, Tensor]], int, int, float]] = {
    "ResNet-18, CIFAR-10": (resnet18, image_loss, images, 8, 5, 0.02),
    "small GPT, WikiText-2": (small_gpt, text_loss, text, 4, 200, 0.2),
}


def train(name: str, data: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Weights after a few steps of plain training."""
    make, loss, _, micro, steps, lr = MODELS[name]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for step in range(steps):
        first = step * micro * 2 % (len(data[0]) - 2 * micro)
        loss(model, (data[0][first : first + 2 * micro], data[1][first : first + 2 * micro])).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def by_job(name: str, probe: str, data: tuple[Tensor, Tensor], weights: dict[str, Any]) -> dict[str, Any]:
    """The figures of a job that goes once through the data without moving the weights."""
    make, loss, _, micro, _, _ = MODELS[name]
    _, count, whole, sharded, settings = PROBES[probe]
    statistics = swell.Statistics(every=1, window=1e9, **settings)
    batch = count * micro
    job = swell.Job(
        batch=batch,
        micro=batch if whole else micro,
        rule="constant",
        statistics=statistics,
        seed=list(PROBES).index(probe),
        progress=False,
    )
    model = make()
    model.load_state_dict(weights)
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (job.replicas,)))
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    job.engine.state.learners[0].noise.plain.share = math.inf  # the weights do not move: old figures are as good
    loader = job.loader(TensorDataset(*data), shuffle=True, drop_last=True)
    for _ in job.epochs(1):
        for each in loader:
            job.backward(loss(model, each))
            job.step()
    assert job.noise is not None
    return described(job.noise)


def alone(name: str, data: tuple[Tensor, Tensor], weights: dict[str, Any]) -> dict[str, Any]:
    """The figures of ``swell.noise_scale``."""
    make, loss, _, micro, _, _ = MODELS[name]
    model = make()
    model.load_state_dict(weights)
    return described(swell.noise_scale(model, loss, DataLoader(TensorDataset(*data), batch_size=micro)).estimate)


def described(noise: Any) -> dict[str, Any]:
    return {
        "signal": noise.total.signal,
        "noise": noise.total.noise,
        "noise_scale": noise.total.noise_scale,
        "interval": list(noise.interval),
        "observations": noise.observations,
    }


def work(rank: int, replicas: int, port: int, call: tuple[Any, ...], out: str) -> None:
    torch.set_num_threads(1)
    if replicas > 1:
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(replicas), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(replicas),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
    function, *arguments = call
    figures = function(*arguments)
    if rank == 0:
        Path(out).write_text(json.dumps(figures))


def launch(replicas: int, *call: Any) -> dict[str, Any]:
    """The result of a function in its own processes, joined by gloo if there are several."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        out = str(Path(folder, "figures.json"))
        torch.multiprocessing.spawn(work, (replicas, port, call, out), nprocs=replicas)
        return json.loads(Path(out).read_text())


def measure(name: str, folder: Path, samples: int) -> dict[str, Any]:
    """Every probe on one model."""
    data = MODELS[name][2](folder, samples)
    weights = train(name, data)
    probes = {probe: launch(PROBES[probe][0], by_job, name, probe, data, weights) for probe in PROBES}
    probes["swell.noise_scale"] = launch(1, alone, name, data, weights)
    low, high = (pick(each["interval"][end] for each in probes.values()) for pick, end in ((max, 0), (min, 1)))
    return {"model": name, "samples": samples, "probes": probes, "common": [low, high], "agree": low <= high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--only", default="")
    parser.add_argument("--data", type=Path, default=os.environ.get("SWELL_DATA"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "agreement.json")
    arguments = parser.parse_args()
    if arguments.data is None:
        raise SystemExit(
            "--data is missing; expected the folder of CIFAR-10 and WikiText-2. Pass it, or set SWELL_DATA."
        )
    start, results = time.perf_counter(), []
    for name in MODELS:
        if arguments.only.lower() in name.lower():
            results.append(measure(name, arguments.data, arguments.samples))
            for probe, each in results[-1]["probes"].items():
                low, high = each["interval"]
                print(f"{name:24} {probe:36} {each['noise_scale']:8.1f}  [{low:.1f}, {high:.1f}]", flush=True)
            print(f"{name:24} {'all of them agree' if results[-1]['agree'] else 'they do not agree'}", flush=True)
    document = {
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "seconds": round(time.perf_counter() - start),
        "results": results,
    }
    arguments.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
