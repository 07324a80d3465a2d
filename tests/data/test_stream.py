from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from swell.data.span import Span
from swell.data.stream import Stream
from swell.errors import ConfigError, DataError, LoadError
from tests.data.interruption import interrupted


class Numbers(IterableDataset[int]):
    """``n`` numbers, other ones in each epoch; counts how many were read."""

    def __init__(self, n: int) -> None:
        self.n, self.epoch, self.read = n, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for i in range(self.n):
            self.read += 1
            yield 1000 * self.epoch + i


class Skipping(Numbers):
    def skip(self, count: int) -> Any:
        def rest() -> Iterator[int]:
            for i in range(count, self.n):
                self.read += 1
                yield 1000 * self.epoch + i

        return rest()


class Stateful(Numbers):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        begin, self.at = self.at, 0
        for i in range(begin, self.n):
            self.read += 1
            self.at = i + 1
            yield 1000 * self.epoch + i
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


KINDS = [Numbers, Skipping, Stateful]

STEPS = st.lists(
    st.tuples(
        st.integers(1, 4),  # replicas
        st.integers(1, 30),  # global batch
        st.sampled_from(["commit", "commit", "commit", "again", "crash", "crash with state"]),
    ),
    min_size=1,
    max_size=8,
)


def shares(start: int, stop: int, replicas: int) -> list[tuple[int, int]]:
    count = stop - start
    return [(start + count * rank // replicas, start + count * (rank + 1) // replicas) for rank in range(replicas)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(n=st.integers(0, 120), steps=STEPS)
def test_every_sample_is_used_once_and_in_order_for_any_worlds_batches_and_crashes(
    kind: type[Numbers], n: int, steps: list[tuple[int, int, str]]
) -> None:
    streams: list[Stream] = []
    state: dict[str, Any] = {}
    committed: list[int] = []
    for epoch in range(2):
        position = turn = 0
        while True:
            replicas, batch, fate = steps[turn % len(steps)]
            turn += 1
            while len(streams) < replicas:
                streams.append(Stream(kind(n)))
                streams[-1].load_state_dict(state)
            answers = {stream.available(epoch, position, batch) for stream in streams[:replicas]}
            assert len(answers) == 1, "every replica must know the same"
            (count,) = answers
            assert count == min(batch, n - position)
            if count == 0:
                break
            got = [
                value
                for stream, (start, stop) in zip(streams, shares(position, position + count, replicas), strict=False)
                if start < stop
                for value in stream.fetch(Span(epoch, start, stop)).tolist()
            ]
            if fate == "commit" or turn > 40:
                committed += got
                position += count
            if fate.startswith("crash"):
                state = streams[0].state_dict() if fate == "crash with state" else {}
                streams.clear()
    assert committed == [1000 * epoch + i for epoch in range(2) for i in range(n)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_one_worker_reads_the_same_stream(kind: type[Numbers]) -> None:
    stream = Stream(kind(200), num_workers=1)
    for epoch in range(2):
        for position in range(0, 200, 24):
            count = stream.available(epoch, position, 24)
            assert count == min(24, 200 - position)
            half = position + count // 2
            for start, stop in [(half, position + count), (position, half)]:
                expected = [1000 * epoch + i for i in range(start, stop)]
                assert stream.fetch(Span(epoch, start, stop)).tolist() == expected
        assert stream.available(epoch, 200, 24) == 0
    stream.close()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [Skipping, Stateful], ids=lambda kind: kind.__name__)
def test_a_data_set_that_can_resume_is_not_read_from_its_beginning(kind: type[Numbers], num_workers: int) -> None:
    resume = "state" if kind is Stateful else "reread"
    before = Stream(kind(500), num_workers=num_workers, resume=resume)
    for position in range(0, 300, 30):
        before.available(1, position, 30)
    state = before.state_dict()
    before.close()
    dataset = kind(500)
    after = Stream(dataset, num_workers=num_workers, resume=resume)
    after.load_state_dict(state)
    assert after.available(1, 300, 30) == 30
    assert after.fetch(Span(1, 300, 310)).tolist() == list(range(1300, 1310))
    assert dataset.read <= 30 + 30 * (1 - num_workers)
    after.close()


def test_a_state_of_another_epoch_or_beyond_the_position_is_passed_over() -> None:
    before = Stream(Stateful(100))
    before.available(0, 0, 50)
    before.available(0, 50, 10)
    for epoch, position in [(0, 20), (1, 60), (1, 0)]:
        after = Stream(Stateful(100))
        after.load_state_dict(before.state_dict())
        after.available(epoch, position, 10)
        batch = after.fetch(Span(epoch, position, position + 10)).tolist()
        assert batch == [1000 * epoch + i for i in range(position, position + 10)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_persistent_workers_and_new_ones_read_every_epoch(num_workers: int) -> None:
    for persistent in {False, num_workers > 0}:
        stream = Stream(FromZero(70), num_workers=num_workers, persistent_workers=persistent)
        for epoch in range(3):
            assert stream.available(epoch, 0, 100) == 70
            assert stream.fetch(Span(epoch, 60, 70)).tolist() == list(range(60, 70))
        stream.close()


class FromZero(IterableDataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


SAMPLES: list[Any] = [
    {"x": torch.arange(6).reshape(2, 3), "name": "a"},
    (torch.tensor(1.5), torch.ones(2, dtype=torch.bfloat16)),
    [torch.arange(6)[::2], np.float32(3)],
    torch.zeros(0, 3),
    torch.tensor([1.0], requires_grad=True),
]


class Mixed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(SAMPLES)


def test_samples_of_every_kind_come_whole_out_of_a_worker() -> None:
    stream = Stream(Mixed(), num_workers=1, collate_fn=list)
    assert stream.available(0, 0, 10) == len(SAMPLES)
    got = stream.fetch(Span(0, 0, len(SAMPLES)))
    assert torch.equal(got[0]["x"], SAMPLES[0]["x"])
    assert got[0]["name"] == "a"
    assert torch.equal(got[1][0], SAMPLES[1][0])
    assert torch.equal(got[1][1], SAMPLES[1][1])
    assert got[2][0].tolist() == [0, 2, 4]
    assert got[2][1] == 3
    assert got[3].shape == (0, 3)
    assert got[4].requires_grad
    got[0]["x"].zero_()  # a step that is done again gets the sample as it was
    assert torch.equal(stream.fetch(Span(0, 0, 1))[0]["x"], SAMPLES[0]["x"])
    stream.close()


class FailsOnce(Numbers):
    failed = False

    def __iter__(self) -> Iterator[int]:
        for value in super().__iter__():
            if value == 40 and not self.failed:
                self.failed = True
                raise OSError("the network is down")
            yield value


def test_an_error_of_the_data_set_says_where_and_loses_nothing() -> None:
    stream = Stream(FailsOnce(100))
    assert stream.available(0, 0, 32) == 32
    with pytest.raises(LoadError, match=r"position 32 of epoch 0.*OSError"):
        stream.available(0, 32, 32)
    assert stream.available(0, 32, 32) == 32
    assert stream.fetch(Span(0, 36, 44)).tolist() == list(range(36, 44))


class DiesOnce(FromZero):
    def __init__(self, n: int, trace: Path) -> None:
        super().__init__(n)
        self.trace = trace

    def __iter__(self) -> Iterator[int]:
        for i in range(self.n):
            if i == 40 and not self.trace.exists():
                self.trace.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield i


# torch's handler of SIGCHLD raises wherever the main thread is; inside a __del__ Python can only warn of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_worker_is_an_error_after_which_a_new_one_goes_on(tmp_path: Path) -> None:
    stream = Stream(DiesOnce(300, tmp_path / "died"), num_workers=1)
    failures = 0
    while True:
        try:
            assert stream.available(0, 0, 200) == 200
            break
        except RuntimeError as error:
            assert "DataLoader worker" in str(error) + str(error.__cause__)
            failures += 1
    assert 1 <= failures <= 2
    assert stream.fetch(Span(0, 100, 200)).tolist() == list(range(100, 200))
    stream.close()


def test_an_error_at_any_instruction_loses_nothing() -> None:
    for prepare in [(), (0,), (0, 16)]:  # steps done before, so that samples are read, kept and forgotten
        for at in itertools.count():
            stream = Stream(Stateful(100))
            for position in prepare:
                stream.available(0, position, 16)
                stream.fetch(Span(0, position, position + 8))
            position = 16 * len(prepare)

            def step(stream: Stream = stream, position: int = position) -> list[int]:
                assert stream.available(0, position, 16) == 16
                return stream.fetch(Span(0, position + 4, position + 16)).tolist()

            reached = interrupted(step, at)
            assert step() == list(range(position + 4, position + 16))
            if not reached:
                break
        assert at > 30


def test_asking_for_more_than_there_is_says_to_ask_first() -> None:
    stream = Stream(Numbers(10))
    with pytest.raises(DataError, match=r"10 samples.*available"):
        stream.fetch(Span(0, 8, 12))


def test_a_stream_that_has_become_shorter_is_noticed() -> None:
    stream = Stream(Numbers(10))
    with pytest.raises(DataError, match=r"10 samples.*20"):
        stream.available(0, 20, 4)


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_without_asking_first_a_stream_is_read_as_far_as_is_fetched(sizes: list[int]) -> None:
    dataset = Numbers(100)
    stream = Stream(dataset)
    position = 0
    for size in sizes:
        assert stream.fetch(Span(0, position, position + size)).tolist() == list(range(position, position + size))
        position += size
    assert dataset.read == position


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 2}, 'split="dataset"'),
        ({"in_order": False}, "in_order"),
        ({"persistent_workers": True}, "persistent_workers"),
        ({"prefetch_factor": 3}, "prefetch_factor"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Stream(Numbers(10), **arguments)


def test_a_data_set_with_samples_by_index_is_sent_to_the_feed() -> None:
    with pytest.raises(ConfigError, match="Feed"):
        Stream(range(10))
