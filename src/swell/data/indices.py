"""The data set indices of spans, looked up in blocks."""

from __future__ import annotations

from collections.abc import Callable

from swell.core.protocols import Order
from swell.data.span import Span

_LARGEST_BLOCK = 8192
_CALL = 2048  # looking up this many positions takes about as long as a call itself


class Indices:
    """A function from a span to the list of its data set indices.

    A vectorised order costs a hundred microseconds a call and next to nothing a sample. So spans that follow one
    another are served from blocks that double in length. Other replicas' samples may lie between them; if these are
    many, a block would cost more than it saves, and each span is looked up alone.

    >>> from swell.core.order import Sequential
    >>> Indices(lambda epoch: Sequential(10))(Span(epoch=0, start=3, stop=6))
    [3, 4, 5]
    """

    def __init__(self, order_of: Callable[[int], Order]) -> None:
        self._order_of = order_of
        self._orders: dict[int, Order] = {}
        self._epoch = -1
        self._start = 0
        self._block: list[int] = []
        self._length = 0

    def order(self, epoch: int) -> Order:
        """The epoch's order; the last two are kept, because batches may be fetched ahead into the next epoch."""
        if epoch not in self._orders:
            while len(self._orders) > 1:
                del self._orders[min(self._orders)]
            self._orders[epoch] = self._order_of(epoch)
        return self._orders[epoch]

    def __call__(self, span: Span) -> list[int]:
        begin, end = span.start - self._start, span.stop - self._start
        if begin < 0 or end > len(self._block) or span.epoch != self._epoch:
            if span.epoch != self._epoch:
                self._length = _CALL
            elif 0 <= begin <= len(self._block) + _CALL:
                self._length = min(max(2 * self._length, _CALL), _LARGEST_BLOCK)
            else:
                self._length = 0
            order = self.order(span.epoch)
            stop = max(span.stop, min(span.start + self._length, len(order)))
            self._block = order.indices(span.start, stop).tolist()
            self._epoch, self._start, self._length = span.epoch, span.start, stop - span.start
            begin, end = 0, span.stop - span.start
        return self._block[begin:end]

    def keys(self, span: Span) -> list[tuple[int, int, int]]:
        """The epoch, position and data set index of each sample of the span."""
        return [(span.epoch, span.start + i, index) for i, index in enumerate(self(span))]
