"""The data of all tasks, on the device: images and text from SWELL_DATA, tables that are generated."""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def folder() -> Path:
    """Where the data sets are."""
    value = os.environ.get("SWELL_DATA")
    if value is None:
        raise SystemExit(
            "SWELL_DATA is unset; expected a folder with images/fashion_mnist.npz, images/mnist.npz and "
            "text/tinyshakespeare.txt.gz. Set it to where these are."
        )
    return Path(value)


@cache
def images(name: str, device: str, count: int = 60_000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of zero mean and unit spread as (n, 1, 28, 28), and labels: to train on, then to judge by."""
    with np.load(folder() / "images" / f"{name}.npz") as file:
        parts = [file[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    mean, std = {"fashion_mnist": (0.2861, 0.3528), "mnist": (0.1307, 0.3081)}[name]

    def pixels(array: np.ndarray) -> Tensor:
        return ((torch.from_numpy(array).float() / 255 - mean) / std).unsqueeze(1).to(device)

    def labels(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(device)

    x, y, test_x, test_y = parts
    return pixels(x[:count]), labels(y[:count]), pixels(test_x), labels(test_y)


@cache
def characters(length: int, device: str) -> tuple[Tensor, Tensor, int]:
    """Rows of ``length + 1`` characters of Shakespeare to train on and to judge by, and how many kinds there are."""
    with gzip.open(folder() / "text" / "tinyshakespeare.txt.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    kinds = {kind: number for number, kind in enumerate(sorted(set(text)))}
    numbers = torch.tensor([kinds[kind] for kind in text])

    def cut(part: Tensor) -> Tensor:
        rows = (len(part) - 1) // length
        starts = torch.arange(rows).view(-1, 1) * length
        return part[starts + torch.arange(length + 1)].to(device)

    split = len(numbers) * 9 // 10
    return cut(numbers[:split]), cut(numbers[split:]), len(kinds)


@cache
def table(device: str, count: int = 60_000, features: int = 24) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A regression: a random network of two layers over correlated features, and noise that nobody can predict."""
    draw = torch.Generator().manual_seed(11)
    total = count + 8_192
    mix = torch.randn(features, features, generator=draw) / features**0.5
    x = torch.randn(total, features, generator=draw) @ mix + 0.3 * torch.randn(total, features, generator=draw)
    hidden = torch.tanh(x @ torch.randn(features, 64, generator=draw))
    hidden = torch.relu(hidden @ torch.randn(64, 32, generator=draw) / 4)
    y = hidden @ torch.randn(32, generator=draw)
    y = (y - y.mean()) / y.std() + 0.1 * torch.randn(total, generator=draw)
    x, y = x.to(device), y.to(device)
    return x[:count], y[:count], x[count:], y[count:]


@cache
def ratings(device: str, count: int = 300_000) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[int, int]]:
    """Pairs (user, item) with likes, popular ones more often; a few hidden tastes decide. Then the sizes."""
    users, items, tastes = 4_000, 2_000, 6
    draw = torch.Generator().manual_seed(12)
    total = count + 20_000
    popularity = 1 / torch.arange(1, items + 1).float() ** 0.8
    activity = 1 / torch.arange(1, users + 1).float() ** 0.5
    item = torch.multinomial(popularity, total, replacement=True, generator=draw)
    user = torch.multinomial(activity, total, replacement=True, generator=draw)
    a = torch.randn(users, tastes, generator=draw)
    b = torch.randn(items, tastes, generator=draw)
    score = (a[user] * b[item]).sum(1) + 0.5 * torch.randn(items, generator=draw)[item]
    liked = (torch.rand(total, generator=draw) < torch.sigmoid(score)).float()
    pairs, liked = torch.stack([user, item], 1).to(device), liked.to(device)
    return pairs[:count], liked[:count], pairs[count:], liked[count:], (users, items)
