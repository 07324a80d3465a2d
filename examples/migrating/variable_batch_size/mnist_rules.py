"""Which rule should the learning rate follow? MNIST under one trace of batch sizes, with each rule side by side."""

import argparse
import os
from pathlib import Path

import matplotlib
import numpy as np
import swell.compat.variable_batch_size as vbs
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RULES = {
    "constant": vbs.ConstantOptimizer,
    "root": vbs.RootRuleOptimizer,
    "linear": vbs.LinearRuleOptimizer,
    "linear, summed": vbs.LinearRuleMomentumOptimizer,
    "AdaScale": vbs.AdaScaleOptimizer,
}


def load_mnist(limit=None):
    """MNIST from the folder SWELL_DATA if that is set, else the digits that come with swell."""
    if "SWELL_DATA" in os.environ:
        file = np.load(Path(os.environ["SWELL_DATA"]) / "images" / "mnist.npz")
        parts = [(torch.from_numpy(file[f"x_{p}"]) / 255, torch.from_numpy(file[f"y_{p}"])) for p in ("train", "test")]
    else:
        from swell.demo.digits import load_digits

        parts = [part.tensors for part in load_digits()]
    return [TensorDataset(x[:limit].flatten(1), y[:limit].long()) for x, y in parts]


def sizes(samples, epochs, minibatch):
    """A spot market: many machines, few, many again. Whole minibatches, at most a sixteenth of the data set."""
    largest = max(samples // 16 // minibatch, 2)
    steps = np.arange(epochs * samples // minibatch)
    available = 0.5 - 0.5 * np.cos(2 * np.pi * steps / 24)
    return (minibatch * np.maximum(1, np.round(largest * available))).astype(int)


def train(kind, trace, train_set, test_set, args):
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(train_set.tensors[0].shape[1], 128), nn.ReLU(), nn.Linear(128, 10))
    sampler = vbs.CustomSampler(train_set, trace=trace, minibatch_size=args.minibatch, seed=args.seed)
    loader = DataLoader(train_set, batch_sampler=sampler)
    inner = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = kind(inner, sampler, ref_batchsize=args.minibatch)
    images, labels = test_set.tensors
    samples, history = 0, []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        optimizer.set_epoch(epoch)
        for data, target in loader:
            batch, lr = optimizer.get_bs(), optimizer.current_lr()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            samples += len(data)
            if optimizer.step():
                with torch.no_grad():
                    history.append((samples, batch, lr, F.cross_entropy(model(images), labels).item()))
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    return np.array(history), accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--minibatch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02, help="tuned for one minibatch a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=6000, help="train on the first N images only")
    parser.add_argument("--out", default="mnist_rules.png")
    args = parser.parse_args()

    train_set, test_set = load_mnist(args.limit)
    trace = sizes(len(train_set), args.epochs, args.minibatch)
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(8, 9), sharex=True)
    for name, kind in RULES.items():
        history, accuracy = train(kind, trace, train_set, test_set, args)
        print(f"{name:15} {len(history)} steps, test loss {history[-1, 3]:.3f}, accuracy {accuracy:.1%}")
        middle.plot(history[:, 0], history[:, 2], label=name)
        bottom.plot(history[:, 0], history[:, 3], label=f"{name}: {accuracy:.1%}")
    top.plot(history[:, 0], history[:, 1], color="black")
    top.set_ylabel("batch size")
    middle.set_ylabel("learning rate")
    bottom.set_ylabel("test loss")
    bottom.set_yscale("log")
    bottom.set_xlabel("samples")
    middle.legend()
    bottom.legend()
    figure.tight_layout()
    figure.savefig(args.out)
    print(f"drawn in {args.out}")


if __name__ == "__main__":
    main()
