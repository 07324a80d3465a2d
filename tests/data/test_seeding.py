from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swell.data.seeding import SeededSamples
from swell.errors import ConfigError


class Noisy:
    name = "noisy"

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return index, random.random(), np.random.random(), torch.rand(()).item()

    def __getitems__(self, indices: list[int]) -> list[Any]:
        raise AssertionError("a batch at once cannot be seeded sample by sample")


KEYS = st.tuples(st.integers(0, 5), st.integers(0, 10**9), st.integers(0, 9))


@given(key=KEYS, seed=st.integers(0, 2**64 - 1))
def test_a_sample_sees_random_numbers_of_its_seed_epoch_and_position_alone(
    key: tuple[int, int, int], seed: int
) -> None:
    first = SeededSamples(Noisy(), seed=seed)[key]
    _ = random.random(), np.random.random(), torch.rand(())
    assert SeededSamples(Noisy(), seed=seed)[key] == first
    assert first[0] == key[2]


@given(keys=st.lists(KEYS, min_size=2, max_size=2, unique_by=lambda key: key[:2]))
def test_other_places_see_other_numbers(keys: list[tuple[int, int, int]]) -> None:
    one, other = (SeededSamples(Noisy(), seed=1)[key] for key in keys)
    assert all(a != b for a, b in zip(one[1:], other[1:], strict=True))


def test_reading_a_sample_leaves_the_random_numbers_of_the_main_process_alone() -> None:
    def numbers() -> tuple[float, ...]:
        return random.random(), np.random.random(), torch.rand(()).item()

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    expected = numbers()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    SeededSamples(Noisy(), seed=0)[0, 0, 0]
    assert numbers() == expected


def test_the_data_set_shows_through_and_can_be_sent_to_a_worker() -> None:
    dataset = SeededSamples(Noisy(), seed=0)
    assert dataset.name == "noisy"
    assert len(dataset) == 10
    assert not hasattr(dataset, "__getitems__")
    assert pickle.loads(pickle.dumps(dataset))[0, 3, 4] == dataset[0, 3, 4]


def test_a_seed_is_a_whole_number() -> None:
    with pytest.raises(ConfigError):
        SeededSamples(Noisy(), seed=-1)
