from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from swell.core.order import Given, Sequential, Shuffled, Weighted
from swell.core.protocols import Order
from swell.data.orders import orders
from swell.errors import ConfigError, DataError

N = 30
DATA = range(N)


def listed(order: Order) -> list[int]:
    return order.indices(0, len(order)).tolist()


class FromGlobalNumbers(Sampler[int]):
    """A sampler of a user's own, which draws from the global random numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N)[:20].tolist())


class KnowsItsEpoch(Sampler[int]):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch, 5, 4])


WAYS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "shuffle": {"shuffle": True},
    "weights": {"weights": np.arange(N)},
    "list": {"order": [3, 1, 1, 2]},
    "array": {"order": np.array([3, 1, 1, 2])},
    "function": {"order": lambda epoch: [epoch, 1, 2]},
    "function of an order": {"order": lambda epoch: Shuffled(N, seed=9, epoch=epoch)},
    "order": {"order": Given([4, 2])},
    "sequential sampler": {"sampler": SequentialSampler(DATA)},
    "random sampler": {"sampler": RandomSampler(DATA)},
    "random sampler of few": {"sampler": RandomSampler(DATA, num_samples=7)},
    "random sampler of many": {"sampler": RandomSampler(DATA, num_samples=2 * N + 7)},
    "random sampler with replacement": {"sampler": RandomSampler(DATA, replacement=True, num_samples=50)},
    "subset": {"sampler": SubsetRandomSampler([2, 3, 5, 7, 11, 13])},
    "weighted": {"sampler": WeightedRandomSampler([1.0, 0.0, 2.0], num_samples=40)},
    "weighted without replacement": {"sampler": WeightedRandomSampler([1.0, 0.0, 2.0], 2, replacement=False)},
    "any sampler": {"sampler": FromGlobalNumbers()},
    "sampler with set_epoch": {"sampler": KnowsItsEpoch()},
    "any iterable": {"sampler": (4, 2, 2)},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_order_depends_on_seed_and_epoch_alone(way: dict[str, Any]) -> None:
    one, other = orders(DATA, seed=3, **way), orders(DATA, seed=3, **way)
    expected = [listed(one(epoch)) for epoch in range(4)]
    torch.manual_seed(99)
    assert [listed(other(epoch)) for epoch in (3, 0, 2, 1)] == [expected[epoch] for epoch in (3, 0, 2, 1)]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@given(data=st.data())
def test_an_order_has_random_access(way: dict[str, Any], data: st.DataObject) -> None:
    order = orders(DATA, seed=3, **way)(1)
    whole = listed(order)
    assert len(whole) == len(order)
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    part = order.indices(start, stop)
    assert part.dtype == np.int64
    assert part.tolist() == whole[start:stop]
    with pytest.raises(ConfigError):
        order.indices(start, len(order) + 1)


def test_nothing_and_shuffle_and_weights_are_the_orders_of_the_core() -> None:
    assert orders(DATA, seed=3)(5) == Sequential(N)
    assert orders(DATA, seed=3, shuffle=True)(5) == Shuffled(N, seed=3, epoch=5)
    weights = np.arange(N)
    assert listed(orders(DATA, seed=3, weights=weights)(5)) == listed(Weighted(weights, seed=3, epoch=5))


def test_torchs_own_samplers_keep_their_meaning() -> None:
    def of(sampler: Any, epoch: int = 0) -> list[int]:
        return listed(orders(DATA, seed=0, sampler=sampler)(epoch))

    assert of(SequentialSampler(DATA)) == list(DATA)
    assert sorted(of(RandomSampler(DATA))) == list(DATA)
    assert of(RandomSampler(DATA), 0) != of(RandomSampler(DATA), 1)
    assert len(set(of(RandomSampler(DATA, num_samples=7)))) == 7
    many = of(RandomSampler(DATA, num_samples=2 * N + 7))
    assert sorted(many[:N]) == sorted(many[N : 2 * N]) == list(DATA)
    assert many[:N] != many[N : 2 * N]
    assert len(of(RandomSampler(DATA, replacement=True, num_samples=50))) == 50
    assert sorted(of(SubsetRandomSampler([2, 3, 5, 7]))) == [2, 3, 5, 7]
    assert set(of(WeightedRandomSampler([1.0, 0.0, 2.0], num_samples=40))) == {0, 2}


def test_weighted_draws_without_replacement_are_as_likely_as_torchs() -> None:
    weights = [1.0, 2.0, 4.0]
    order_of = orders(DATA, seed=0, sampler=WeightedRandomSampler(weights, 2, replacement=False))
    drawn = Counter(tuple(listed(order_of(epoch))) for epoch in range(4000))
    for (first, second), count in drawn.items():
        likely = weights[first] / 7 * weights[second] / (7 - weights[first])
        assert abs(count / 4000 - likely) < 5 * (likely * (1 - likely) / 4000) ** 0.5
    assert len(drawn) == 6


def test_other_samplers_are_listed_once_an_epoch_and_disturb_nothing() -> None:
    class Counted(FromGlobalNumbers):
        times = 0

        def __iter__(self) -> Iterator[int]:
            self.times += 1
            return super().__iter__()

    sampler = Counted()
    order_of = orders(DATA, seed=0, sampler=sampler)
    state = torch.get_rng_state()
    assert order_of(0) is order_of(0)
    assert listed(order_of(0)) != listed(order_of(1))
    assert sampler.times == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_a_sampler_is_told_its_epoch() -> None:
    order_of = orders(DATA, seed=0, sampler=KnowsItsEpoch())
    assert [listed(order_of(epoch))[0] for epoch in (2, 0)] == [2, 0]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ({"shuffle": True, "weights": [1.0] * N}, "shuffle and weights"),
        ({"order": [1], "sampler": [1]}, "order and sampler"),
        ({"weights": [1.0] * (N - 1)}, "weights"),
        ({"weights": [-1.0] + [1.0] * (N - 1)}, "weight"),
        ({"sampler": DistributedSampler(TensorDataset(torch.arange(N)), num_replicas=2, rank=0)}, "DistributedSampler"),
        ({"sampler": BatchSampler(SequentialSampler(DATA), 4, False)}, "BatchSampler"),
        ({"sampler": RandomSampler(range(N + 1))}, f"sampler.*{N}"),
        ({"sampler": SequentialSampler(range(N + 1))}, f"sampler.*{N}"),
        ({"sampler": WeightedRandomSampler([1.0] * (N + 1), 4)}, f"sampler.*{N}"),
    ],
)
def test_what_cannot_be_an_order_is_refused_at_once(way: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        orders(DATA, seed=0, **way)


def test_more_draws_without_replacement_than_samples_of_positive_weight_are_refused() -> None:
    order_of = orders(DATA, seed=0, sampler=WeightedRandomSampler([1.0, 0.0], 2, replacement=False))
    with pytest.raises(ConfigError, match="num_samples is 2"):
        order_of(0)


@pytest.mark.parametrize("way", [{"order": [N]}, {"order": [-1]}, {"sampler": SubsetRandomSampler([N])}, {"order": []}])
def test_indices_outside_of_the_data_set_are_refused(way: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        orders(DATA, seed=0, **way)


def test_a_data_set_without_samples_or_length_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        orders([], seed=0)
    with pytest.raises(DataError, match="length"):
        orders(iter([1]), seed=0)
