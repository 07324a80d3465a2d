"""Layouts and accumulated training runs that are compared with Run:AI's: arithmetic in float64, nothing random."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

LAYOUTS = [
    (256, 64, 1),
    (256, 64, 2),
    (256, 64, 4),
    (256, 64, 8),
    (256, 64, 3),
    (256, 100, 1),
    (256, 63, 1),
    (100, 64, 1),
    (100, 16, 4),
    (100, 32, 1),
    (1000, 300, 2),
    (512, 48, 3),
    (64, 128, 3),
]
OPTIMIZERS = ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "SGD", "Rprop", "RMSprop"]
STEPS = 3


def accumulated(make: Any, *, divide_loss: bool) -> list[float]:
    """The weights after each of four real steps of three micro-batches."""
    parameter = nn.Parameter(torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64))
    optimizer = make(STEPS, [parameter], lr=0.01)
    weights: list[float] = []
    for call in range(4 * STEPS):
        sample = torch.sin(torch.arange(3, dtype=torch.float64) + 1.9 * call)
        optimizer.zero_grad()
        loss = ((parameter * sample).sum() - 0.5).square()
        (loss / STEPS if divide_loss else loss).backward()
        optimizer.step()
        if call % STEPS == STEPS - 1:
            weights += parameter.tolist()
    return weights
