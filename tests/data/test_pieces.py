from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from swell.data.pieces import PieceError, cut, join
from tests.data.same_batches import assert_same

Point = namedtuple("Point", ["x", "y"])

LEAVES = st.sampled_from(["tensor", "array", "int", "float", "str", "bytes", "numpy scalar", "bool"])
SHAPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("tuple"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("list"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("dict"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("ordered"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("user"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("point"), st.lists(inner, min_size=2, max_size=2)),
    ),
    max_leaves=6,
)


def sample(shape: Any, i: int) -> Any:
    """Sample number ``i`` of a data set whose samples are built like ``shape``."""
    if isinstance(shape, str):
        return {
            "tensor": torch.full((2, 3), i),
            "array": np.full(3, i, dtype=np.float32),
            "int": i,
            "float": i / 7,
            "str": f"sample {i}",
            "bytes": b"%d" % i,
            "numpy scalar": np.float32(i),
            "bool": i % 2 == 0,
        }[shape]
    kind, inner = shape
    items = [sample(part, i) for part in inner]
    named = {f"field {k}": item for k, item in enumerate(items)}
    return {
        "tuple": lambda: tuple(items),
        "list": lambda: items,
        "dict": lambda: named,
        "ordered": lambda: OrderedDict(named),
        "user": lambda: UserDict(named),
        "point": lambda: Point(*items),
    }[kind]()


@given(shape=SHAPES, size=st.integers(1, 8), data=st.data())
def test_a_cut_batch_is_the_batch_of_the_samples_cut(shape: Any, size: int, data: st.DataObject) -> None:
    samples = [sample(shape, i) for i in range(size)]
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    assert_same(cut(default_collate(samples), start, stop, size=size), default_collate(samples[start:stop]))


@given(shape=SHAPES, sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_joined_batches_are_the_batch_of_all_samples(shape: Any, sizes: list[int]) -> None:
    samples = [sample(shape, i) for i in range(sum(sizes))]
    rest, batches = iter(samples), []
    for size in sizes:
        batches.append(default_collate([next(rest) for _ in range(size)]))
    assert_same(join(batches), default_collate(samples))


def test_containers_keep_their_extra_attributes() -> None:
    class Record(UserDict[str, Any]):
        source = "unknown"

    record = Record(x=1)
    record.source = "camera"
    batch = default_collate([record, record])
    assert cut(batch, 0, 1, size=2).source == "camera"
    assert join([batch, batch]).source == "camera"


@pytest.mark.parametrize(
    "batch",
    [
        torch.tensor(1.0),
        torch.zeros(3, 2),
        {"x": torch.zeros(2), "lengths": [1, 2]},
        object(),
        torch.zeros(2, 2).to_sparse(),
        [torch.zeros(2), ("a", "b", "c")],
        "ab",
    ],
    ids=["scalar", "other size", "numbers", "object", "sparse", "other number of strings", "string"],
)
def test_a_batch_whose_samples_cannot_be_told_apart_is_refused(batch: Any) -> None:
    with pytest.raises(PieceError):
        cut(batch, 0, 1, size=2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64)),
        ({"x": torch.zeros(2)}, {"y": torch.zeros(2)}),
        ([torch.zeros(2)], [torch.zeros(2), torch.zeros(2)]),
        (["a"], [torch.zeros(2)]),
        (torch.zeros(2), ["a"]),
        ({"x": torch.zeros(2)}, torch.zeros(2)),
    ],
    ids=["shape", "type", "keys", "length", "text and tensor", "tensor and text", "structure"],
)
def test_batches_that_are_not_alike_are_not_joined(first: Any, second: Any) -> None:
    with pytest.raises(PieceError):
        join([first, second])
