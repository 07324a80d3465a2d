"""A largest batch, bounds on the micro-batch, either or both: what they allow on how many replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.planning import plan
from swell.core.world_bounds import batches_on, largest_batch, world_bounds
from swell.errors import PlanError

MICRO = st.tuples(st.integers(1, 40), st.integers(0, 40)).map(lambda pair: (pair[0], pair[0] + pair[1]))
BOUNDS = {"base": st.integers(1, 120), "more": st.none() | st.integers(0, 200), "micro": st.none() | MICRO}


def can_be_planned(batch: int, replicas: int, micro: tuple[int, int] | None) -> bool:
    low, high = micro or (None, None)
    try:
        plan(batch, replicas, min_micro=low, max_micro=high)
    except PlanError:
        return False
    return True


@given(replicas=st.integers(1, 12), **BOUNDS)
def test_what_may_be_chosen_is_what_can_be_planned_within_the_bounds(replicas, base, more, micro):
    most = None if more is None else base + more
    limit = largest_batch(replicas, base=base, max_batch=most, micro=micro)
    possible = [batch for batch in range(base, limit + 1) if can_be_planned(batch, replicas, micro)]
    (world,) = world_bounds([replicas], base=base, max_batch=most, micro=micro)
    assert world.batches == ((possible[0], possible[-1]) if possible else None)
    assert bool(world.reason) == (world.batches is None)


@given(replicas=st.integers(1, 100), base=st.integers(1, 1000), micro=MICRO)
def test_local_bounds_alone_rule_out_no_world_and_allow_one_full_micro_batch_a_replica(replicas, base, micro):
    low, high = batches_on(replicas, base=base, max_batch=None, micro=micro)
    assert base <= low <= high and replicas * micro[0] <= low
    if replicas * micro[1] >= base:
        assert high == replicas * micro[1]
    else:
        assert high == low  # the base batch, or the next that can be made of such micro-batches, by accumulation


@given(replicas=st.integers(2, 30), **BOUNDS)
def test_whatever_fits_on_some_replicas_fits_on_fewer(replicas, base, more, micro):
    most = None if more is None else base + more
    worlds = world_bounds(range(1, replicas + 1), base=base, max_batch=most, micro=micro)
    fits = [world.batches is not None for world in worlds]
    assert fits == sorted(fits, reverse=True)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (
            {"replicas": 11, "base": 128, "max_batch": 1000, "micro": (100, 500)},
            "a largest batch of 1000 samples rules 11 replicas out: at least 100 on each make 1100. "
            "Raise the largest batch to 1100 or more, or lower the smallest micro-batch to 90 or less, or run on at "
            "most 10 replicas.",
        ),
        (
            {"replicas": 1, "base": 33, "max_batch": 40, "micro": (30, 30)},
            "a largest batch of 40 samples rules 1 replica out: from 33 on, the first that can be made of "
            "micro-batches of 30 samples on 1 replica is 60. Raise the largest batch to 60 or more, or widen the "
            "bounds on micro-batches.",
        ),
        (
            {"replicas": 9, "base": 8, "max_batch": 8, "micro": None},
            "a largest batch of 8 samples rules 9 replicas out: at least 1 on each make 9. Raise the "
            "largest batch to 9 or more, or run on at most 8 replicas.",
        ),
    ],
)
def test_a_world_that_is_ruled_out_names_the_bounds_and_what_to_change(bounds, message):
    with pytest.raises(PlanError) as error:
        batches_on(**bounds)
    assert str(error.value) == message


def test_below_the_base_batch_only_when_asked():
    assert batches_on(1, base=33, max_batch=40, micro=(30, 30), shrink=True) == (30, 30)
