"""How many samples each micro-batch of a step has, where they are not all alike."""

from __future__ import annotations

from swell.core.counts import whole_number


class Sizes:
    """Sizes by the number of the micro-batch; one of which nothing was said is ``whole``.

    >>> sizes = Sizes(32)
    >>> sizes.tell(8)
    >>> sizes.weight(0), sizes.weight(1), sizes.total(2)
    (0.25, 1.0, 40)
    """

    def __init__(self, whole: int) -> None:
        self.whole = whole_number(whole, name="micro_batch")
        self._told: int | None = None
        self._sizes: dict[int, int] = {}

    def tell(self, samples: int) -> None:
        """The micro-batch that is sent back next has so many samples."""
        self._told = whole_number(samples, name="samples")

    def weight(self, micro_batch: int) -> float:
        """Its samples over those of a whole one; what was told last is its size if it has none yet."""
        if micro_batch not in self._sizes:
            self._sizes[micro_batch] = self.whole if self._told is None else self._told
            self._told = None
        return self._sizes[micro_batch] / self.whole

    def total(self, micro_batches: int) -> int:
        """Samples of the first so many micro-batches."""
        return sum(self._sizes.get(number, self.whole) for number in range(micro_batches))

    def restart(self) -> None:
        """A new step begins; what was told and not used yet is of its first micro-batch."""
        self._sizes = {}
