"""The data set indices of spans, looked up in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from swell.core.protocols import Order
from swell.data.span import Span

_LARGEST_BLOCK = 8192
_CALL = 2048  # looking up this many positions takes about as long as a call itself


def as_list(numbers: np.ndarray) -> list[int]:
    """Indices as data sets take them."""
    return numbers.tolist()


class Indices:
    """A function from a span to the list of its data set indices, or to another ``form`` of them that can be sliced.

    A vectorised order costs a hundred microseconds a call and next to nothing a sample. So spans that follow one
    another are served from blocks that double in length. Other replicas' samples may lie between them; if these are
    many, a block would cost more than it saves, and each span is looked up alone.

    >>> from swell.core.order import Sequential
    >>> Indices(lambda epoch: Sequential(10))(Span(epoch=0, start=3, stop=6))
    [3, 4, 5]
    """

    def __init__(self, order_of: Callable[[int], Order], *, form: Callable[[np.ndarray], Any] = as_list) -> None:
        self._order_of, self._form = order_of, form
        self._orders: dict[int, Order] = {}
        self._epoch = -1
        self._start = 0
        self._block: Any = []
        self._length = 0  # of the block

    def order(self, epoch: int) -> Order:
        """The epoch's order; the last two are kept, because batches may be fetched ahead into the next epoch."""
        if epoch not in self._orders:
            while len(self._orders) > 1:
                del self._orders[min(self._orders)]
            self._orders[epoch] = self._order_of(epoch)
        return self._orders[epoch]

    def __call__(self, span: Span) -> Any:
        begin, end = span.start - self._start, span.stop - self._start
        if begin < 0 or end > self._length or span.epoch != self._epoch:
            self._look_up(span, begin)
            begin, end = 0, span.stop - span.start
        return self._block[begin:end]

    def _look_up(self, span: Span, begin: int) -> None:
        """Read a block that begins with the span, which is ``begin`` samples after the block before."""
        length = 0
        if span.epoch != self._epoch:
            length = _CALL
        elif 0 <= begin <= self._length + _CALL:
            length = min(max(2 * self._length, _CALL), _LARGEST_BLOCK)
        order = self.order(span.epoch)
        stop = max(span.stop, min(span.start + length, len(order)))
        block = self._form(order.indices(span.start, stop))
        # All at once: an error may come at any call, from the handler of a signal.
        self._block, self._epoch, self._start, self._length = block, span.epoch, span.start, stop - span.start

    def keys(self, span: Span) -> list[tuple[int, int, int]]:
        """The epoch, position and data set index of each sample of the span."""
        return [(span.epoch, span.start + i, index) for i, index in enumerate(self(span))]
