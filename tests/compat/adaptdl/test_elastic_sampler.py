"""ElasticSampler shares a data set out without padding, from any position, on any number of replicas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.compat.adaptdl.torch import ElasticSampler

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "adaptdl" / "adaptdl.json").read_text())


def parts(size: int, replicas: int, index: int, *, shuffle: bool = True, epoch: int = 0) -> list[list[int]]:
    shares = []
    for rank in range(replicas):
        sampler = ElasticSampler(range(size), shuffle=shuffle)
        sampler.num_replicas, sampler.rank = replicas, rank
        sampler.set_epoch(epoch, index)
        shares.append(list(sampler))
        assert len(shares[-1]) == len(sampler)
    return shares


@given(size=st.integers(1, 60), replicas=st.integers(1, 9), index=st.integers(0, 150), shuffle=st.booleans())
def test_every_sample_that_is_left_comes_once(size: int, replicas: int, index: int, shuffle: bool) -> None:
    indices = [i for part in parts(size, replicas, index, shuffle=shuffle) for i in part]
    assert len(indices) == size - index % size == len(set(indices))


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=6),
)
def test_a_restart_on_other_replicas_goes_on_where_the_last_stopped(size: int, worlds: list[tuple[int, int]]) -> None:
    index, indices = 0, []
    for replicas, rounds in worlds:
        shares = parts(size, replicas, index)
        indices += [share[turn] for turn in range(rounds) for share in shares if turn < len(share)]
        index += replicas * rounds
        if index >= size:
            break
    assert len(indices) == len(set(indices)) == min(index, size)


def test_without_shuffling_it_is_the_originals_where_that_needed_no_padding() -> None:
    for row in GOLDEN["sampler"]:
        size, replicas, rank, index = row["at"]
        assert parts(size, replicas, index, shuffle=False)[rank] == row["samples"]


def test_epochs_and_passes_have_orders_of_their_own() -> None:
    orders = [parts(30, 1, 0)[0], parts(30, 1, 0, epoch=1)[0], parts(30, 1, 30)[0]]
    assert len({tuple(order) for order in orders}) == 3


def test_fewer_samples_than_replicas_leave_some_without() -> None:
    """AdaptDL C7: fewer samples than replicas were an ``IndexError``."""
    assert sorted(map(len, parts(3, 4, 0))) == [0, 1, 1, 1]
    with pytest.raises(ValueError):
        ElasticSampler(range(3)).set_epoch(-1)
