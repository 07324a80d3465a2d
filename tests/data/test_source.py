"""What a training loader relies on, for every source of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from torch.utils.data import IterableDataset

from swell.core.order import Sequential
from swell.data import BatchSource, Feed, OwnStream, Span, Stream

N = 50


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


SOURCES: dict[str, Callable[[], BatchSource]] = {
    "feed": lambda: Feed(range(N), lambda epoch: Sequential(N)),
    "feed with workers": lambda: Feed(range(N), lambda epoch: Sequential(N), num_workers=1),
    "stream": lambda: Stream(Numbers()),
    "stream with a worker": lambda: Stream(Numbers(), num_workers=1),
    "own stream": lambda: OwnStream(Numbers()),
}


@pytest.fixture(params=SOURCES.values(), ids=list(SOURCES))
def make(request: pytest.FixtureRequest) -> Callable[[], BatchSource]:
    return request.param


def steps(source: BatchSource, epoch: int, position: int, batch: int) -> Iterator[list[int]]:
    """The batches of an epoch from a position on, each fetched in two parts."""
    while count := source.available(epoch, position, batch):
        half, stop = position + count // 2, position + count
        first = source.fetch(Span(epoch, position, half), lambda: iter([Span(epoch, half, stop)])).tolist()  # noqa: B023
        yield first + source.fetch(Span(epoch, half, stop)).tolist()
        position = stop


def test_an_epoch_comes_once_and_in_order_and_then_nothing_is_available(make: Callable[[], BatchSource]) -> None:
    source = make()
    for epoch in range(2):
        assert [value for batch in steps(source, epoch, 0, 8) for value in batch] == list(range(N))
        assert source.available(epoch, N, 8) == 0
    source.close()


def test_a_length_is_the_number_of_samples_or_unknown(make: Callable[[], BatchSource]) -> None:
    source = make()
    assert source.length(0) in (N, None)
    source.close()


def test_a_step_that_was_not_committed_gets_the_same_samples_again(make: Callable[[], BatchSource]) -> None:
    source = make()
    first = next(steps(source, 0, 0, 8))
    assert next(steps(source, 0, 0, 8)) == first == list(range(8))
    assert next(steps(source, 0, 8, 8)) == list(range(8, 16))
    source.close()


def test_another_source_continues_from_a_state_and_a_position(make: Callable[[], BatchSource]) -> None:
    source = make()
    batches = steps(source, 1, 0, 8)
    for _ in range(3):
        next(batches)
    state = source.state_dict()
    source.close()
    other = make()
    other.load_state_dict(state)
    assert [value for batch in steps(other, 1, 24, 8) for value in batch] == list(range(24, N))
    other.close()


def test_a_closed_source_can_be_read_again(make: Callable[[], BatchSource]) -> None:
    source = make()
    next(steps(source, 0, 0, 8))
    source.close()
    source.close()
    assert next(steps(source, 0, 0, 8)) == list(range(8))
    source.close()
