"""Every sample counts once in sums and means: pending until its step is committed, late after it, over all replicas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from swell.errors import ConfigError
from swell.loop.metrics import Metrics, exchange, exchange_late
from swell.runtime.collective import Alone
from tests.reference.metrics import Entry, KeptMetrics, over
from tests.workers import run_workers

CPU = torch.device("cpu")
WORLDS = [2, 3]

sums = st.tuples(st.sampled_from(["samples", "tokens"]), st.integers(-9, 9), st.none())
means = st.tuples(st.sampled_from(["loss", "score"]), st.integers(-9, 9), st.integers(0, 5))
entries: Any = sums | means
additions = st.tuples(st.just("add"), entries)
events = additions | st.tuples(
    st.sampled_from(["begin", "commit", "commit", "drop", "read", "peek", "epoch", "save", "aside"]), st.none()
)


def add(metrics: Metrics, entry: Entry) -> None:
    name, value, weight = entry
    if weight is None:
        metrics.sum(name, value)
    else:
        metrics.mean(name, value, weight=weight)


@given(history=st.lists(events, min_size=5, max_size=40))
def test_any_history_gives_the_results_of_a_twin_that_keeps_every_value(history: list[tuple[str, Any]]) -> None:
    metrics, twin = Metrics(), KeptMetrics()
    for event, entry in history:
        if event == "add":
            add(metrics, entry)
            twin.add(entry)
        elif event == "begin":
            metrics.begin_step()
            twin.between = False
        elif event == "commit":
            metrics.commit()
            twin.commit()
        elif event == "drop":
            metrics.drop()
            twin.drop()
        elif event == "save":  # a checkpoint holds what was committed, and nothing of the step in progress
            saved, metrics = metrics.state_dict(), Metrics()
            metrics.load_state_dict(saved)
            twin = KeptMetrics(committed=twin.committed, epoch=twin.epoch)
        elif event == "aside":  # something else is counted meanwhile
            aside = metrics.set_aside()
            metrics.sum("meanwhile", 1)
            metrics.drop()
            metrics.put_back(aside)
        elif event == "epoch":  # its results are those of the epoch alone, whatever was read in it
            assert metrics.end_epoch() == pytest.approx(twin.end_epoch())
        else:
            results = metrics.results(reset=event == "read")
            assert results == pytest.approx(twin.results(reset=event == "read"))
    metrics.commit()
    twin.commit()
    assert metrics.results() == pytest.approx(twin.results(reset=True))


def test_a_step_that_is_done_again_counts_once() -> None:
    metrics = Metrics()
    for attempt in range(2):
        metrics.begin_step()
        metrics.sum("samples", 8)
        metrics.drop() if attempt == 0 else metrics.commit()
    assert metrics.results() == {"samples": 8}


def test_what_is_added_after_a_step_outlives_a_next_step_that_is_dropped() -> None:
    metrics = Metrics()
    metrics.begin_step()
    metrics.commit()
    metrics.sum("after", 1)
    metrics.begin_step()
    metrics.sum("in_step", 1)
    metrics.drop()
    assert metrics.names() == ["after"] and metrics.results(reset=False) == {}
    metrics.commit()
    assert metrics.results() == {"after": 1}


def test_a_muted_replica_adds_nothing() -> None:
    metrics = Metrics()
    metrics.muted = True
    metrics.sum("samples", 1)
    metrics.mean("loss", 1.0)
    metrics.accuracy("accuracy", torch.eye(2), torch.tensor([0, 1]))
    assert metrics.names() == []


def test_what_is_set_aside_comes_back_as_it_was() -> None:
    metrics = Metrics()
    metrics.sum("pending", 1)
    aside = metrics.set_aside()
    assert metrics.names() == []
    metrics.sum("evaluated", 5)
    metrics.commit()
    metrics.put_back(aside)
    assert metrics.names() == ["pending"]
    metrics.commit()
    assert metrics.results() == {"pending": 1, "evaluated": 5}


def test_counting_begins_again_with_every_read_unless_told_otherwise() -> None:
    metrics = Metrics()
    metrics.sum("samples", 3)
    metrics.commit()
    assert metrics.results(reset=False) == metrics.results(reset=False) == {"samples": 3}
    assert metrics.reads == 0
    assert metrics.results() == {"samples": 3}
    assert metrics.reads == 1 and metrics.results() == {}


def behind_and_ahead(reads: int) -> tuple[Metrics, int]:
    """A replica that takes over the state of another which has read results this many times more."""
    ahead, behind = Metrics(), Metrics()
    for number in range(reads):
        ahead.sum("samples", number)
        ahead.commit()
        ahead.results()
    ahead.sum("samples", 50)
    ahead.commit()
    count = ahead.reads - behind.reads
    behind.load_state_dict(ahead.state_dict())
    behind.repeat_reads(count)
    return behind, count


@pytest.mark.parametrize("reads", [1, 2, 3])
def test_a_replica_that_missed_a_read_reads_what_the_others_read_last_once(reads: int) -> None:
    behind, count = behind_and_ahead(reads)
    assert count == reads
    assert behind.results(reset=False) == behind.results() == {"samples": reads - 1}
    assert behind.reads == reads  # the others' read is not counted twice
    assert behind.results() == {"samples": 50}


@pytest.mark.parametrize("count", [0, -1])
def test_a_replica_that_missed_no_read_repeats_none(count: int) -> None:
    behind, _ = behind_and_ahead(2)
    behind.repeat_reads(count)
    assert behind.results() == {"samples": 50}


def test_values_may_be_numbers_or_tensors_of_one_entry_that_track_gradients() -> None:
    metrics = Metrics()
    metrics.mean("loss", torch.tensor([[2.0]], requires_grad=True) * 3, weight=torch.tensor(2))
    metrics.mean("loss", 9, weight=1)
    metrics.sum("nan", math.nan)
    metrics.commit()
    results = metrics.results()
    assert results["loss"] == pytest.approx(7.0) and math.isnan(results["nan"])


def test_accuracy_is_the_share_of_rows_whose_largest_logit_is_the_targets() -> None:
    metrics = Metrics()
    metrics.accuracy("rows", torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([1, 0, 0]))
    metrics.accuracy("rows", torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    metrics.accuracy("tokens", torch.eye(4).expand(2, 4, 4), torch.arange(4).expand(2, 4))
    metrics.commit()
    assert metrics.results() == pytest.approx({"rows": 3 / 4, "tokens": 1.0})


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda metrics: metrics.sum("", 1), "name"),
        (lambda metrics: metrics.mean("two\nlines", 1), "name"),
        (lambda metrics: metrics.sum(7, 1), "name"),
        (lambda metrics: metrics.mean("loss", torch.ones(2)), "loss"),
        (lambda metrics: metrics.mean("loss", 1, weight=torch.ones(2)), "loss"),
        (lambda metrics: metrics.sum("loss", "much"), "loss"),
        (lambda metrics: metrics.sum("loss", None), "loss"),
        (lambda metrics: metrics.accuracy("top", torch.ones(2, 3), torch.ones(2, 3)), "top"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name_and_adds_nothing(call: Any, fact: str) -> None:
    metrics = Metrics()
    with pytest.raises(ConfigError, match=fact):
        call(metrics)
    assert metrics.names() == []


letters = st.sampled_from("ab\0") | st.characters(exclude_characters="\n", exclude_categories=["Cs"])
names = st.lists(st.text(letters, min_size=1, max_size=3), unique=True, max_size=3)


@given(one=names, other=names)
@example(one=["ab"], other=["a", "b"])
@example(one=[], other=["\0"])
def test_replicas_have_one_layout_exactly_where_they_have_the_same_names(one: list[str], other: list[str]) -> None:
    layouts = []
    for each in (one, other):
        metrics = Metrics()
        for name in each:
            metrics.sum(name, 1)
        layouts.append(metrics.layout)
        assert float(metrics.layout) == metrics.layout < 2**53
    assert (layouts[0] == layouts[1]) == (set(one) == set(other))


@given(added=st.lists(entries, max_size=10))
def test_alone_an_exchange_is_a_commit(added: list[Entry]) -> None:
    metrics = Metrics()
    for entry in added:
        add(metrics, entry)
    exchange(metrics, Alone(), CPU)
    assert metrics.results() == pytest.approx(over(added))


def entries_of(rank: int, *, alike: bool) -> list[Entry]:
    """What one replica adds; unless all are alike, the first adds nothing and each other has a name of its own too."""
    common: list[Entry] = [("loss", 1.0 + rank, 2.0 + rank), ("loss", -3.0, 1.0), ("samples", 10.0 * rank, None)]
    if alike:
        return common
    return [] if rank == 0 else [*common, (f"of rank {rank}", float(rank), None)]


def count_together(collective: Any, alike: bool) -> dict[str, Any]:
    metrics = Metrics()
    mine = entries_of(collective.rank, alike=alike)
    for entry in mine:
        add(metrics, entry)
    exchange(metrics, collective, CPU)
    first = metrics.results()
    for entry in mine:  # after a step was committed: late
        add(metrics, entry)
    metrics.begin_step()
    metrics.sum("pending", 1)
    exchange_late(metrics, collective, CPU)
    late, waiting = metrics.results(), metrics.names()
    metrics.drop()
    exchange(metrics, collective, CPU)
    return {"first": first, "late": late, "waiting": waiting, "dropped": metrics.results()}


@pytest.mark.distributed
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("alike", [True, False])
def test_every_replica_reads_the_sums_of_all_whatever_names_each_has(world: int, alike: bool) -> None:
    everything = over([entry for rank in range(world) for entry in entries_of(rank, alike=alike)])
    for replica in run_workers(world, count_together, alike):
        assert replica["first"] == pytest.approx(everything)
        assert replica["late"] == pytest.approx(everything)
        assert replica["waiting"] == ["pending"]  # of the step in progress: left alone
        assert replica["dropped"] == {}
