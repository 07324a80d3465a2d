"""Numbers that travel in a sum arrive bit for bit."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swell.gradients.carried_numbers import read_numbers, room_for, write_numbers

ANY = st.floats(width=64, allow_nan=True, allow_infinity=True) | st.sampled_from([5e-324, -0.0, 2.0**62, 1e308])


def bits(rows: list[list[float]]) -> list[bytes]:
    return [struct.pack(f"{len(row)}d", *row) for row in rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(replicas=st.integers(1, 7), count=st.integers(1, 20), data=st.data())
def test_every_replica_finds_the_numbers_of_all(
    dtype: torch.dtype, replicas: int, count: int, data: st.DataObject
) -> None:
    given = data.draw(st.lists(st.lists(ANY, min_size=count, max_size=count), min_size=replicas, max_size=replicas))
    rooms = []
    for rank, numbers in enumerate(given):
        room = torch.full((room_for(count, replicas=replicas),), torch.nan, dtype=dtype)
        write_numbers(numbers, room, rank=rank, replicas=replicas)
        rooms.append(room)
    for order in (rooms, rooms[::-1]):  # whoever adds up first
        total = order[0].clone()
        for room in order[1:]:
            total += room
        assert bits(read_numbers(total, replicas=replicas)) == bits(given)
