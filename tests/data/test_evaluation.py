from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from swell.data.evaluation import batches_of, evaluation_loader, share
from swell.errors import ConfigError


class Counting(IterableDataset[int]):
    """The numbers below ``n``, split over workers as torch asks of iterable data sets."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(self.n) if info is None else range(info.id, self.n, info.num_workers))


class Sized(Counting):
    def __len__(self) -> int:
        return self.n


def read(loader: Any) -> list[int]:
    return [int(value) for batch in loader for value in batch]


SIZES = st.integers(0, 60)
REPLICAS = st.integers(1, 7)
BATCHES = st.integers(1, 20)


@given(n=SIZES, replicas=REPLICAS, batch_size=BATCHES, drop_last=st.booleans())
def test_runs_of_batches_are_the_loaders_own_batches(n: int, replicas: int, batch_size: int, drop_last: bool) -> None:
    loader: Any = DataLoader(range(n), batch_size=batch_size, drop_last=drop_last)  # type: ignore[arg-type]
    runs = [share(len(loader), rank=rank, replicas=replicas) for rank in range(replicas)]
    found = [batch.tolist() for run in runs if run for batch in batches_of(loader, run)]
    assert found == [batch.tolist() for batch in loader]


@given(n=SIZES, replicas=REPLICAS, batch_size=BATCHES)
def test_every_sample_is_evaluated_once_and_in_order(n: int, replicas: int, batch_size: int) -> None:
    loaders = [
        evaluation_loader(range(n), rank=rank, replicas=replicas, batch_size=batch_size) for rank in range(replicas)
    ]
    assert [value for loader in loaders for value in read(loader)] == list(range(n))


@given(n=SIZES, replicas=REPLICAS, batch_size=BATCHES)
def test_loaders_know_their_length_and_can_be_read_again(n: int, replicas: int, batch_size: int) -> None:
    for rank in range(replicas):
        loader = evaluation_loader(range(n), rank=rank, replicas=replicas, batch_size=batch_size)
        batches = [batch.tolist() for batch in loader]
        assert len(loader) == len(batches)
        assert batches == [batch.tolist() for batch in loader]
        assert all(len(batch) == batch_size for batch in batches[:-1])


@given(n=SIZES, replicas=REPLICAS)
def test_no_replica_has_two_samples_more_than_another(n: int, replicas: int) -> None:
    sizes = [len(share(n, rank=rank, replicas=replicas)) for rank in range(replicas)]
    assert max(sizes) - min(sizes) <= 1


@given(n=SIZES, replicas=REPLICAS, batch_size=BATCHES)
def test_every_sample_of_an_iterable_is_evaluated_once(n: int, replicas: int, batch_size: int) -> None:
    loaders = [
        evaluation_loader(Sized(n), rank=rank, replicas=replicas, batch_size=batch_size) for rank in range(replicas)
    ]
    assert sorted(value for loader in loaders for value in read(loader)) == list(range(n))
    assert all(len(loader) == len(list(loader)) for loader in loaders)
    assert all(read(loader) == read(loader) for loader in loaders)


def test_an_iterable_of_unknown_length_has_a_loader_of_unknown_length() -> None:
    loader = evaluation_loader(Counting(9), rank=0, replicas=2, batch_size=2)
    assert read(loader) == [0, 1, 4, 5, 8]
    with pytest.raises(TypeError):
        len(loader)


@pytest.mark.parametrize("dataset", [TensorDataset(torch.arange(50)), Counting(50)], ids=["map", "iterable"])
def test_workers_read_every_sample_once(dataset: Any) -> None:
    got: list[int] = []
    for rank in range(3):
        loader = evaluation_loader(
            dataset,
            rank=rank,
            replicas=3,
            batch_size=4,
            num_workers=2,
            collate_fn=lambda samples: [s[0] if isinstance(s, tuple) else s for s in samples],
        )
        got += read(loader)
    assert sorted(got) == list(range(50))


def test_more_replicas_than_samples_leave_some_with_an_empty_loader() -> None:
    loaders = [evaluation_loader(range(2), rank=rank, replicas=5, batch_size=4, num_workers=0) for rank in range(5)]
    assert sorted(len(loader) for loader in loaders) == [0, 0, 0, 1, 1]
    assert sorted(value for loader in loaders for value in read(loader)) == [0, 1]


@pytest.mark.parametrize(
    "arguments", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}, {"drop_last": True}], ids=str
)
def test_what_would_lose_or_repeat_samples_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        evaluation_loader(range(9), rank=0, replicas=2, batch_size=2, **arguments)


@pytest.mark.parametrize(
    ("rank", "replicas", "batch_size"), [(2, 2, 4), (-1, 2, 4), (0, 0, 4), (0, 1, 0), (0, 1, 2.5)], ids=str
)
def test_counts_that_cannot_be_are_refused(rank: int, replicas: int, batch_size: int) -> None:
    with pytest.raises(ConfigError):
        evaluation_loader(range(9), rank=rank, replicas=replicas, batch_size=batch_size)


def test_arguments_that_change_nothing_may_be_said() -> None:
    loader = evaluation_loader(range(4), rank=0, replicas=1, batch_size=2, shuffle=False, drop_last=False)
    assert read(loader) == [0, 1, 2, 3]
