"""The state of numpy's global generator comes back whole, whatever was drawn from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.job import numpy_state
from swell.job.numpy_state import NumpyState

numpy_random: Any = np.random  # whose stubs lack two functions

DRAWS = {
    "normal": lambda: np.random.standard_normal(),
    "three normal": lambda: np.random.normal(size=3).tolist(),
    "uniform": lambda: np.random.random(),
    "many": lambda: np.random.random(700).tolist(),
    "whole": lambda: int(np.random.randint(9)),
    "order": lambda: np.random.permutation(5).tolist(),
    "a round": lambda: np.random.bytes(4 * 624),  # after which the position is the same, and all words others
    "seed": lambda: np.random.seed(5),
}


@pytest.fixture(autouse=True)
def own_numbers() -> Iterator[None]:
    before = np.random.get_state()
    yield
    np.random.set_state(before)


def same(one: Any, other: Any) -> bool:
    return bool(one[0] == other[0] and (one[1] == other[1]).all() and one[2:] == other[2:])


@given(st.integers(0, 99), st.lists(st.sampled_from(list(DRAWS))), st.lists(st.sampled_from(list(DRAWS)), min_size=1))
def test_what_was_drawn_is_drawn_again(seed: int, before: list[str], after: list[str]) -> None:
    np.random.seed(seed)
    for draw in before:
        DRAWS[draw]()
    state, whole = NumpyState(), np.random.get_state()
    captured = state.capture()
    assert same(np.random.get_state(), whole), "to look changes nothing"
    drawn = [DRAWS[draw]() for draw in after]
    state.restore(captured)
    assert same(np.random.get_state(), whole)
    assert [DRAWS[draw]() for draw in after] == drawn


@given(st.lists(st.sampled_from(list(DRAWS))))
def test_every_change_is_seen(draws: list[str]) -> None:
    state = NumpyState()
    for draw in draws:
        state.capture()
        DRAWS[draw]()
        captured, whole = state.capture(), np.random.get_state()
        assert state.capture() is captured
        np.random.random(9)
        state.restore(captured)
        assert same(np.random.get_state(), whole)


def test_it_is_read_from_memory_here() -> None:
    assert isinstance(NumpyState().capture(), tuple)


def test_where_it_is_not_found_numpy_copies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_state, "_offset_of_held", lambda: None)
    np.random.seed(1)
    np.random.standard_normal()
    state, whole = NumpyState(), np.random.get_state()
    captured = state.capture()
    assert isinstance(captured, dict)
    np.random.random(5)
    state.restore(captured)
    assert same(np.random.get_state(), whole)


def test_another_generator_is_copied_by_numpy() -> None:
    state, before = NumpyState(), numpy_random.get_bit_generator()
    early = state.capture()
    try:
        numpy_random.set_bit_generator(np.random.PCG64(3))
        captured = state.capture()
        drawn = np.random.random(4).tolist()
        state.restore(captured)
        assert np.random.random(4).tolist() == drawn
    finally:
        numpy_random.set_bit_generator(before)
    drawn = np.random.random(4).tolist()
    state.restore(early)
    assert np.random.random(4).tolist() == drawn
