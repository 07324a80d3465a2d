"""Which batches fit on which replicas; every answer is checked by trying all layouts out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.planning import batch_bounds, feasible_replicas, nearest_batches, plan
from swell.errors import ConfigError, PlanError
from tests.reference import planning as reference

MOST = 120  # every batch up to here is tried out


@st.composite
def bounds(draw: st.DrawFn) -> dict[str, int | bool | None]:
    low = draw(st.none() | st.integers(1, 20))
    high = draw(st.none() | st.integers(low or 1, 40))
    return {"min_micro": low, "max_micro": high, "constant_micro": draw(st.booleans())}


def fitting(replicas: int, bounds: dict, *, lowest: int = 1, highest: int = MOST) -> list[int]:
    low, high = bounds["min_micro"] or 1, bounds["max_micro"] or reference.UNBOUNDED
    return [
        batch
        for batch in range(lowest, highest + 1)
        if reference.fits(batch, replicas, low=low, high=high, constant=bounds["constant_micro"])
    ]


@given(batch=st.integers(1, 60), more=st.none() | st.integers(0, 40), bounds=bounds())
def test_replicas_are_feasible_exactly_where_some_layout_exists(batch: int, more: int | None, bounds: dict) -> None:
    highest = batch + (more or 0)
    found = feasible_replicas(batch, among=range(1, highest + 2), max_batch=None if more is None else highest, **bounds)
    tried = [count for count in range(1, highest + 2) if fitting(count, bounds, lowest=batch, highest=highest)]
    assert found == tried


@given(replicas=st.integers(1, 8), lowest=st.integers(1, 60), more=st.integers(0, 40), bounds=bounds())
def test_the_smallest_and_largest_batch_that_fit_are_found_or_refused(
    replicas: int, lowest: int, more: int, bounds: dict
) -> None:
    tried = fitting(replicas, bounds, lowest=lowest, highest=lowest + more)
    if tried:
        found = batch_bounds(replicas, min_batch=lowest, max_batch=lowest + more, **bounds)
        assert found == (tried[0], tried[-1])
    else:
        with pytest.raises(PlanError):
            batch_bounds(replicas, min_batch=lowest, max_batch=lowest + more, **bounds)


@given(batch=st.integers(1, 60), replicas=st.integers(1, 4), bounds=bounds())
def test_the_nearest_batches_are_the_nearest_that_can_be_planned(batch: int, replicas: int, bounds: dict) -> None:
    below, above = nearest_batches(batch, replicas, **bounds)
    tried = fitting(replicas, bounds)
    assert below == max((fit for fit in tried if fit <= batch), default=None)
    assert above == min(fit for fit in tried if fit >= batch)
    assert plan(above, replicas, **bounds).global_batch == above


def test_a_count_that_is_feasible_makes_every_smaller_one_feasible() -> None:
    assert feasible_replicas(256, among=range(1, 9), max_micro=64, min_micro=48) == [1, 2, 3, 4, 5]
    assert feasible_replicas(256, among=[8, 2, 300, 4], max_micro=64) == [8, 2, 4], "in the order they were given"


def test_a_maximum_batch_and_a_lower_bound_limit_the_replicas() -> None:
    assert feasible_replicas(128, among=range(8, 13), min_micro=100, max_batch=1000) == [8, 9, 10]
    assert batch_bounds(10, min_batch=128, max_batch=1000, min_micro=100) == (1000, 1000)
    assert batch_bounds(8, min_batch=80, max_batch=80, min_micro=8, max_micro=10) == (80, 80)
    with pytest.raises(PlanError) as caught:
        batch_bounds(11, min_batch=128, max_batch=1000, min_micro=100)
    assert str(caught.value) == (
        "a maximum batch of 1000 cannot feed 11 replicas in micro-batches of at least 100 samples: that takes 1100 per "
        "step. Raise the maximum batch to 1100 or more, lower min_micro to 90 or less, or run on at most 10 replicas."
    )


def test_a_range_without_a_batch_that_fits_names_the_nearest_outside_it() -> None:
    with pytest.raises(PlanError, match=r"65 to 110 .* 1 replica .* 64 or 120"):
        batch_bounds(1, min_batch=65, max_batch=110, min_micro=60, max_micro=64)
    with pytest.raises(PlanError, match="192 or 256"):
        batch_bounds(3, min_batch=193, max_batch=200, min_micro=64, max_micro=64)


def test_large_batches_are_searched_in_few_steps() -> None:
    prime = 1_000_000_007
    assert nearest_batches(prime, 2, min_micro=2, constant_micro=True) == (prime - 1, prime + 1)
    assert feasible_replicas(prime, among=[1, 2], min_micro=2, constant_micro=True) == [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: feasible_replicas(256, among=[1], max_batch=128),
            "256 and max_batch is 128",
        ),
        (lambda: feasible_replicas(256, among=[0]), "replicas is 0"),
        (lambda: feasible_replicas(0, among=[1]), "the smallest batch is 0"),
        (lambda: feasible_replicas(8, among=[1], min_micro=3, max_micro=2), "min_micro is 3 and max_micro is 2"),
        (lambda: batch_bounds(2, min_batch=5, max_batch=4), "5 and max_batch is 4"),
        (lambda: batch_bounds(0, max_batch=4), "replicas is 0"),
        (lambda: nearest_batches(4.5, 1), r"global_batch is 4\.5"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_can_never_work_are_refused(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
