"""The README of Run:AI's elastic module for PyTorch. Only the import and the data differ from the README's."""

import argparse
import os
from pathlib import Path

import numpy as np
import swell.compat.runai as runai
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


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
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--limit", type=int, help="train on the first N images only")
    args = parser.parse_args()

    runai.elastic.torch.init(256, 64)
    print(
        f"{runai.elastic.gpus} device(s), {runai.elastic.steps} step(s) of {runai.elastic.batch_size} samples each: "
        f"{runai.elastic.global_batch_size} samples a step"
    )

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = load_mnist(args.limit)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(train_set.tensors[0].shape[1], 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = runai.ga.torch.optim.Optimizer(optimizer, runai.elastic.steps)
    model = torch.nn.DataParallel(model)

    # DataParallel cuts each batch of the loader into one for every device, hence loader_batch_size.
    loader = DataLoader(train_set, runai.elastic.loader_batch_size, shuffle=True)
    for epoch in range(args.epochs):
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
        optimizer.flush()  # step with what is left at the end of the epoch
        with torch.no_grad():
            images, labels = test_set.tensors
            accuracy = (model(images.to(device)).argmax(1) == labels.to(device)).float().mean().item()
        if runai.elastic.master:
            print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
