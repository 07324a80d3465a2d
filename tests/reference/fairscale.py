"""FairScale's formulas as its users know them, written out; and ETH's layout of a step, one minibatch at a time."""

from __future__ import annotations


def fairscale_moments(local: float, total: float, *, scale: float, count: int) -> tuple[float, float]:
    """``(sqr, var)`` before clamping, from the sum of squared norms of ``count`` gradients and their mean's."""
    var = scale / (count * (count - 1)) * local - scale / (count - 1) * total
    return total - var / scale, var


def fairscale_gain(sqr: float, var: float, *, scale: float) -> float:
    return (var + sqr) / (var / scale + sqr)


def eth_assignments(sizes: list[int], *, minibatch: int, replicas: int, rank: int) -> list[list[int]]:
    """Minibatch numbers of a rank for each step: ``s + r, s + r + R, ...`` below ``s + k``."""
    answer, start = [], 0
    for size in sizes:
        count = size // minibatch
        answer.append([number for number in range(start, start + count) if (number - start) % replicas == rank])
        start += count
    return answer


def eth_epochs(sizes: list[int], *, samples: int, minibatch: int) -> list[list[int]]:
    """Epochs as ETH cuts a trace: as many sizes as fit into the whole minibatches; the next begins another."""
    most = samples // minibatch * minibatch
    epochs: list[list[int]] = [[]]
    for size in sizes:
        if sum(epochs[-1]) + size > most:
            epochs.append([])
        epochs[-1].append(size)
    return epochs
