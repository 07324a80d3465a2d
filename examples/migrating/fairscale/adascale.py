"""FairScale's AdaScale loop: the larger batch's gain sets the learning rate and says when to stop.

Only the import differs from FairScale's. ``python adascale.py`` accumulates 4 gradients in one process; under
``torchrun --nproc-per-node 2 adascale.py`` each replica accumulates 2.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from swell.compat.fairscale.optim import AdaScale
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


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
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the small batch the schedule was tuned for")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--limit", type=int, help="train on the first N images only")
    args = parser.parse_args()

    parallel = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if parallel:
        dist.init_process_group("gloo")
    world_size = dist.get_world_size() if parallel else 1
    num_gradients = 2 if parallel else 4

    train_set, test_set = load_mnist(args.limit)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(train_set.tensors[0].shape[1], 128), nn.ReLU(), nn.Linear(128, 10))
    net = DistributedDataParallel(model) if parallel else model
    sampler = DistributedSampler(train_set) if parallel else None
    loader = DataLoader(train_set, args.batch_size, shuffle=not parallel, sampler=sampler, drop_last=True)

    small_steps = args.epochs * (len(train_set) // args.batch_size)
    optimizer = AdaScale(SGD(model.parameters(), lr=args.lr, momentum=0.9), num_gradients_to_accumulate=num_gradients)
    # The schedule of the small batch counts in its steps, so it gets the accumulated gain, not the number of steps.
    scheduler = LambdaLR(optimizer, lambda step: 1.0 if step < 0.7 * small_steps else 0.1)

    gain_steps, steps, epoch = 0.0, 0, 0
    while gain_steps < small_steps:
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch, (data, target) in enumerate(loader):
            loss = F.cross_entropy(net(data), target) / num_gradients
            loss.backward()
            if (batch + 1) % num_gradients:
                continue
            gain_steps += optimizer.gain()
            steps += 1
            optimizer.step()
            optimizer.zero_grad()
            scheduler.last_epoch = int(gain_steps) - 1
            scheduler.step()
            if gain_steps >= small_steps:
                break
        epoch += 1
    with torch.no_grad():
        images, labels = test_set.tensors
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    if not parallel or dist.get_rank() == 0:
        print(
            f"{steps} steps of {args.batch_size * num_gradients * world_size} samples were worth {gain_steps:.0f} "
            f"steps of {args.batch_size}; gain {optimizer.gain():.2f}, accuracy {accuracy:.1%}"
        )
    if parallel:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
