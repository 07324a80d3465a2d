"""What one step has under way between its backward passes and its update: buckets of gradients, figures, buffers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swell.core.protocols import PendingSum
from swell.gradients.overlap import OverlappedSum


class Sending:
    """Sends figures and buffers after the buckets of a step; the vote travels beside them, or in the last bucket.

    Every replica begins the same sums in the same order, whatever became of its share. Raises ``WorldError`` where a
    replica was lost, also for buckets that were sent from the backward pass.
    """

    def __init__(self, overlap: OverlappedSum, figures: Tensor | None, buffers: Sequence[Tensor]) -> None:
        self._overlap, self._figures = overlap, figures
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for buffer in buffers:
            kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer)
        self._flats = [(same, torch.cat([buffer.detach().reshape(-1) for buffer in same])) for same in kinds.values()]
        self._flights: list[PendingSum] = []
        if overlap.carrier is None:
            self._begin()

    def _begin(self) -> None:
        for tensor in (self._figures, *(flat for _, flat in self._flats)):
            if tensor is not None:
                self._flights.append(self._overlap.collective.begin_sum(tensor))

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Every replica's numbers, in rank order; they travel with a small network's gradients."""
        carrier = self._overlap.carrier
        if carrier is None:
            return self._overlap.collective.gather_numbers(numbers)
        carrier.begin(numbers)
        self._begin()
        return carrier.end()

    def drop(self) -> None:
        """The step is given up: let everything arrive, and forget it."""
        self._overlap.drop()
        for flight in self._flights:
            flight.wait()
        self._overlap.end()

    def arrive(self, *, irregular: bool, share: float) -> Tensor | None:
        """Leave the summed gradients in ``.grad``; returns the summed figures, if there were any."""
        self._overlap.wait()
        for flight in self._flights:
            flight.wait()
        self._overlap.release(irregular=irregular, share=share)
        self._overlap.end()
        return self._figures if share == 1 or self._figures is None else self._figures * share

    @torch.no_grad()
    def put_buffers(self) -> None:
        """Give the buffers their means over replicas; once the weights have moved."""
        for buffers, flat in self._flats:
            flat /= self._overlap.collective.size
            for buffer, piece in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
                buffer.copy_(piece.view_as(buffer))
