from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swell.checkpoint import empty_like, gather_values, pack, unpack
from swell.checkpoint.encoding import MARK
from swell.errors import CheckpointError
from tests.checkpoint.replicas import gather, receive, receive_in_place, state_of
from tests.checkpoint.states import same, states
from tests.workers import run_workers

VERSION = json.loads(pack(None)[0])["version"]


def sent(state: Any, own: Any = None) -> Any:
    text, tensors = pack(state)
    received = empty_like(text, own=own)
    for ours, theirs in zip(received, tensors, strict=True):
        ours.copy_(theirs)
    return unpack(text, received)


@given(state=states)
def test_every_state_arrives_bit_for_bit(state: Any) -> None:
    assert same(sent(state), state)


@given(state=states, other=states)
def test_every_state_arrives_in_the_memory_of_another(state: Any, other: Any) -> None:
    assert same(sent(state, own=other), state)
    assert same(sent(state, own=sent(state)), state)


def test_what_has_the_same_place_and_form_is_received_in_place_and_nothing_else() -> None:
    images = torch.randn(2, 3, 4, 5)
    state = {"a": torch.ones(3), "b": torch.ones(2), "c": torch.ones(2), "d": images, "e": torch.ones(4)}
    own = {
        "a": torch.zeros(3),
        "b": torch.zeros(2, dtype=torch.int32),
        "c": torch.zeros(1, 2),
        "d": images.to(memory_format=torch.channels_last) * 0,
        "f": torch.zeros(4),
        "g": torch.zeros(3),
    }
    arrived = sent(state, own=own)
    assert same(arrived, state)
    assert {name for name, tensor in own.items() if tensor.any()} == {"a"}
    assert arrived["a"].data_ptr() == own["a"].data_ptr()


def test_a_slice_is_not_received_in_place() -> None:
    base = torch.zeros(4, 4)
    assert same(sent({"w": torch.ones(4, 2)}, own={"w": base[:, :2]}), {"w": torch.ones(4, 2)})
    assert not base.any()


def test_tied_weights_of_the_receiver_alone_are_no_trouble() -> None:
    tied = torch.zeros(3)
    state = {"encoder": torch.ones(3), "decoder": torch.full((3,), 2.0)}
    assert same(sent(state, own={"encoder": tied, "decoder": tied}), state)


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
    newer = json.dumps({**json.loads(text), "version": VERSION + 1})
    with pytest.raises(CheckpointError, match="version"):
        unpack(newer, tensors)


@given(text=st.text() | st.sampled_from(["[]", "{}", "null", f'{{"version": {VERSION}}}']))
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError):
        unpack(text, [])


@pytest.mark.parametrize(
    "state",
    [
        {MARK: "shard", "key": 0},
        {MARK: "shard", "key": "os.system"},
        {MARK: "os.system", "value": "true"},
        {MARK: ["os.system"], "value": "true"},
        {MARK: "dtype", "value": "load"},
        {MARK: "dtype", "value": ["float32"]},
        {MARK: "device", "value": "nowhere"},
        {MARK: "Size", "value": "true"},
        {MARK: "complex", "value": []},
        {MARK: "tuple"},
        {MARK: "tuple", "value": 1},
        {MARK: "set", "value": [[]]},
        {MARK: "dict", "value": 1},
        {MARK: "dict", "value": [[1]]},
        {MARK: "OrderedDict", "value": []},
        {MARK: "bytes", "data": 3},
        {MARK: "array", "dtype": "load", "shape": [], "data": {MARK: "shard", "key": 0}},
        {MARK: "scalar", "dtype": "|O", "hex": "00" * 8},
        {MARK: "scalar", "dtype": {MARK: "tuple", "value": []}, "hex": "00" * 8},
        {MARK: "int", "hex": 3},
    ],
    ids=str,
)
def test_a_crafted_message_is_refused_and_runs_nothing(state: Any) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read|is of kind"):
        unpack(json.dumps({"version": VERSION, "tensors": [], "state": state}), [])


@pytest.mark.parametrize("spec", [1, {}, {"bytes": -1, "device": "cpu"}, {"bytes": 4, "device": "nowhere"}], ids=str)
def test_a_crafted_announcement_is_refused(spec: Any) -> None:
    text = json.dumps({"version": VERSION, "tensors": [spec], "state": {MARK: "shard", "key": 0}})
    with pytest.raises(CheckpointError, match="cannot be read"):
        empty_like(text)
    with pytest.raises(CheckpointError):
        unpack(text, [torch.empty(4, dtype=torch.uint8)])


def test_tensors_of_other_lengths_than_announced_are_refused() -> None:
    text, _ = pack({"weight": torch.zeros(3)})
    with pytest.raises(CheckpointError, match="1 of 12"):
        unpack(text, [torch.empty(4, dtype=torch.uint8)])


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "source"), [(1, 0), (2, 1), (3, 0)])
def test_every_replica_receives_the_source_state(world: int, source: int) -> None:
    for received in run_workers(world, receive, source):
        assert same(received, state_of(source))


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "source"), [(2, 1), (3, 0)])
def test_every_replica_receives_the_source_state_in_its_own_memory(world: int, source: int) -> None:
    for received, own in run_workers(world, receive_in_place, source):
        assert same(received, state_of(source))
        assert same(own, state_of(source)["model"])


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "destination"), [(1, 0), (2, None), (3, 1)])
def test_the_values_of_all_replicas_arrive_where_they_are_asked_for(world: int, destination: int | None) -> None:
    for rank, gathered in enumerate(run_workers(world, gather, destination)):
        if destination in (None, rank):
            assert same(gathered, [state_of(replica) for replica in range(world)])
        else:
            assert gathered is None


class Replicas:
    """A world of two in which both replicas give the same text."""

    rank, size = 1, 2

    def gather_text(self, text: str) -> list[str]:
        return [text, text]


@given(value=states)
def test_every_value_is_gathered_bit_for_bit(value: Any) -> None:
    collective: Any = Replicas()
    assert same(gather_values(collective, value), [value, value])
    assert same(gather_values(collective, value, destination=1), [value, value])
    assert gather_values(collective, value, destination=0) is None
