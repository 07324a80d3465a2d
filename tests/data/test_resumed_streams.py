"""A resumed stream gives what the undisturbed one would have given, or says that it cannot."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swell.data.fingerprint import data_fingerprint, sample_fingerprint
from swell.data.span import Span
from swell.data.stream import Stream
from swell.errors import ConfigError, DataError
from tests.data.buffered import Buffered, SkippingBuffered
from tests.data.test_stream import Stateful


def rows(stream: Stream, *, epoch: int, start: int, batch: int = 7, most: int = 10_000) -> list[int]:
    """Read the stream from a position on, as the steps of a run do."""
    found: list[int] = []
    while len(found) < most and (count := stream.available(epoch, start + len(found), batch)):
        here = start + len(found)
        found += stream.fetch(Span(epoch, here, here + count)).tolist()
    return found


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [Buffered, SkippingBuffered], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("epoch", [0, 2])
def test_what_a_shuffle_buffer_held_is_not_lost_by_a_resume(kind: Any, epoch: int, num_workers: int) -> None:
    whole = rows(Stream(kind(100)), epoch=epoch, start=0)
    before = Stream(kind(100), num_workers=num_workers)
    first = rows(before, epoch=epoch, start=0, most=42)
    after = Stream(kind(100), num_workers=num_workers)
    after.load_state_dict(before.state_dict())
    assert first + rows(after, epoch=epoch, start=42) == whole
    assert sorted(whole) == list(range(100))
    before.close()
    after.close()


@given(at=st.integers(0, 90), batch=st.integers(1, 40), buffer=st.integers(1, 60), epoch=st.integers(0, 3))
def test_a_resume_at_any_position_goes_on_in_the_same_order(at: int, batch: int, buffer: int, epoch: int) -> None:
    whole = rows(Stream(Buffered(90, buffer=buffer)), epoch=epoch, start=0)
    before = Stream(Buffered(90, buffer=buffer))
    first = rows(before, epoch=epoch, start=0, batch=batch, most=at)
    after = Stream(SkippingBuffered(90, buffer=buffer))
    after.load_state_dict(before.state_dict())
    assert first + rows(after, epoch=epoch, start=len(first), batch=batch) == whole


def test_a_state_that_leaves_something_out_is_noticed_and_the_stream_is_read_again() -> None:
    whole = rows(Stream(Buffered(100)), epoch=1, start=0)
    before = Stream(Buffered(100), resume="state")
    first = rows(before, epoch=1, start=0, most=42)
    dataset = Buffered(100)
    after = Stream(dataset, resume="state")
    after.load_state_dict(before.state_dict())
    with pytest.warns(UserWarning, match="expected its state to leave nothing out"):
        rest = rows(after, epoch=1, start=42)
    assert first + rest == whole
    assert dataset.begun_at[0] > 0 and dataset.begun_at[-1] == 0


def test_a_state_that_holds_everything_saves_reading_where_it_is_asked_for() -> None:
    before = Stream(Stateful(500), resume="state")
    rows(before, epoch=0, start=0, most=300)
    read = {}
    for resume in ("state", "reread"):
        dataset = Stateful(500)
        after = Stream(dataset, resume=resume)
        after.load_state_dict(before.state_dict())
        assert rows(after, epoch=0, start=301, batch=10, most=10) == list(range(301, 311))
        read[resume] = dataset.read
    assert read["state"] < 60 < 300 < read["reread"]


def test_a_stream_that_does_not_repeat_itself_is_refused_on_a_resume() -> None:
    before = Stream(Buffered(100, seed=1))
    rows(before, epoch=0, start=0, most=42)
    after = Stream(Buffered(100, seed=2))
    after.load_state_dict(before.state_dict())
    with pytest.raises(DataError, match=r"another sample at position \d+ of epoch 0.*shuffle\(seed="):
        after.available(0, 42, 7)


def test_a_stream_that_became_shorter_is_refused_on_a_resume() -> None:
    before = Stream(Stateful(100))
    rows(before, epoch=0, start=0, most=42)
    after = Stream(Stateful(41))
    after.load_state_dict(before.state_dict())
    with pytest.raises(DataError):
        after.available(0, 42, 7)


def test_the_ways_to_resume_are_named_in_an_error() -> None:
    with pytest.raises(ConfigError, match="resume is 'skip'; expected 'reread' or 'state'"):
        Stream(Buffered(8), resume="skip")
    from tests.data.test_stream import Numbers

    with pytest.raises(ConfigError, match=r"resume is 'state'.*state_dict.*Numbers has none"):
        Stream(Numbers(8), resume="state")


SAMPLES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(SAMPLES)
def test_equal_samples_have_one_fingerprint_however_their_memory_is_shared(sample: Any) -> None:
    import copy
    import pickle

    twins = [sample, copy.deepcopy(sample), pickle.loads(pickle.dumps(sample))]
    assert len({sample_fingerprint({"x": twin, "y": twin}) for twin in twins}) == 1


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40), st.integers(0, 39))
def test_one_other_number_in_a_tensor_is_another_fingerprint(numbers: list[float], place: int) -> None:
    one = torch.tensor(numbers)
    other = one.clone()
    other[place % len(numbers)] = 1.0 if float(one[place % len(numbers)]) != 1.0 else 2.0
    assert sample_fingerprint(one) != sample_fingerprint(other)
    assert sample_fingerprint(one.numpy()) != sample_fingerprint(other.numpy())
    assert sample_fingerprint(one) == sample_fingerprint(torch.stack([one, one], 1)[:, 0])  # another layout in memory


def test_a_data_set_is_known_by_what_it_holds_and_no_sample_is_read() -> None:
    from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

    class Own(Dataset[Any]):
        def __init__(self, seed: int) -> None:
            self.rows = np.random.default_rng(seed).random((5, 2))
            self.cache: dict[int, Any] = {}

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("no sample is read")

    def all_of(seed: int) -> list[Any]:
        plain = TensorDataset(torch.full((6,), float(seed)))
        return [plain, Subset(plain, [0, 2]), ConcatDataset([plain, plain]), Own(seed), [torch.full((2,), seed)]]

    for one, same, other in zip(all_of(1), all_of(1), all_of(2), strict=True):
        assert data_fingerprint(one) == data_fingerprint(same) is not None
        assert data_fingerprint(one) != data_fingerprint(other)
    one, other = (Subset(Own(1), indices) for indices in ([1, 2], [1, 3]))
    assert data_fingerprint(one) != data_fingerprint(other)


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="Hugging Face datasets is not installed")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_hugging_face_stream_with_a_shuffle_buffer_loses_no_row(epoch: int, num_workers: int) -> None:
    import datasets  # pyright: ignore[reportMissingImports]

    def shuffled() -> Any:
        table = datasets.Dataset.from_dict({"row": list(range(200))})
        return table.to_iterable_dataset(num_shards=4).shuffle(seed=7, buffer_size=31)

    def read(stream: Stream, start: int, most: int) -> list[int]:
        found: list[int] = []
        while len(found) < most and (count := stream.available(epoch, start + len(found), 16)):
            here = start + len(found)
            found += stream.fetch(Span(epoch, here, here + count))["row"].tolist()
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        undisturbed = Stream(shuffled(), num_workers=num_workers)  # a worker has an order of its own there
        whole = read(undisturbed, 0, 200)
        undisturbed.close()
        before = Stream(shuffled(), num_workers=num_workers)
        first = read(before, 0, 96)
        after = Stream(shuffled(), num_workers=num_workers)
        after.load_state_dict(before.state_dict())
        assert first + read(after, 96, 200) == whole
    assert sorted(whole) == list(range(200))
    before.close()
    after.close()
