"""Figures of a step that no other replica adds to: numbers as the device has them, and what the host makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class HostFigures:
    """Weighted sums of numbers, or of their squares, in an order; the host works them out once it has the numbers.

    On the device each sum would take several kernels: to launch in every measured step and, before the first, to load,
    which takes tens of milliseconds for each that the training itself does not use.

    >>> figures = HostFigures()
    >>> figures.add([(torch.tensor(3.0), 0.5), (1.0, 0.5)])
    >>> figures.add([(torch.tensor(3.0), 1.0), (torch.tensor(4.0), 1.0)], squared=True)
    >>> figures.work_out(figures.numbers().tolist())
    [2.0, 25.0]
    """

    def __init__(self) -> None:
        self._numbers: list[Tensor] = []
        self._sums: list[tuple[float, list[tuple[int, float]], bool]] = []  # of which numbers with which weights

    def add(self, terms: Iterable[tuple[Tensor | float, float]], *, squared: bool = False) -> None:
        """Add a figure: the sum of numbers, or of their squares, each times its weight; 0 without any."""
        constant, places = 0.0, []
        for number, weight in terms:
            if isinstance(number, Tensor):
                places.append((len(self._numbers), weight))
                self._numbers.append(number)
            else:
                constant += (number * number if squared else number) * weight
        self._sums.append((constant, places, squared))

    @property
    def is_cuda(self) -> bool:
        """Whether the numbers are on a CUDA device."""
        return bool(self._numbers) and self._numbers[0].is_cuda

    @property
    def parts(self) -> list[Tensor]:
        """What the host needs, number by number."""
        return self._numbers

    def numbers(self) -> Tensor:
        """What the host needs, as one tensor."""
        if not self._numbers:
            return torch.empty(0)
        first = self._numbers[0]
        if len(self._numbers) == 1:
            return first.reshape(1)
        if len({(number.device, number.dtype) for number in self._numbers}) > 1:
            return torch.stack([number.reshape(()).to(first.device, torch.float64) for number in self._numbers])
        return torch.stack([number.reshape(()) for number in self._numbers])

    def value(self, figure: int) -> float:
        """One of the figures now, if the host must wait for it."""
        constant, places, squared = self._sums[figure]
        return constant + _sum([float(self._numbers[place]) for place, _ in places], places, squared)

    def work_out(self, numbers: Sequence[float]) -> list[float]:
        """The figures, by the numbers."""
        return [
            constant + _sum([numbers[place] for place, _ in places], places, squared)
            for constant, places, squared in self._sums
        ]


def _sum(numbers: Sequence[float], places: Sequence[tuple[int, float]], squared: bool) -> float:
    weighted = zip(numbers, places, strict=True)
    if squared:
        return sum([number * number * weight for number, (_, weight) in weighted])
    return sum([number * weight for number, (_, weight) in weighted])
