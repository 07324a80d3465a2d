from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate, get_worker_info

from swell.core.order import Sequential, Shuffled
from swell.data.feed import Feed
from swell.data.span import Span
from swell.errors import ConfigError, LoadError
from tests.data.plans import PHASES, WILD, N, Phase, asked_for


class Records(Dataset[dict[str, Any]]):
    """Samples of every kind that default_collate knows, all holding their index."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full(3, index, dtype=np.float32), "pair": (index, f"sample {index}")}


def order_of(epoch: int) -> Shuffled:
    return Shuffled(N, seed=5, epoch=epoch)


def members(span: Span) -> list[int]:
    return order_of(span.epoch).indices(span.start, span.stop).tolist()


def seen(batch: Any) -> list[int]:
    """The indices in a batch of records, which must agree in all its fields."""
    indices, names = batch["pair"]
    assert list(names) == [f"sample {i}" for i in indices.tolist()]
    assert batch["x"].tolist() == [[i] * 3 for i in indices.tolist()]
    return indices.tolist()


def text_of(samples: list[dict[str, Any]]) -> str:
    """A collate_fn whose batches cannot be cut."""
    return " ".join(str(sample["pair"][0]) for sample in samples)


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Feed]:
    """One feed for all examples: whatever state one leaves behind, the next must be right."""
    feed = Feed(Records(), order_of, num_workers=2, persistent_workers=True)
    yield feed
    feed.close()


@pytest.fixture(scope="module")
def two_workers_with_collate() -> Iterator[Feed]:
    feed = Feed(Records(), order_of, num_workers=2, persistent_workers=True, collate_fn=text_of)
    yield feed
    feed.close()


SOME = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(asked=WILD)
def test_without_workers_a_batch_holds_exactly_the_samples_of_its_span(asked: list[tuple[Span, list[Span]]]) -> None:
    feed = Feed(Records(), order_of)
    for span, foreseen in asked:
        assert seen(feed.fetch(span, lambda f=foreseen: iter(f))) == members(span)
    assert feed.dropped == 0


@SOME
@given(asked=WILD)
def test_with_workers_a_batch_holds_exactly_the_samples_of_its_span(
    two_workers: Feed, asked: list[tuple[Span, list[Span]]]
) -> None:
    for span, foreseen in asked:
        assert seen(two_workers.fetch(span, lambda f=foreseen: iter(f))) == members(span)


@SOME
@given(phases=st.lists(PHASES, min_size=1, max_size=4))
def test_with_workers_batches_are_right_however_the_plan_changes(two_workers: Feed, phases: list[Phase]) -> None:
    for epoch in range(2):
        for span, foreseen in asked_for(phases, epoch=epoch):
            assert seen(two_workers.fetch(span, lambda f=foreseen: iter(f))) == members(span)


@SOME
@given(phases=st.lists(PHASES, min_size=1, max_size=4))
def test_batches_of_a_collate_fn_are_never_cut(two_workers_with_collate: Feed, phases: list[Phase]) -> None:
    for span, foreseen in asked_for(phases):
        batch = two_workers_with_collate.fetch(span, lambda f=foreseen: iter(f))
        assert batch == " ".join(map(str, members(span)))


def test_an_epoch_through_a_feed_is_an_epoch_through_a_loader() -> None:
    feed = Feed(Records(), lambda epoch: Sequential(N))
    for i, batch in enumerate(DataLoader(Records(), batch_size=32)):
        ours = feed.fetch(Span(0, 32 * i, min(N, 32 * i + 32)))
        assert torch.equal(ours["x"], batch["x"])
        assert ours["pair"][1] == batch["pair"][1]


def test_prefetched_samples_are_used_after_the_batch_has_grown(two_workers: Feed) -> None:
    two_workers.close()
    fetched, dropped = two_workers.fetched, two_workers.dropped
    for span, foreseen in asked_for([Phase(2, 0, 1, 8, 1), Phase(3, 0, 1, 20, 1)]):
        two_workers.fetch(span, lambda f=foreseen: iter(f))
    assert two_workers.reused >= 8
    assert two_workers.dropped == dropped
    assert two_workers.fetched - fetched == N


class PaddedTogether(Dataset[torch.Tensor]):
    """Pads the samples of one batch to one length, so that two batches may not fit together."""

    def __len__(self) -> int:
        return N

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        longest = max(indices)
        return [torch.tensor([index] + [-1] * longest) for index in indices]


def test_batches_that_cannot_be_joined_are_read_again_as_a_whole() -> None:
    feed = Feed(PaddedTogether(), order_of, num_workers=1, prefetch_factor=4)
    for span, foreseen in asked_for([Phase(2, 0, 1, 8, 1), Phase(3, 0, 1, 20, 1)]):
        batch = feed.fetch(span, lambda f=foreseen: iter(f))
        assert batch[:, 0].tolist() == members(span)
        assert batch.shape[1] == 1 + max(members(span))
    feed.close()


def test_getitems_is_called_once_a_batch_with_its_indices() -> None:
    calls: list[list[int]] = []

    class Batched(Records):
        def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
            calls.append(indices)
            return [self[index] for index in indices]

    feed = Feed(Batched(), order_of)
    feed.fetch(Span(0, 3, 9))
    assert calls == [members(Span(0, 3, 9))]


def test_default_collate_given_by_name_is_the_default() -> None:
    feed = Feed(Records(), order_of, num_workers=1, prefetch_factor=4, collate_fn=default_collate)
    for span, foreseen in asked_for([Phase(1, 0, 1, 8, 1), Phase(3, 0, 1, 20, 1)]):
        assert seen(feed.fetch(span, lambda f=foreseen: iter(f))) == members(span)
    feed.close()
    assert feed.reused > 0


def test_worker_init_fn_sees_the_users_data_set_in_each_worker() -> None:
    class Named(Dataset[tuple[int, str]]):
        name = "nobody"

        def __len__(self) -> int:
            return N

        def __getitem__(self, index: int) -> tuple[int, str]:
            return index, self.name

    def name_it(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.name = f"worker {worker} of {info.num_workers}"  # type: ignore[attr-defined]

    feed = Feed(Named(), lambda epoch: Sequential(N), num_workers=2, worker_init_fn=name_it)
    spans = [Span(0, start, start + 4) for start in range(0, 16, 4)]
    names = [feed.fetch(span, lambda i=i: iter(spans[i + 1 :]))[1][0] for i, span in enumerate(spans)]
    feed.close()
    assert names == ["worker 0 of 2", "worker 1 of 2"] * 2


class Noisy(Dataset[tuple[int, float, float, float]]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_seeded_samples_do_not_depend_on_batches_or_workers(num_workers: int) -> None:
    alone = Feed(Noisy(), order_of, sample_seed=3).fetch(Span(1, 0, 40))
    feed = Feed(Noisy(), order_of, sample_seed=3, num_workers=num_workers)
    for start, stop in [(16, 40), (0, 16)]:
        batch = feed.fetch(Span(1, start, stop))
        for field, expected in zip(batch, alone, strict=True):
            assert torch.equal(field, expected[start:stop])
    feed.close()


def test_samples_are_not_seeded_unless_asked_for() -> None:
    feed = Feed(Noisy(), order_of)
    assert not torch.equal(feed.fetch(Span(0, 0, 8))[1], feed.fetch(Span(0, 0, 8))[1])


def test_what_remains_of_an_epoch_is_known() -> None:
    feed = Feed(Records(), order_of)
    assert [feed.available(0, position, 100) for position in (0, N - 100, N - 99, N)] == [100, 100, 99, 0]


class Fragile(Records):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 17:
            raise KeyError("no such file")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_the_data_set_names_the_samples_and_loses_nothing(num_workers: int) -> None:
    feed = Feed(Fragile(), lambda epoch: Sequential(N), num_workers=num_workers)
    spans = [Span(0, start, start + 8) for start in range(0, 48, 8)]
    feed.fetch(spans[0], lambda: iter(spans[1:]))
    feed.fetch(spans[1], lambda: iter(spans[2:]))
    for _ in range(2):
        with pytest.raises(LoadError, match=r"positions 16 to 24 of epoch 0 .*KeyError") as caught:
            feed.fetch(spans[2], lambda: iter(spans[3:]))
        assert caught.value.indices == tuple(range(16, 24))
        assert isinstance(caught.value.__cause__, KeyError)
        assert "no such file" in str(caught.value.__cause__)
    assert seen(feed.fetch(spans[3], lambda: iter(spans[4:]))) == list(range(24, 32))
    feed.close()


def test_an_error_in_samples_that_are_no_longer_wanted_is_not_raised() -> None:
    feed = Feed(Fragile(), lambda epoch: Sequential(N), num_workers=1, prefetch_factor=4)
    feed.fetch(Span(0, 0, 8), lambda: iter([Span(0, 8, 16), Span(0, 16, 24)]))
    assert seen(feed.fetch(Span(0, 24, 32), lambda: iter([Span(0, 32, 40)]))) == list(range(24, 32))
    assert feed.dropped == 16
    feed.close()


def test_an_error_beside_the_samples_that_are_still_wanted_is_not_raised() -> None:
    feed = Feed(Fragile(), lambda epoch: Sequential(N), num_workers=1, prefetch_factor=4)
    feed.fetch(Span(0, 0, 8), lambda: iter([Span(0, 8, 16), Span(0, 16, 24), Span(0, 24, 32)]))
    assert seen(feed.fetch(Span(0, 18, 28), lambda: iter([Span(0, 28, 40)]))) == list(range(18, 28))
    feed.close()
    assert feed.fetched == 8 + 10 + feed.dropped


def test_a_span_beyond_the_epoch_is_refused_and_the_feed_goes_on() -> None:
    feed = Feed(Records(), order_of, num_workers=1)
    with pytest.raises(ConfigError, match=f"{N}"):
        feed.fetch(Span(0, N - 1, N + 1))
    assert seen(feed.fetch(Span(0, 0, 8))) == members(Span(0, 0, 8))
    feed.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_order": False}, "in_order"),
        ({"persistent_workers": True}, "persistent_workers"),
        ({"prefetch_factor": 2}, "prefetch_factor"),
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": 1, "timeout": -1}, "timeout"),
        ({"num_workers": 1, "multiprocessing_context": "no such method"}, "multiprocessing_context"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Feed(Records(), order_of, **arguments)


def test_an_iterable_data_set_is_sent_to_the_stream() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    with pytest.raises(ConfigError, match="Stream"):
        Feed(Endless(), order_of)


def test_tensors_and_plain_lists_are_data_sets() -> None:
    table = torch.arange(20.0).reshape(10, 2)
    feed = Feed(TensorDataset(table), lambda epoch: Sequential(10))
    assert torch.equal(feed.fetch(Span(0, 2, 4))[0], table[2:4])
    assert Feed(["a", "b", "c"], lambda epoch: Sequential(3)).fetch(Span(0, 0, 2)) == ["a", "b"]


def test_torchs_profiler_sees_each_batch_as_with_a_plain_loader() -> None:
    feed, loader = Feed(Records(), order_of), DataLoader(TensorDataset(torch.arange(8)), batch_size=4)
    feed.fetch(Span(0, 0, 4))  # before anybody looks
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert [seen(feed.fetch(Span(0, k, k + 4))) for k in (4, 8)] == [members(Span(0, k, k + 4)) for k in (4, 8)]
        assert len(list(loader)) == 2
    marks = [event.count for event in profile.key_averages() if event.key.startswith("enumerate(DataLoader)")]
    assert marks == [2 + 3], "the plain loader looks once more, for its end"
