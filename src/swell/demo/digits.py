"""The handwritten digits that come with the package; ``SOURCE.md`` names their source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """1,438 digits for training and 359 for testing (every fifth): images (8, 8) of 0 to 1, labels 0 to 9."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        images = torch.from_numpy(file["images"].astype(np.float32) / 16)
        labels = torch.from_numpy(file["labels"].astype(np.int64))
    test = torch.arange(len(labels)) % 5 == 4
    return TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test])
