"""A small convolutional network on Fashion-MNIST; train_torch.py and train_swell.py differ in what swell needs."""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load_images(limit: int | None) -> tuple[TensorDataset, TensorDataset]:
    """Fashion-MNIST from the folder SWELL_DATA, else from torchvision, else the digits that come with swell."""
    if "SWELL_DATA" in os.environ:
        file = np.load(Path(os.environ["SWELL_DATA"]) / "images" / "fashion_mnist.npz")
        train, test = (file["x_train"] / 255, file["y_train"]), (file["x_test"] / 255, file["y_test"])
    else:
        try:
            from torchvision.datasets import FashionMNIST  # pyright: ignore[reportMissingImports]
        except ImportError:
            from swell.demo.digits import load_digits

            train, test = (data.tensors for data in load_digits())
        else:
            parts = [FashionMNIST("data", train=part, download=True) for part in (True, False)]
            train, test = ((part.data.numpy() / 255, part.targets.numpy()) for part in parts)

    def as_dataset(images: Any, labels: Any) -> TensorDataset:
        pixels = torch.as_tensor(images[:limit], dtype=torch.float32).unsqueeze(1)
        return TensorDataset((pixels - 0.2861) / 0.353, torch.as_tensor(labels[:limit], dtype=torch.int64))

    return as_dataset(*train), as_dataset(*test)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--limit", type=int, help="use only this many images")
    args = parser.parse_args()

    torch.manual_seed(0)
    train_set, test_set = load_images(args.limit)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(train_set, batch_size=128, shuffle=True)

    accuracy = float("nan")
    for epoch in range(args.epochs):
        model.train()
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        model.eval()
        with torch.no_grad():
            batches = DataLoader(test_set, batch_size=1000)
            correct = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in batches)
        accuracy = correct / len(test_set)
        print(f"epoch {epoch}: {accuracy:.1%} of the test images are right")
    return accuracy


if __name__ == "__main__":
    main()
