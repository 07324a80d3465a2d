"""What samples of an epoch count, in steps of a loop at the base batch."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.base_steps import base_steps, base_steps_of_epoch

lengths, bases = st.integers(1, 500), st.integers(1, 120)


@given(length=lengths, base=bases, batches=st.lists(st.integers(1, 200), min_size=1))
def test_every_layout_of_an_epoch_adds_up_to_the_steps_of_the_plain_loop(
    length: int, base: int, batches: list[int]
) -> None:
    ends, step = [0], 0
    while ends[-1] < length:
        ends.append(min(length, ends[-1] + batches[step % len(batches)]))
        step += 1
    total = sum(base_steps(start, stop, base=base, length=length) for start, stop in pairwise(ends))
    assert total == pytest.approx(base_steps_of_epoch(length, base=base), rel=1e-12)


@given(length=lengths, base=bases)
def test_at_the_base_batch_every_step_counts_exactly_one_and_the_short_one_too(length: int, base: int) -> None:
    starts = range(0, length, base)
    worth = [base_steps(start, min(length, start + base), base=base, length=length) for start in starts]
    assert worth == [1.0] * base_steps_of_epoch(length, base=base)


@given(length=lengths, base=bases, data=st.data())
def test_no_position_counts_less_than_its_part_of_a_base_batch_or_more_than_in_the_plain_loop(
    length: int, base: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, length - 1))
    worth = base_steps(start, start + 1, base=base, length=length)
    in_plain_loop = 1 / min(base, length - start // base * base)
    assert worth == pytest.approx(in_plain_loop, rel=1e-12)


@given(length=lengths, base=bases, data=st.data())
def test_where_the_short_step_is_dropped_samples_count_the_same(length: int, base: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    assert base_steps(start, stop, base=base, length=length, drop_last=True) == (stop - start) / base
