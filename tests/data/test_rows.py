"""How many samples a batch seems to hold."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swell.data.rows import begins_with_rows, rows, samples_left_out

tensors = st.lists(st.integers(0, 4), max_size=2).map(torch.zeros)
values = st.one_of(tensors, st.integers(), st.text(max_size=2), st.none())
batches = st.recursive(
    values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    ),
    max_leaves=5,
)


def flat(batch: Any) -> list[Tensor]:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return [tensor for value in batch for tensor in flat(value)]
    return [batch] if isinstance(batch, Tensor) else []


@given(batches)
def test_rows_are_the_first_dimension_that_all_tensors_share(batch: Any) -> None:
    sizes = {tuple(tensor.shape[:1]) for tensor in flat(batch)}
    expected = sizes.pop()[0] if len(sizes) == 1 and sizes != {()} else None
    assert rows(batch) == expected


@given(batches, st.integers(1, 4))
def test_a_batch_that_begins_with_the_rows_asked_for_leaves_none_out(batch: Any, asked: int) -> None:
    if begins_with_rows(batch, asked):
        assert rows(batch) in (asked, None)
        assert samples_left_out(batch, asked) == 0


def test_most_batches_begin_with_their_rows() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4)
    for batch in (x, [x, y], (x, y)):
        assert begins_with_rows(batch, 4)
        assert not begins_with_rows(batch, 3)
    assert not begins_with_rows([], 4)
    assert not begins_with_rows(torch.tensor(4.0), 4)
