"""Rows of a TensorDataset read at once are the batches that default_collate makes of its samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from swell.core.order import Sequential, Shuffled
from swell.core.protocols import Order
from swell.data.feed import Feed
from swell.data.span import Span
from swell.data.tensor_rows import TensorRows
from swell.errors import LoadError
from tests.devices import needs_cuda

SHAPES = st.lists(st.integers(0, 3), max_size=3)
TYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])


class Opaque(Dataset[Any]):
    """The same samples, one at a time."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


@given(columns=st.lists(st.tuples(SHAPES, TYPES), min_size=1, max_size=3), data=st.data())
def test_a_batch_is_what_default_collate_makes_of_its_samples(columns: list[Any], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    tensors = [(torch.arange(count * 27) % 97)[: count * _size(s)].reshape(count, *s).to(kind) for s, kind in columns]
    dataset: Any = TensorDataset(*tensors)
    for _ in range(data.draw(st.integers(0, 2))):
        among = st.lists(st.integers(-len(dataset), len(dataset) - 1), min_size=1, max_size=9)
        dataset = Subset(dataset, data.draw(among))
    numbers = data.draw(st.lists(st.integers(-len(dataset), len(dataset) - 1), min_size=1, max_size=9))
    assert TensorRows.fits(dataset)
    rows = TensorRows(dataset)
    batch = rows.collate(rows.__getitems__(rows.prepared(np.array(numbers))))
    assert same(batch, default_collate([dataset[number] for number in numbers]))


def _size(shape: list[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


@given(spans=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 39), st.integers(1, 24)), max_size=8))
def test_a_feed_gives_the_same_batches_either_way(spans: list[tuple[int, int, int]]) -> None:
    dataset = TensorDataset(torch.randn(40, 3), torch.arange(40))

    def order_of(epoch: int) -> Order:
        return Shuffled(40, seed=5, epoch=epoch)

    quick, slow = Feed(dataset, order_of, sample_seed=7), Feed(Opaque(dataset), order_of, sample_seed=7)
    for epoch, start, count in spans:
        span = Span(epoch, start, min(start + count, 40))
        assert same(quick.fetch(span), slow.fetch(span))


class Marked(torch.Tensor):
    """A tensor of somebody's own class."""


@pytest.mark.parametrize(
    "dataset",
    [
        Opaque(TensorDataset(torch.zeros(4))),
        TensorDataset(torch.zeros(4, 3, 2).transpose(1, 2)),  # samples would keep the order of their memory
        TensorDataset(torch.zeros(4).as_subclass(Marked)),
        TensorDataset(torch.eye(4).to_sparse()),
        Subset(TensorDataset(torch.zeros(4)), torch.arange(3)),  # type: ignore[arg-type]
        Subset(Opaque(TensorDataset(torch.zeros(4))), [0, 1]),
        type("Own", (TensorDataset,), {})(torch.zeros(4)),
        list(range(4)),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_other_data_sets_are_read_sample_by_sample(dataset: Any) -> None:
    assert not TensorRows.fits(dataset)


def test_a_collate_fn_of_the_users_gets_samples() -> None:
    feed = Feed(TensorDataset(torch.arange(6)), lambda epoch: Sequential(6), collate_fn=len)
    assert feed.fetch(Span(0, 1, 4)) == 3


def test_tensors_that_change_are_read_as_they_are() -> None:
    dataset = TensorDataset(torch.zeros(6))
    feed = Feed(dataset, lambda epoch: Sequential(6))
    assert feed.fetch(Span(0, 0, 2))[0].tolist() == [0, 0]
    dataset.tensors[0].fill_(1)
    assert feed.fetch(Span(0, 2, 4))[0].tolist() == [1, 1]
    dataset.tensors = (torch.full((6,), 2.0),)
    assert feed.fetch(Span(0, 4, 6))[0].tolist() == [2, 2]


@pytest.mark.parametrize("dataset", [TensorDataset(torch.arange(6)), Subset(TensorDataset(torch.arange(6)), [0, 6])])
def test_an_index_out_of_range_is_named(dataset: Any) -> None:
    feed = Feed(dataset, lambda epoch: Sequential(2 if isinstance(dataset, Subset) else 8))
    with pytest.raises(LoadError, match="positions 0 to 2 of epoch 0") as raised:
        feed.fetch(Span(0, 0, 2))
    assert "index 6 is out of range for a data set of 6 samples" in str(raised.value.__cause__)


@needs_cuda
def test_rows_on_a_gpu_are_read_there() -> None:
    tensors = torch.randn(300, 5, device="cuda"), torch.arange(300, device="cuda")
    feed = Feed(TensorDataset(*tensors), lambda epoch: Shuffled(300, seed=1, epoch=epoch))
    order = Shuffled(300, seed=1, epoch=0).indices(0, 300)
    batch = feed.fetch(Span(0, 40, 90))
    assert batch[0].is_cuda and torch.equal(batch[0], tensors[0][order[40:90]])
    assert batch[1].tolist() == order[40:90].tolist()
