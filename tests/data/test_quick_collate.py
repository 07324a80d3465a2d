"""Batches joined by numpy are those of ``default_collate``: the same values, types and errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from swell.core.order import Sequential
from swell.data.feed import Feed
from swell.data.quick_collate import quick_collate
from swell.data.span import Span
from tests.data.same_batches import assert_equal, assert_same

DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "int16", "bool", "complex64")


class Pair(NamedTuple):
    image: np.ndarray
    label: int


def check_same(ours: Any, theirs: Any) -> None:
    assert_same(ours, theirs, check_same_tensors)


def check_same_tensors(ours: Tensor, theirs: Tensor) -> None:
    assert_equal(ours, theirs)
    assert ours.stride() == theirs.stride()
    ours.flatten()[:1].zero_()  # it can be written to, as theirs


@st.composite
def samples(draw: st.DrawFn) -> list[Any]:
    dtype, count = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 5))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    seed = np.random.default_rng(draw(st.integers(0, 99)))
    form = draw(st.sampled_from(("bare", "tuple", "dict", "named", "list", "nested", "tensors", "empty")))
    turned = draw(st.booleans())
    made = []
    for number in range(count):
        array = (seed.random(shape) * 50).astype(dtype)
        array = np.ascontiguousarray(array).T if turned else array
        label = int(seed.integers(9))
        made.append(
            {
                "bare": array,
                "tuple": (array, label, f"sample {number}"),
                "dict": {"image": array, "weight": float(label)},
                "named": Pair(array, label),
                "list": [array, torch.full((2,), label)],
                "nested": {"both": (array, {"again": array + array})},
                "tensors": (torch.full((2,), label), torch.tensor(label)),
                "empty": (),
            }[form]
        )
    return made


@given(samples())
def test_batches_are_those_of_default_collate(batch: list[Any]) -> None:
    check_same(quick_collate(batch), default_collate(batch))


@pytest.mark.parametrize(
    "batch",
    [
        [np.zeros(2, "float32"), np.zeros(2, "float64")],
        [np.zeros(2, "int64"), np.zeros(2, "float32")],
        [np.float32(1.5), np.float32(2.5)],
        [np.array(1.5), np.array(2.5)],
        [np.zeros(2), torch.ones(2, dtype=torch.float64)],
        [torch.ones(2), np.zeros(2, "float32")],
        [torch.ones(2), torch.ones(2, dtype=torch.float64)],
    ],
    ids=[
        "float32 and float64",
        "whole numbers and float32",
        "scalars",
        "no dimension",
        "an array and a tensor",
        "a tensor and an array",
        "tensors of two types",
    ],
)
def test_what_is_not_alike_is_left_to_default_collate(batch: list[Any]) -> None:
    try:
        expected = default_collate(batch)
    except Exception as error:
        with pytest.raises(type(error)):
            quick_collate(batch)
    else:
        check_same(quick_collate(batch), expected)


@pytest.mark.parametrize("first", [torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)])
def test_what_needs_a_gradient_still_does(first: Tensor) -> None:
    batch = [(first, 1), (torch.ones(2), 2)]
    ours, theirs = quick_collate(batch), default_collate(batch)
    assert ours[0].requires_grad and theirs[0].requires_grad
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ([np.zeros(3), np.zeros(5), np.zeros(1)], "equal size"),  # together as many numbers as three of the first
        ([np.array(["a"]), np.array(["b"])], "must contain"),
        ([np.array([None]), np.array([None])], "must contain"),
        ([(1, 2), (1,)], "equal size"),
        ([(1, 2), 3], "no len"),
        ([torch.ones(2), torch.ones(3)], "equal size"),
        ([torch.eye(2).to_sparse()], "sparse tensors"),
    ],
    ids=["sizes", "words", "objects", "lengths", "a number among tuples", "sizes of tensors", "sparse"],
)
def test_errors_are_those_of_default_collate(batch: list[Any], error: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=error):
        quick_collate(batch)


@pytest.mark.parametrize(
    ("kind", "sample"),
    [(np.ndarray, np.zeros(2)), (torch.Tensor, torch.zeros(2)), (tuple, (1, 2))],
    ids=["arrays", "tensors", "tuples"],
)
def test_a_way_that_default_collate_was_taught_is_kept(
    monkeypatch: pytest.MonkeyPatch, kind: type, sample: Any
) -> None:
    monkeypatch.setitem(default_collate_fn_map, kind, lambda batch, *, collate_fn_map=None: "taught")
    assert quick_collate([sample]) == "taught"


def test_a_feed_gives_what_a_plain_loader_gives() -> None:
    data = [(np.full((2, 3), number, "float32"), number) for number in range(10)]
    feed = Feed(data, lambda epoch: Sequential(10))
    for number, batch in enumerate(DataLoader(data, batch_size=5)):  # type: ignore[arg-type]
        check_same(feed.fetch(Span(0, 5 * number, 5 * number + 5)), batch)
