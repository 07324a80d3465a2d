"""The README of ETH's variable_batch_size, step by step. Only import, device and data differ from the README's.

``python train_mnist.py`` runs it in one process, ``torchrun --nproc-per-node 3 train_mnist.py`` on three replicas.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import swell.compat.variable_batch_size as vbs
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import TensorDataset


def load_mnist(limit=None):
    """MNIST from the folder SWELL_DATA if that is set, else the digits that come with swell."""
    if "SWELL_DATA" in os.environ:
        file = np.load(Path(os.environ["SWELL_DATA"]) / "images" / "mnist.npz")
        parts = [(torch.from_numpy(file[f"x_{p}"]) / 255, torch.from_numpy(file[f"y_{p}"])) for p in ("train", "test")]
    else:
        from swell.demo.digits import load_digits

        parts = [part.tensors for part in load_digits()]
    return [TensorDataset(x[:limit].flatten(1), y[:limit].long()) for x, y in parts]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", default="trace.csv")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--num_epochs", type=int, default=2)
    parser.add_argument("--log_steps", type=int, default=20)
    parser.add_argument("--limit", type=int, help="train on the first N images only")
    flags = parser.parse_args()

    WORLD_SIZE, ORDINAL = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(42)
    train_dataset, test_dataset = load_mnist(flags.limit)

    # 1. Generate the batchsize trace.
    if ORDINAL == 0 and not Path(flags.trace).exists():
        sizes = [64, 96] * 20 + [256] * 10000
        Path(flags.trace).write_text(
            "step,batchsize\n" + "".join(f"{step}, {size}\n" for step, size in enumerate(sizes))
        )
    if WORLD_SIZE > 1:
        dist.barrier()

    # 3. Use the custom batch sampler.
    train_sampler = vbs.CustomSampler(
        dataset_size=len(train_dataset),
        trace=flags.trace,
        num_replicas=WORLD_SIZE,
        rank=ORDINAL,
        minibatch_size=flags.batch_size,
    )
    train_loader = torch.utils.data.DataLoader(train_dataset, batch_sampler=train_sampler)

    # 4. Use the custom optimizer.
    model = nn.Sequential(nn.Linear(train_dataset.tensors[0].shape[1], 128), nn.ReLU(), nn.Linear(128, 10))
    internal_optimizer = optim.SGD(model.parameters(), lr=flags.lr, momentum=flags.momentum)
    optimizer = vbs.LinearRuleOptimizer(internal_optimizer, train_sampler, ref_batchsize=128, log_steps=flags.log_steps)

    for epoch in range(flags.num_epochs):
        # 5. At each epoch call the following before iterating the data loader.
        train_sampler.set_epoch(epoch)
        optimizer.set_epoch(epoch)
        for data, target in train_loader:
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            images, labels = test_dataset.tensors
            accuracy = (model(images).argmax(1) == labels).float().mean().item()
        if ORDINAL == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.1%}")
    if WORLD_SIZE > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
