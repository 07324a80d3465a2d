from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.order import Sequential, Shuffled
from swell.data.indices import Indices
from swell.data.span import Span
from swell.errors import ConfigError

N = 20_000


class Counting:
    """An order that counts how many positions were looked up, and in how many calls."""

    def __init__(self, epoch: int) -> None:
        self.order = Shuffled(N, seed=1, epoch=epoch)
        self.calls = self.positions = 0

    def __len__(self) -> int:
        return N

    def indices(self, start: int, stop: int) -> np.ndarray:
        self.calls, self.positions = self.calls + 1, self.positions + stop - start
        return self.order.indices(start, stop)


SPANS = st.builds(
    lambda epoch, start, size: Span(epoch, start, min(N, start + size)),
    st.integers(0, 3),
    st.integers(0, N - 1),
    st.integers(1, 3000),
)


@given(st.lists(SPANS, max_size=20))
def test_a_span_has_the_indices_its_order_gives_it_whatever_was_asked_for_before(spans: list[Span]) -> None:
    indices = Indices(lambda epoch: Shuffled(N, seed=1, epoch=epoch))
    for span in spans:
        expected = Shuffled(N, seed=1, epoch=span.epoch).indices(span.start, span.stop).tolist()
        assert indices(span) == expected
        assert indices.keys(span) == [(span.epoch, span.start + i, index) for i, index in enumerate(expected)]


def test_one_replica_asks_its_order_a_few_times_an_epoch() -> None:
    order = Counting(0)
    indices = Indices(lambda epoch: order)
    for start in range(0, N, 32):
        indices(Span(0, start, min(N, start + 32)))
    assert order.calls < 16
    assert order.positions == N


def test_one_replica_of_a_few_asks_its_order_no_more_often() -> None:
    order = Counting(0)
    indices = Indices(lambda epoch: order)
    for start in range(0, N - 512, 512):
        indices(Span(0, start, start + 128))
    assert order.calls < 16
    assert order.positions <= N + 1024 * order.calls


@given(size=st.integers(1, 600), micros=st.integers(1, 4), gap=st.integers(0, 9000))
def test_looking_ahead_costs_at_most_twice_what_looking_up_each_span_alone_costs(
    size: int, micros: int, gap: int
) -> None:
    order = Counting(0)
    indices = Indices(lambda epoch: order)
    spans = [
        Span(0, start + i * size, start + (i + 1) * size)
        for start in range(0, N - micros * size, micros * size + gap)
        for i in range(micros)
    ]
    for span in spans:
        indices(span)
    call = 2048  # positions that take as long as a call
    alone = call * len(spans) + size * len(spans)
    assert call * order.calls + order.positions <= 2 * alone + 8192


def test_each_epoch_has_its_order_made_once() -> None:
    made: list[int] = []

    def order_of(epoch: int) -> Sequential:
        made.append(epoch)
        return Sequential(10)

    indices = Indices(order_of)
    for epoch in (0, 0, 1, 0, 1, 2, 1, 2):
        indices(Span(epoch, 0, 5))
    assert made == [0, 1, 2]


@pytest.mark.parametrize(("epoch", "start", "stop"), [(0, 5, 5), (0, 6, 5), (0, -1, 5), (-1, 0, 5)])
def test_a_span_holds_at_least_one_sample_of_an_epoch(epoch: int, start: int, stop: int) -> None:
    with pytest.raises(ConfigError, match="0 <= start < stop"):
        Span(epoch, start, stop)


def test_a_span_beyond_the_end_of_the_epoch_is_refused() -> None:
    with pytest.raises(ConfigError, match="stop is 11"):
        Indices(lambda epoch: Sequential(10))(Span(0, 5, 11))
