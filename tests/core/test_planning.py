"""How a step is laid out: exact for every batch, within the bounds, in rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swell.core.apportion import apportion
from swell.core.planning import halved, plan, plan_remainder, with_equal_rounds
from swell.core.types import MicroBatch, Plan
from swell.errors import ConfigError, PlanError
from tests.reference import planning as reference

BATCHES = st.integers(1, 200)
REPLICAS = st.integers(1, 12)
SPEEDS = st.one_of(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.floats(0.01, 100))


@st.composite
def bounds(draw: st.DrawFn) -> dict[str, int | None]:
    low = draw(st.none() | st.integers(1, 20))
    high = draw(st.none() | st.integers(low or 1, 60))
    return {"min_micro": low, "max_micro": high}


@st.composite
def capacities(draw: st.DrawFn, replicas: int) -> list[float] | None:
    return draw(st.none() | st.lists(SPEEDS, min_size=replicas, max_size=replicas))


def sizes(layout: Plan) -> list[list[int]]:
    return [[micro.size for micro in share] for share in layout.shares]


def spans(layout: Plan) -> list[list[list[int]]]:
    return [[list(range(m.offset, m.offset + m.size)) for m in share] for share in layout.shares]


def assert_exact(layout: Plan, batch: int, replicas: int) -> None:
    """Each sample of the step lies in one micro-batch, and the weights are the micro-batches' parts of the step."""
    assert (layout.global_batch, layout.replicas) == (batch, replicas)
    assert sorted(sample for share in spans(layout) for micro in share for sample in micro) == list(range(batch))
    micros = [micro for share in layout.shares for micro in share]
    assert all(micro.weight == micro.size / batch for micro in micros)
    assert math.isclose(math.fsum(micro.weight for micro in micros), 1.0, rel_tol=1e-14)


# Plans


@given(
    batch=BATCHES, replicas=REPLICAS, bounds=bounds(), constant=st.booleans(), wish=st.integers(1, 4), data=st.data()
)
def test_a_plan_is_exact_and_within_its_bounds_or_no_layout_exists(
    batch: int, replicas: int, bounds: dict, constant: bool, wish: int, data: st.DataObject
) -> None:
    capacity = data.draw(capacities(replicas))
    low, high = bounds["min_micro"] or 1, bounds["max_micro"] or reference.UNBOUNDED
    arguments = {**bounds, "constant_micro": constant, "capacity": capacity, "min_accumulation": wish}
    if not reference.fits(batch, replicas, low=low, high=high, constant=constant):
        with pytest.raises(PlanError):
            plan(batch, replicas, **arguments)
        return
    layout = plan(batch, replicas, **arguments)
    assert_exact(layout, batch, replicas)
    assert all(share for share in layout.shares), "every replica computes something"
    every_size = [size for share in sizes(layout) for size in share]
    assert low <= min(every_size)
    assert max(every_size) <= high
    assert all(max(share) - min(share) <= 1 for share in sizes(layout))
    if constant:
        assert len(set(every_size)) == 1


@given(batch=BATCHES, replicas=REPLICAS, bounds=bounds(), wish=st.integers(1, 4), data=st.data())
def test_shares_follow_capacity_and_are_cut_as_the_slow_twin_cuts_them(
    batch: int, replicas: int, bounds: dict, wish: int, data: st.DataObject
) -> None:
    capacity = data.draw(capacities(replicas))
    low, high = bounds["min_micro"] or 1, bounds["max_micro"] or reference.UNBOUNDED
    assume(batch >= replicas * low)
    twin = reference.even_layout(batch, capacity or [1] * replicas, low=low, high=high, min_accumulation=wish)
    assume(twin is not None)
    assert twin is not None
    layout = plan(batch, replicas, **bounds, capacity=capacity, min_accumulation=wish)
    assert sizes(layout) == twin
    assert spans(layout) == reference.deal(twin)


@given(batch=BATCHES, replicas=REPLICAS, data=st.data())
def test_samples_are_dealt_out_in_rounds_in_rank_order(batch: int, replicas: int, data: st.DataObject) -> None:
    assume(batch >= replicas)
    max_micro, constant = data.draw(st.integers(1, 20)), data.draw(st.booleans())
    capacity = data.draw(capacities(replicas))
    layout = plan(batch, replicas, max_micro=max_micro, constant_micro=constant, capacity=capacity)
    assert spans(layout) == reference.deal(sizes(layout))


@given(replicas=REPLICAS, size=st.integers(1, 16), fewer=st.integers(1, 100), more=st.integers(1, 100), data=st.data())
def test_with_constant_micro_batches_more_accumulation_moves_no_sample_of_earlier_rounds(
    replicas: int, size: int, fewer: int, more: int, data: st.DataObject
) -> None:
    capacity = data.draw(capacities(replicas))
    one, other = (
        plan(number * size, replicas, min_micro=size, max_micro=size, constant_micro=True, capacity=capacity)
        for number in (replicas + fewer, replicas + fewer + more)
    )
    rounds = min(len(share) for layout in (one, other) for share in layout.shares)  # those that all take part in
    assert rounds >= 1
    for rank in range(replicas):
        offsets = [(turn * replicas + rank) * size for turn in range(rounds)]
        assert [micro.offset for micro in one.shares[rank][:rounds]] == offsets
        assert [micro.offset for micro in other.shares[rank][:rounds]] == offsets


def test_one_global_batch_takes_fewer_accumulation_steps_on_more_replicas() -> None:
    layouts = [plan(256, replicas, max_micro=64) for replicas in (1, 2, 4)]
    assert [layout.accumulation for layout in layouts] == [4, 2, 1]
    assert [layout.micro_batch for layout in layouts] == [64, 64, 64]


def test_a_batch_that_does_not_divide_gives_uneven_shares() -> None:
    layout = plan(256, 3, max_micro=64)
    assert layout.share_sizes() == (86, 85, 85)
    assert sizes(layout) == [[43, 43], [43, 42], [43, 42]]


@pytest.mark.parametrize(
    ("batch", "max_micro", "replicas", "accumulation", "micro_batch"),
    [
        (256, 64, 1, 4, 64),
        (256, 64, 2, 2, 64),
        (256, 64, 4, 1, 64),
        (256, 64, 8, 1, 32),
        (256, 64, 3, 2, 43),
        (256, 64, 5, 1, 52),
        (256, 100, 1, 3, 86),
        (256, 63, 1, 5, 52),
        (100, 64, 1, 2, 50),
        (100, 32, 1, 4, 25),
        (1000, 300, 2, 2, 250),
        (512, 48, 3, 4, 43),
        (64, 128, 3, 1, 22),
    ],
)
def test_the_limit_and_the_batch_hold_where_rounding_down_broke_them(
    batch: int, max_micro: int, replicas: int, accumulation: int, micro_batch: int
) -> None:
    layout = plan(batch, replicas, max_micro=max_micro)
    assert_exact(layout, batch, replicas)
    assert (layout.accumulation, layout.micro_batch) == (accumulation, micro_batch)
    assert layout.micro_batch <= max_micro


def test_a_batch_smaller_than_the_world_is_refused_with_both_remedies() -> None:
    with pytest.raises(PlanError) as caught:
        plan(10, 16, max_micro=100)
    assert str(caught.value) == (
        "global batch 10 cannot feed 16 replicas: each needs at least 1 sample per step. "
        "Raise the batch size to 16 or more, or run on at most 10 replicas."
    )


def test_a_share_below_the_smallest_micro_batch_is_refused_with_three_remedies() -> None:
    with pytest.raises(PlanError) as caught:
        plan(1000, 11, min_micro=100)
    assert str(caught.value) == (
        "global batch 1000 cannot feed 11 replicas: each needs at least 100 samples per step (min_micro=100). "
        "Raise the batch size to 1100 or more, lower min_micro to 90 or less, or run on at most 10 replicas."
    )


def test_bounds_that_exclude_every_layout_name_the_nearest_batches_that_work() -> None:
    with pytest.raises(PlanError) as caught:
        plan(100, 1, min_micro=60, max_micro=64)
    assert str(caught.value) == (
        "global batch 100 cannot be laid out on 1 replica in micro-batches of 60 to 64 samples. "
        "Use 64 or 120, the nearest that can, or widen the bounds on micro-batches."
    )


def test_shares_are_uneven_by_a_micro_batch_where_the_bounds_leave_nothing_else() -> None:
    assert sizes(plan(180, 2, min_micro=60, max_micro=64)) == [[60, 60], [60]]


# Constant micro-batches


def test_constant_micro_batches_have_the_largest_size_that_divides_the_batch() -> None:
    layout = plan(256, 3, max_micro=64, constant_micro=True)
    assert sizes(layout) == [[64, 64], [64], [64]]
    assert sizes(plan(96, 2, max_micro=64, constant_micro=True)) == [[48], [48]]


@given(batch=BATCHES, replicas=REPLICAS, high=st.integers(1, 60), wish=st.integers(1, 4))
def test_no_larger_constant_size_would_do_with_as_much_accumulation(
    batch: int, replicas: int, high: int, wish: int
) -> None:
    assume(batch >= replicas)
    chosen = plan(batch, replicas, max_micro=high, constant_micro=True, min_accumulation=wish).micro_batch

    def rank(size: int) -> tuple[int, int]:
        return min(wish, batch // size // replicas), size

    able = [size for size in range(1, high + 1) if batch % size == 0 and batch // size >= replicas]
    assert chosen == max(able, key=rank)


def test_a_batch_without_a_constant_size_names_the_nearest_that_have_one() -> None:
    with pytest.raises(PlanError) as caught:
        plan(250, 2, min_micro=30, max_micro=32, constant_micro=True)
    assert str(caught.value) == (
        "global batch 250 cannot be laid out on 2 replicas in micro-batches of 30 to 32 samples, all of one size. "
        "Use 248 or 256, the nearest that can, or widen the bounds on micro-batches."
    )


# Capacity


def test_a_replica_twice_as_fast_gets_twice_the_share() -> None:
    assert plan(90, 2, capacity=[2.0, 1.0]).share_sizes() == (60, 30)
    assert plan(128, 3, max_micro=32, capacity=[1, 2, 1]).share_sizes() == (32, 64, 32)
    assert sizes(plan(128, 3, max_micro=32, constant_micro=True, capacity=[1, 2, 1])) == [[32], [32, 32], [32]]


def test_the_slowest_replica_still_gets_a_sample() -> None:
    assert plan(10, 3, capacity=[1000, 1, 1]).share_sizes() == (8, 1, 1)
    assert plan(60, 3, min_micro=8, capacity=[1000, 1, 1]).share_sizes() == (44, 8, 8)


@given(batch=BATCHES, replicas=REPLICAS, data=st.data())
def test_shares_are_within_a_sample_of_their_quota_where_all_are_large(
    batch: int, replicas: int, data: st.DataObject
) -> None:
    speeds = data.draw(st.lists(st.sampled_from([1.0, 1.5, 2.0]), min_size=replicas, max_size=replicas))
    assume(batch >= 3 * replicas)
    shares = plan(batch, replicas, capacity=speeds).share_sizes()
    for share, speed in zip(shares, speeds, strict=True):
        assert abs(share - batch * speed / sum(speeds)) < 1 + 1e-9


@given(batch=BATCHES, replicas=REPLICAS, speed=SPEEDS)
def test_equal_capacities_change_nothing(batch: int, replicas: int, speed: float) -> None:
    assume(batch >= replicas)
    assert plan(batch, replicas, capacity=[speed] * replicas) == plan(batch, replicas)


@given(total=st.integers(0, 500), weights=st.lists(SPEEDS, min_size=1, max_size=10), at_least=st.integers(0, 5))
def test_apportionment_is_the_slow_twins(total: int, weights: list[float], at_least: int) -> None:
    assume(total >= at_least * len(weights))
    assert apportion(total, weights, at_least=at_least) == reference.divide(total, weights, at_least=at_least)


# Accumulation on request


def test_a_step_can_be_asked_for_in_two_parts() -> None:
    assert sizes(plan(256, 2, min_accumulation=2)) == [[64, 64], [64, 64]]
    assert sizes(plan(256, 2, max_micro=32, min_accumulation=2)) == sizes(plan(256, 2, max_micro=32))
    assert sizes(plan(256, 2, constant_micro=True, min_accumulation=2)) == [[64, 64], [64, 64]]


def test_accumulation_is_asked_for_only_as_far_as_sizes_allow() -> None:
    assert sizes(plan(3, 2, min_accumulation=4)) == [[1, 1], [1]]
    assert sizes(plan(64, 2, min_micro=20, min_accumulation=4)) == [[32], [32]]


# The last, short step


@given(
    count=BATCHES, replicas=REPLICAS, bounds=bounds(), constant=st.booleans(), wish=st.integers(1, 4), data=st.data()
)
def test_every_remainder_has_an_exact_layout_within_the_upper_bound(
    count: int, replicas: int, bounds: dict, constant: bool, wish: int, data: st.DataObject
) -> None:
    capacity = data.draw(capacities(replicas))
    layout = plan_remainder(
        count, replicas, **bounds, constant_micro=constant, capacity=capacity, min_accumulation=wish
    )
    assert_exact(layout, count, replicas)
    assert spans(layout) == reference.deal(sizes(layout))
    assert layout.micro_batch <= (bounds["max_micro"] or count)
    if constant:
        assert len({size for share in sizes(layout) for size in share} - {layout.micro_batch}) <= 1
    if count < replicas and not constant and capacity is None:
        assert layout.share_sizes() == (1,) * count + (0,) * (replicas - count)


@given(count=BATCHES, replicas=REPLICAS, max_micro=st.integers(1, 60), data=st.data())
def test_a_remainder_that_needs_no_exception_is_laid_out_like_any_step(
    count: int, replicas: int, max_micro: int, data: st.DataObject
) -> None:
    assume(count >= replicas)
    capacity = data.draw(capacities(replicas))
    assert plan_remainder(count, replicas, max_micro=max_micro, capacity=capacity) == plan(
        count, replicas, max_micro=max_micro, capacity=capacity
    )


@given(count=BATCHES, replicas=REPLICAS, size=st.integers(1, 32))
def test_a_constant_remainder_has_one_micro_batch_of_another_size_at_most(count: int, replicas: int, size: int) -> None:
    layout = plan_remainder(count, replicas, max_micro=size, constant_micro=True)
    odd = [micro for share in layout.shares for micro in share if micro.size != size]
    assert [micro.size for micro in odd] == ([count % size] if count % size else [])
    assert all(micro.offset + micro.size == count for micro in odd), "it comes last"


# What can never work


@pytest.mark.parametrize("call", [plan, plan_remainder])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch": 0}, r"(global_batch|count) is 0\b"),
        ({"global_batch": 25.6}, r"(global_batch|count) is 25\.6"),
        ({"global_batch": True}, r"(global_batch|count) is True"),
        ({"replicas": 0}, "replicas is 0"),
        ({"replicas": "4"}, "replicas is '4'"),
        ({"max_micro": 0}, "max_micro is 0"),
        ({"min_micro": -1}, "min_micro is -1"),
        ({"min_micro": 65, "max_micro": 64}, "min_micro is 65 and max_micro is 64.* to 64 or less"),
        ({"min_accumulation": 0}, "min_accumulation is 0"),
        ({"capacity": [1.0]}, "capacity has 1 .* 2"),
        ({"capacity": [1.0, 0.0]}, r"capacity\[1\] is 0\.0"),
        ({"capacity": [math.inf, 1.0]}, r"capacity\[0\] is inf"),
        ({"capacity": [math.nan, 1.0]}, r"capacity\[0\] is nan"),
        ({"capacity": ["fast", 1.0]}, r"capacity\[0\] is 'fast'"),
    ],
)
def test_arguments_that_can_never_work_are_refused(call, arguments: dict, message: str) -> None:
    arguments = {"global_batch": 256, "replicas": 2, **arguments}
    batch, replicas = arguments.pop("global_batch"), arguments.pop("replicas")
    with pytest.raises(ConfigError, match=message):
        call(batch, replicas, **arguments)


def test_numbers_from_numpy_are_numbers() -> None:
    layout = plan(np.int64(256), np.int32(2), max_micro=np.uint8(64), capacity=np.ones(2, dtype=np.float32))  # type: ignore[arg-type]
    assert layout == plan(256, 2, max_micro=64)
    assert all(type(value) is int for share in layout.shares for m in share for value in (m.offset, m.size))


@given(
    count=st.integers(1, 300),
    replicas=st.integers(1, 9),
    max_micro=st.integers(1, 40),
    speeds=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=9, max_size=9),
)
def test_equal_rounds_give_every_replica_as_many_micro_batches_and_change_nothing_else(
    count: int, replicas: int, max_micro: int, speeds: list[float]
) -> None:
    made = plan_remainder(count, replicas, max_micro=max_micro, capacity=speeds[:replicas])
    even = with_equal_rounds(made)
    assert {len(share) for share in even.shares} == {made.accumulation}
    assert even.global_batch == made.global_batch and even.share_sizes() == made.share_sizes()
    for before, after in zip(made.shares, even.shares, strict=True):
        assert samples_that_count(after) == samples_that_count(before)
        assert all(micro.size <= max_micro for micro in after)
        assert all(micro.weight in (0.0, pytest.approx(micro.size / count)) for micro in after)
        assert all(micro.size == 1 and micro.offset == 0 for micro in after if micro.weight == 0)
    assert sum(micro.weight for share in even.shares for micro in share) == pytest.approx(1.0)


def samples_that_count(share: tuple[MicroBatch, ...]) -> list[int]:
    return sorted(i for micro in share if micro.weight > 0 for i in range(micro.offset, micro.offset + micro.size))


@given(batch=BATCHES, replicas=REPLICAS, micro=st.none() | st.integers(1, 50))
def test_a_halved_step_leaves_every_replica_its_samples(batch: int, replicas: int, micro: int | None) -> None:
    layout = plan_remainder(batch, replicas, max_micro=micro)
    half = halved(layout)
    assert half.global_batch == batch
    assert sum(one.weight for share in half.shares for one in share) == pytest.approx(1.0)
    for before, after, cut in zip(spans(layout), spans(half), sizes(half), strict=True):
        assert [place for one in before for place in one] == [place for one in after for place in one]
        assert cut == [part for one in map(len, before) for part in ((one + 1) // 2, one // 2) if part]
