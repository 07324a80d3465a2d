from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from swell.data.span import Span
from swell.data.stream import OwnStream
from swell.errors import DataError


class Shard(IterableDataset[int]):
    """A replica's part of the numbers below ``n``, and of that each worker's."""

    def __init__(self, n: int, rank: int, replicas: int) -> None:
        self.n, self.rank, self.replicas = n, rank, replicas

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        mine = range(self.rank, self.n, self.replicas)
        return iter(mine if info is None else mine[info.id :: info.num_workers])


STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 9), min_size=2, max_size=2),  # the two replicas' shares
        st.sampled_from(["commit", "commit", "again", "crash"]),
    ),
    min_size=1,
    max_size=10,
)


@given(steps=STEPS)
def test_every_step_takes_as_many_of_each_replicas_samples_as_planned_and_the_same_when_done_again(
    steps: list[tuple[list[int], str]],
) -> None:
    streams = [OwnStream(Shard(400, rank, 2)) for rank in range(2)]
    committed: list[list[int]] = [[], []]
    position = 0
    for sizes, fate in steps:
        for rank, size in enumerate(sizes):
            assert streams[rank].available(0, position, size) == size
            start = position + sum(sizes[:rank])
            first = streams[rank].fetch(Span(0, start, start + 1)).tolist()
            rest = streams[rank].fetch(Span(0, start + 1, start + size)).tolist() if size > 1 else []
            done = len(committed[rank])
            assert first + rest == list(range(rank, 400, 2))[done : done + size]
            if fate == "commit":
                committed[rank] += first + rest
        if fate == "commit":
            position += sum(sizes)
        if fate == "crash":
            states = [stream.state_dict() for stream in streams]
            streams = [OwnStream(Shard(400, rank, 2)) for rank in range(2)]
            for stream, state in zip(streams, states, strict=True):
                stream.load_state_dict(state)


def test_a_state_saved_after_a_commit_goes_on_after_it() -> None:
    before = OwnStream(Shard(100, 1, 2))
    before.available(0, 0, 5)
    before.fetch(Span(0, 5, 10))
    after = OwnStream(Shard(100, 1, 2))
    after.load_state_dict(before.state_dict())
    assert after.available(0, 10, 3) == 3
    assert after.fetch(Span(0, 13, 16)).tolist() == [11, 13, 15]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_epoch_reads_the_whole_shard_with_any_number_of_workers(num_workers: int) -> None:
    stream = OwnStream(Shard(300, 1, 3), num_workers=num_workers)
    for epoch in range(2):
        got: list[Any] = []
        for position in range(0, 300, 30):
            assert stream.available(epoch, position, 10) == 10
            got += stream.fetch(Span(epoch, position + 10, position + 20)).tolist()
        assert sorted(got) == list(range(1, 300, 3))
        assert stream.available(epoch, 300, 10) == 0
    stream.close()


def test_replicas_may_run_dry_at_different_times_and_say_so() -> None:
    streams = [OwnStream(Shard(5, rank, 2)) for rank in range(2)]
    assert [stream.available(0, 0, 3) for stream in streams] == [3, 2]
    with pytest.raises(DataError, match="available"):
        streams[1].fetch(Span(0, 3, 6))
