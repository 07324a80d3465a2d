"""Orders of samples: functions of their data, the seed and the epoch, with random access."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from swell.core.order import Given, Sequential, Shuffled, Weighted
from swell.core.permutation import LARGEST
from swell.core.protocols import Order
from swell.errors import ConfigError, DataError
from tests.reference import order as reference

SEEDS = st.integers(0, 2**64 - 1)
EPOCHS = st.integers(0, 10**6)
WEIGHTS = st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(any)  # whole numbers: their sums are exact


def whole(order: Order) -> list[int]:
    return order.indices(0, len(order)).tolist()


@st.composite
def orders(draw: st.DrawFn) -> Order:
    n, seed, epoch = draw(st.integers(1, 3000)), draw(SEEDS), draw(EPOCHS)
    kind = draw(st.sampled_from(["sequential", "shuffled", "weighted", "given"]))
    if kind == "sequential":
        return Sequential(n)
    if kind == "shuffled":
        return Shuffled(n, seed=seed, epoch=epoch)
    if kind == "weighted":
        return Weighted(draw(WEIGHTS), seed=seed, epoch=epoch, num_samples=n)
    return Given(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50)), n=n)


@given(order=orders(), data=st.data())
def test_every_order_has_random_access(order: Order, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    part = order.indices(start, stop)
    assert part.dtype == np.int64
    assert part.tolist() == whole(order)[start:stop]


@given(order=orders(), data=st.data())
def test_every_order_refuses_positions_it_does_not_have(order: Order, data: st.DataObject) -> None:
    beyond = data.draw(st.integers(len(order) + 1, len(order) + 10))
    with pytest.raises(ConfigError, match=f"start is .*stop is .* {len(order)}"):
        order.indices(0, beyond)
    with pytest.raises(ConfigError, match="start is -1"):
        order.indices(-1, len(order))
    with pytest.raises(ConfigError, match=r"start is .*stop is "):
        order.indices(1, 0)


@given(order=orders())
def test_what_an_order_hands_out_is_yours_to_change(order: Order) -> None:
    before = whole(order)
    order.indices(0, len(order))[:] = -1
    assert whole(order) == before


@given(n=st.integers(1, 3000), seed=SEEDS, epoch=EPOCHS)
def test_a_shuffled_epoch_holds_every_sample_once(n: int, seed: int, epoch: int) -> None:
    assert sorted(whole(Shuffled(n, seed=seed, epoch=epoch))) == list(range(n))


@given(n=st.integers(1, 60), seed=SEEDS, epoch=EPOCHS)
def test_a_shuffled_epoch_is_the_slow_twins(n: int, seed: int, epoch: int) -> None:
    assert whole(Shuffled(n, seed=seed, epoch=epoch)) == reference.shuffled(n, seed=seed, epoch=epoch)


def test_another_seed_and_another_epoch_give_another_order_and_are_not_interchangeable() -> None:
    seen = {tuple(whole(Shuffled(50, seed=seed, epoch=epoch))) for seed in range(10) for epoch in range(10)}
    assert len(seen) == 100


def test_a_billion_samples_are_shuffled_without_a_list_of_them() -> None:
    order = Shuffled(10**9, seed=1, epoch=2)
    assert len(order) == 10**9
    assert len(set(order.indices(10**9 - 4096, 10**9).tolist())) == 4096


def test_orders_of_equal_arguments_are_equal() -> None:
    assert Shuffled(5, seed=1, epoch=2) == Shuffled(np.int64(5), seed=1, epoch=2)  # type: ignore[arg-type]
    assert Sequential(5) != Sequential(6)


@given(weights=WEIGHTS, seed=SEEDS, epoch=EPOCHS, num_samples=st.integers(1, 50))
def test_weighted_draws_are_the_slow_twins(weights: list[int], seed: int, epoch: int, num_samples: int) -> None:
    drawn = whole(Weighted(weights, seed=seed, epoch=epoch, num_samples=num_samples))
    assert drawn == reference.weighted(weights, seed=seed, epoch=epoch, num_samples=num_samples)


@given(
    weights=st.lists(st.floats(0, 1e300, allow_subnormal=True), min_size=1, max_size=20).filter(any),
    seed=SEEDS,
)
def test_a_sample_of_weight_zero_is_never_drawn(weights: list[float], seed: int) -> None:
    drawn = Weighted(weights, seed=seed, epoch=0, num_samples=500).indices(0, 500)
    assert all(weights[index] > 0 for index in drawn)


def test_samples_are_drawn_in_proportion_to_their_weights() -> None:
    weights = np.array([1.0, 2.0, 0.0, 4.0, 0.5])
    drawn = Weighted(weights, seed=3, epoch=0, num_samples=100_000).indices(0, 100_000)
    counts = np.bincount(drawn, minlength=5)
    positive = weights > 0
    expected = weights[positive] / weights.sum() * 100_000
    assert counts[2] == 0
    assert 1e-4 < stats.chisquare(counts[positive], expected).pvalue < 1 - 1e-4


def test_weighted_epochs_differ_and_are_as_long_as_the_weights_unless_said() -> None:
    first, second = (Weighted(np.ones(40), seed=0, epoch=epoch) for epoch in (0, 1))
    assert len(first) == 40
    assert whole(first) != whole(second)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([], DataError, "weights are empty"),
        ([1.0, -2.0, math.nan], ConfigError, r"weights\[1\] is -2\.0.* 2 .* 3"),
        ([1.0, math.inf], ConfigError, r"weights\[1\] is inf"),
        ([0.0, 0.0], ConfigError, r"sum of weights is 0\.0"),
        ([1e308, 1e308], ConfigError, "sum of weights is inf"),
        ([[1.0], [2.0]], ConfigError, "2 dimensions"),
        (["many"], ConfigError, "not numbers"),
        (5.0, ConfigError, "not numbers"),
    ],
)
def test_weights_that_cannot_work_are_refused(weights: list, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Weighted(weights, seed=0, epoch=0)


@given(indices=st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_a_given_order_is_kept_with_its_repeats(indices: list[int]) -> None:
    assert whole(Given(indices, n=10)) == indices
    assert whole(Given(np.array(indices, dtype=np.uint16))) == indices
    assert whole(Given(iter(indices))) == indices
    assert whole(Given(range(3, 9))) == [3, 4, 5, 6, 7, 8]


def test_a_given_array_may_be_changed_afterwards() -> None:
    array = np.array([2, 1, 0])
    order = Given(array)
    array[:] = 7
    assert whole(order) == [2, 1, 0]


def generator() -> Iterator[int]:
    yield from ()


@pytest.mark.parametrize(
    ("indices", "n", "error", "message"),
    [
        ([], 3, DataError, "order is empty"),
        (generator(), 3, DataError, "order is empty"),
        ([0, 3], 3, DataError, "index of the order is 3; expected 0 to 2"),
        ([0, -1], None, DataError, "index of the order is -1"),
        ([0.5], 3, ConfigError, "float64"),
        ([2**70], None, ConfigError, "64 bits"),
        ([2**63], None, ConfigError, "64 bits"),
        (["a"], None, ConfigError, "whole numbers"),
        ([True, False], None, ConfigError, r"numpy.flatnonzero\(mask\)"),
        ([[0, 1]], None, ConfigError, "2 dimensions"),
        (7, None, ConfigError, "not a sequence"),
    ],
)
def test_given_orders_that_cannot_work_are_refused(
    indices: list, n: int | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Given(indices, n=n)


@pytest.mark.parametrize("make", [Sequential, lambda n: Shuffled(n, seed=0, epoch=0)])
def test_an_empty_data_set_has_no_order(make) -> None:
    with pytest.raises(DataError, match="the data set is empty"):
        make(0)
    with pytest.raises(ConfigError, match="n is -1"):
        make(-1)
    with pytest.raises(ConfigError, match="n is 'many'"):
        make("many")
    with pytest.raises(ConfigError, match=f"n is {LARGEST + 1}"):
        make(LARGEST + 1)


@pytest.mark.parametrize(("seed", "epoch"), [(-1, 0), (2**64, 0), (0.5, 0), (0, -1), (0, None)])
def test_seeds_and_epochs_are_whole_numbers_in_range(seed: int, epoch: int) -> None:
    with pytest.raises(ConfigError, match=r"(seed|epoch) is"):
        Shuffled(3, seed=seed, epoch=epoch)
    with pytest.raises(ConfigError, match=r"(seed|epoch) is"):
        Weighted([1.0], seed=seed, epoch=epoch)
