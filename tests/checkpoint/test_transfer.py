from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swell.checkpoint import empty_like, pack, unpack
from swell.errors import CheckpointError
from tests.checkpoint.replicas import receive, state_of
from tests.checkpoint.states import same, states
from tests.workers import run_workers


def sent(state: Any) -> Any:
    text, tensors = pack(state)
    received = empty_like(text)
    for ours, theirs in zip(received, tensors, strict=True):
        ours.copy_(theirs)
    return unpack(text, received)


@given(state=states)
def test_every_state_arrives_bit_for_bit(state: Any) -> None:
    assert same(sent(state), state)


@given(state=states)
def test_a_state_travels_as_ascii_text_and_flat_bytes(state: Any) -> None:
    text, tensors = pack(state)
    assert text.isascii()
    assert all(tensor.dtype == torch.uint8 and tensor.dim() == 1 for tensor in tensors)


def test_tensors_are_not_copied_before_they_are_sent() -> None:
    weight = torch.zeros(3, 4)
    _, (data,) = pack({"weight": weight})
    weight.fill_(1.0)
    assert torch.equal(data.view(torch.float32).view(3, 4), weight)


def test_memory_that_appears_twice_is_sent_once() -> None:
    weight = torch.randn(3, 4)
    text, tensors = pack({"encoder": weight, "decoder": weight.detach(), "part": weight[:1]})
    assert len(tensors) == 2
    assert same(unpack(text, tensors)["decoder"], weight)


def test_the_order_of_dimensions_in_memory_is_kept() -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    slices = torch.randn(6, 8)[::2, ::3]
    arrived = sent({"images": images, "slices": slices})
    assert arrived["images"].stride() == images.stride()
    assert same(arrived, {"images": images, "slices": slices})


def test_a_state_sent_by_another_version_is_refused() -> None:
    text, tensors = pack({"a": 1})
    newer = json.dumps({**json.loads(text), "version": 2})
    with pytest.raises(CheckpointError, match="different versions"):
        unpack(newer, tensors)


@given(text=st.text() | st.sampled_from(["[]", "{}", "null", '{"version": 1}']))
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError):
        unpack(text, [])


@pytest.mark.parametrize(
    "state",
    [["tensor", 0], ["os.system", "true"], ["dtype", "load"], ["dict", 1], ["float", []], ["bytes", 3], []],
    ids=str,
)
def test_a_crafted_message_is_refused_and_runs_nothing(state: Any) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        unpack(json.dumps({"version": 1, "tensors": [], "state": state}), [])


@pytest.mark.parametrize("spec", [1, {}, {"bytes": -1, "device": "cpu"}, {"bytes": 4, "device": "nowhere"}], ids=str)
def test_a_crafted_announcement_is_refused(spec: Any) -> None:
    text = json.dumps({"version": 1, "tensors": [spec], "state": ["tensor", 0]})
    with pytest.raises(CheckpointError, match="cannot be read"):
        empty_like(text)
    with pytest.raises(CheckpointError):
        unpack(text, [torch.empty(4, dtype=torch.uint8)])


def test_tensors_of_other_lengths_than_announced_are_refused() -> None:
    text, _ = pack({"weight": torch.zeros(3)})
    with pytest.raises(CheckpointError, match="announced 1 of 12"):
        unpack(text, [torch.empty(4, dtype=torch.uint8)])


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "source"), [(1, 0), (2, 1), (3, 0)])
def test_every_replica_receives_the_source_state(world: int, source: int) -> None:
    for received in run_workers(world, receive, source):
        assert same(received, state_of(source))
