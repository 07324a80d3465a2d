"""What a loss is by the last operations of its graph, which torch keeps anyway; no number is read from a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

_MEAN, _SUM = 1, 2  # torch's numbers for a loss function's reduction
_TERMS = 32  # operations that are looked at


def divided_by_hand(loss: Tensor, counts: set[int]) -> int:
    """The number that a mean loss was divided by as the last thing, if that looks like accumulation; 0 if not.

    It does for 3 or more, and for any number of micro-batches that a step has (``counts``). Factors such as 0.25 look
    like it only for a number of micro-batches; half a loss is too common to tell.

    >>> import torch
    >>> x = torch.ones(4, requires_grad=True)
    >>> divided_by_hand(x.mean() / 4, {1}), divided_by_hand(x.mean() * 0.25, {1}), divided_by_hand(x.mean() / 2, {1})
    (4, 0, 0)
    """
    node = loss.grad_fn
    name = "" if node is None else node.name()
    if node is None or not name.startswith(("DivBackward", "MulBackward")):
        return 0
    factor = _constant(node)
    if factor is None or factor <= 0 or not _is_mean(node.next_functions[0][0]):
        return 0
    divided = name.startswith("Div")
    divisor = factor if divided else 1 / factor
    whole = round(divisor)
    if whole < 2 or abs(divisor - whole) > 1e-6 * whole:
        return 0
    suspect = whole in counts or whole > 2 if divided else whole in counts and whole > 2
    return whole if suspect else 0


def sums_samples(loss: Tensor, samples: int) -> bool:
    """Whether a loss, or a term of it, is a sum over this many samples.

    >>> import torch
    >>> x = torch.ones(4, 3, requires_grad=True)
    >>> sums_samples(x.square().sum(), 4), sums_samples(x.mean() - 0.5 * x.sum(), 4), sums_samples(x.sum(1).mean(), 4)
    (True, True, False)
    """
    return any(
        getattr(node, "_saved_reduction", None) == _SUM
        or (node.name().startswith("SumBackward") and samples in node._saved_self_sym_sizes)
        for node in _terms(loss.grad_fn, samples)
    )


def _terms(node: Any, samples: int) -> Iterator[Any]:
    """The operations that a loss is the sum of; not those that are divided, or weighted by little."""
    todo, count = [node], 0
    while todo and count < _TERMS:
        node, count = todo.pop(), count + 1
        if node is None:
            continue
        name = node.name()
        if name.startswith(("AddBackward", "SubBackward", "NegBackward")):
            todo += [following for following, _ in node.next_functions]
        elif name.startswith("MulBackward"):
            factor = _constant(node)
            if factor is not None and abs(factor) >= 0.1 and not 0.5 < abs(factor) * samples < 2:
                todo += [following for following, _ in node.next_functions]
        else:
            yield node


def _is_mean(node: Any) -> bool:
    return node is not None and (
        node.name().startswith("MeanBackward") or getattr(node, "_saved_reduction", None) == _MEAN
    )


def _constant(node: Any) -> float | None:
    """The number in a product or quotient of a tensor and a number; None where both are tensors of a device."""
    other = getattr(node, "_saved_other", None)
    if not isinstance(other, Tensor) or other.dim() > 0 or other.device.type != "cpu" or other.requires_grad:
        return None
    number = float(other)
    return number if math.isfinite(number) else None
