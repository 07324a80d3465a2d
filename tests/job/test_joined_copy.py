"""A joined copy holds what the tensors were when it was renewed last, and puts that back; also from a CUDA graph."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import swell.job.joined_copy
from swell.job.joined_copy import JoinedCopy
from tests.devices import needs_cuda

sizes = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def some(lengths: list[int], device: str = "cpu") -> list[Tensor]:
    return [torch.rand(length, device=device) for length in lengths]


def write(tensors: list[Tensor], value: float) -> list[Tensor]:
    """Other values in all of them, and copies of these."""
    for number, tensor in enumerate(tensors):
        tensor.fill_(value + number)
    return [tensor.clone() for tensor in tensors]


@given(lengths=sizes, renewed=st.integers(0, 3))
def test_what_was_there_at_the_last_renewal_is_put_back(lengths: list[int], renewed: int) -> None:
    tensors = some(lengths)
    expected, joined = [tensor.clone() for tensor in tensors], JoinedCopy(tensors)
    for turn in range(renewed):
        expected = write(tensors, float(turn))
        joined.renew()
    write(tensors, -100.0)
    joined.put_back()
    assert all(map(torch.equal, tensors, expected))
    assert joined.follows


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swell.job.joined_copy, "_RECORD_AFTER", 2)


@needs_cuda
@pytest.mark.parametrize("count", [1, 8, 60, 300])
def test_a_recorded_copy_is_the_same(soon: None, count: int) -> None:
    tensors = some([number % 7 + 1 for number in range(count)], "cuda")
    joined = JoinedCopy(tensors)
    state = torch.cuda.get_rng_state()
    for turn in range(6):
        expected = write(tensors, float(turn))
        joined.renew()
        write(tensors, -100.0)
        joined.put_back()
        assert all(map(torch.equal, tensors, expected))
    assert (joined._record is not None) == (count >= 8)
    assert joined.follows
    assert torch.equal(torch.cuda.get_rng_state(), state)


@needs_cuda
def test_memory_that_was_replaced_is_noticed_and_left_alone(soon: None) -> None:
    tensors = some([3] * 10, "cuda")
    joined = JoinedCopy(tensors)
    for turn in range(3):
        expected = write(tensors, float(turn))
        joined.renew()
    tensors[4].data = torch.full((3,), 7.0, device="cuda")
    torch.cuda.empty_cache()  # what the record reads must not be given back
    assert not joined.follows
    joined.renew()
    write(tensors[:4] + tensors[5:], -1.0)
    joined.put_back()
    torch.cuda.synchronize()
    assert tensors[4].tolist() == [7.0] * 3
    assert all(
        torch.equal(tensor, old) for n, (tensor, old) in enumerate(zip(tensors, expected, strict=True)) if n != 4
    )


@needs_cuda
def test_a_copy_is_recorded_on_the_stream_that_it_is_made_on(soon: None) -> None:
    side, tensors = torch.cuda.Stream(), some([4] * 20, "cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        joined = JoinedCopy(tensors)
        for turn in range(6):
            torch.cuda._sleep(10**7)
            expected = write(tensors, float(turn))  # queued, and not done yet
            joined.renew()
            write(tensors, -100.0)
            joined.put_back()
            assert all(map(torch.equal, tensors, expected))
    assert joined._record is not None
