from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from swell.checkpoint import Store, capture_rng, restore_rng
from swell.errors import CheckpointError


def draw() -> tuple[Any, ...]:
    device = torch.rand(2, device="cuda").tolist() if torch.cuda.is_available() else None
    return random.random(), random.gauss(0, 1), float(np.random.normal()), torch.rand(2).tolist(), device


def test_every_generator_goes_on_where_it_was_saved(tmp_path: Any) -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    draw()  # leaves a second gaussian number in Python's and in numpy's generator
    store = Store(tmp_path)
    store.save({"rng": capture_rng()}, samples=0, step=0)
    first = [draw() for _ in range(3)]
    for _ in range(2):
        loaded = store.load_newest()
        assert loaded is not None
        restore_rng(loaded[1]["rng"])
        assert [draw() for _ in range(3)] == first


def test_a_state_of_more_devices_than_there_are_is_restored_as_far_as_it_goes() -> None:
    state = capture_rng()
    device_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.zeros(16, dtype=torch.uint8)
    restore_rng({**state, "cuda": [device_state] * 64})


def test_a_state_of_an_older_checkpoint_with_a_tuple_of_words_is_restored() -> None:
    random.seed(4)
    older = {**capture_rng(), "python": random.getstate()}
    first = [draw() for _ in range(3)]
    restore_rng(older)
    assert [draw() for _ in range(3)] == first


def test_the_words_of_a_state_are_arrays() -> None:
    state = capture_rng()
    words = [state["python"][1], state["numpy"][1]]
    assert [array.dtype for array in words] == [np.uint32, np.uint32]
    assert tuple(words[0].tolist()) == random.getstate()[1]


@pytest.mark.parametrize("broken", [{}, {"python": 3}, {"python": (3, (1,), None)}, {"python": (3, (-1,), None)}])
def test_a_state_that_is_no_state_of_generators_is_refused(broken: Any) -> None:
    with pytest.raises(CheckpointError, match="random number generators"):
        restore_rng(broken)
