"""How many samples each micro-batch of a step has, if they are not all equal."""

from __future__ import annotations

from swell.core.counts import whole_number


class MicroBatchSizes:
    """Sizes by the number of the micro-batch in its step; ``whole`` unless another one is announced.

    >>> sizes = MicroBatchSizes(32)
    >>> sizes.announce(8)
    >>> sizes.weight(0), sizes.weight(1), sizes.total(2)
    (0.25, 1.0, 40)
    """

    def __init__(self, whole: int) -> None:
        self.whole = whole_number(whole, name="micro_batch")
        self._announced: int | None = None
        self._sizes: dict[int, int] = {}

    def announce(self, samples: int) -> None:
        """Set the size of the micro-batch whose backward() comes next."""
        self._announced = whole_number(samples, name="samples")

    def weight(self, micro_batch: int) -> float:
        """Its samples over those of a whole one; the announced size is used up by the first micro-batch without one."""
        if micro_batch not in self._sizes:
            self._sizes[micro_batch] = self.whole if self._announced is None else self._announced
            self._announced = None
        return self._sizes[micro_batch] / self.whole

    def total(self, micro_batches: int) -> int:
        """Samples of the first ``micro_batches`` micro-batches."""
        return sum(self._sizes.get(number, self.whole) for number in range(micro_batches))

    def restart(self) -> None:
        """Start a new step; an announced size that is not used yet belongs to its first micro-batch."""
        self._sizes = {}
