"""The order of the present epoch, with the manners of a torch sampler, for scripts that look at ``loader.sampler``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.utils.data import Sampler

from swell.data.orders import Orders

_RUN = 4096  # indices worked out at once


class EpochSampler(Sampler[int]):
    """Every data set index of the present epoch, in order, whichever replica computes it; ``len`` counts samples.

    >>> from swell.data.orders import orders
    >>> list(EpochSampler(orders("abc", seed=0), lambda: 0))
    [0, 1, 2]
    """

    def __init__(self, order_of: Orders, epoch: Callable[[], int]) -> None:
        self._order_of, self._epoch = order_of, epoch

    def __len__(self) -> int:
        return len(self._order_of(self._epoch()))

    def __iter__(self) -> Iterator[int]:
        order = self._order_of(self._epoch())
        for start in range(0, len(order), _RUN):
            yield from order.indices(start, min(len(order), start + _RUN)).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the order follows the epoch of ``job.epochs`` by itself."""
