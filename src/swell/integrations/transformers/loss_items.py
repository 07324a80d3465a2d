"""How many items a micro-batch's loss is a mean over: its tokens, where it has labels for tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

IGNORED = -100  # the label that Hugging Face's losses leave out


def items_in(inputs: Any, *, shifts: bool) -> int | None:
    """The labels that count, of this micro-batch alone; None where the loss is a mean over its samples.

    ``shifts`` says that the loss predicts each label from those before it, so the first of a row is never predicted.

    >>> items_in({"labels": torch.tensor([[1, 2, 3], [4, -100, -100]])}, shifts=True)
    2
    >>> items_in({"labels": torch.tensor([0, 1, 1])}, shifts=False) is None
    True
    """
    if not isinstance(inputs, Mapping):
        return None
    labels = inputs.get("shift_labels")
    if labels is None:
        labels = inputs.get("labels")
        if isinstance(labels, torch.Tensor) and labels.ndim > 1 and shifts:
            labels = labels[..., 1:]
    if not isinstance(labels, torch.Tensor) or labels.ndim < 2 or labels.is_floating_point():
        return None
    return int(labels.ne(IGNORED).sum())
