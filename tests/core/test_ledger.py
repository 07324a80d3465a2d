"""Exactly once, in one order: the ledger moves by commits and by nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.ledger import Ledger
from swell.core.order import Shuffled
from swell.core.planning import plan_remainder
from swell.core.protocols import Stateful
from swell.errors import CheckpointError, ConfigError, DataError, LoopError
from tests.reference.ledger import ListLedger

# What may happen at a step: replicas, global batch, largest micro-batch, and how it ends.
FATES = st.sampled_from(["commit", "commit", "commit", "fail", "crash before commit", "crash after commit"])
STEPS = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 64), st.integers(1, 9), FATES), min_size=1, max_size=12)


def again(ledger: Ledger, length: int) -> Ledger:
    """A new process that resumes from what was saved, through text."""
    resumed = Ledger(length, seed=ledger.seed)
    resumed.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    return resumed


@given(n=st.integers(1, 300), seed=st.integers(0, 2**64 - 1), steps=STEPS)
def test_every_sample_is_committed_once_and_in_order_whatever_happens(
    n: int, seed: int, steps: list[tuple[int, int, int, str]]
) -> None:
    ledger = Ledger(n, seed=seed)
    order = Shuffled(n, seed=ledger.seed, epoch=ledger.epoch)
    committed: list[int] = []
    turn = 0
    while True:
        replicas, batch, max_micro, fate = steps[turn % len(steps)]
        if turn >= 2 * len(steps):
            fate = "commit"  # the world comes to rest, so that the epoch ends
        turn += 1
        span = ledger.next_span(batch)
        if span is None:
            break
        start, stop = span
        pieces: dict[int, list[int]] = {}  # what each micro-batch of each replica reads, by its offset
        for share in plan_remainder(stop - start, replicas, max_micro=max_micro).shares:
            for micro in share:
                at = start + micro.offset
                pieces[micro.offset] = order.indices(at, at + micro.size).tolist()
        step = [index for offset in sorted(pieces) for index in pieces[offset]]
        if fate == "crash before commit":
            ledger = again(ledger, n)
        elif fate.endswith("commit"):
            ledger.commit(stop)
            committed += step
            if fate == "crash after commit":
                ledger = again(ledger, n)
    assert committed == order.indices(0, n).tolist()
    assert sorted(committed) == list(range(n))
    assert (ledger.cursor, ledger.remaining, ledger.samples) == (n, 0, n)


@given(n=st.integers(1, 100), batches=st.lists(st.integers(1, 40), min_size=1), drop_last=st.booleans())
def test_spans_are_those_of_a_list_that_is_cut_from_the_front(n: int, batches: list[int], drop_last: bool) -> None:
    ledger, twin = Ledger(n, seed=0, drop_last=drop_last), ListLedger(range(n), drop_last=drop_last)
    for batch in batches:
        if drop_last and batch > n:
            continue
        span, step = ledger.next_span(batch), twin.take(batch)
        assert (None if span is None else list(range(*span))) == step
        if span is not None and step is not None:
            ledger.commit(span[1])
            twin.commit(step)
        assert ledger.remaining == len(twin.left)
        assert ledger.cursor == len(twin.committed)


@given(n=st.integers(1, 100), batches=st.lists(st.integers(1, 100), min_size=2))
def test_a_span_that_was_not_committed_is_handed_out_again(n: int, batches: list[int]) -> None:
    ledger = Ledger(n, seed=0)
    before = ledger.state_dict()
    for batch in batches:
        assert ledger.next_span(batch) == (0, min(batch, n))
    assert ledger.state_dict() == before


def test_drop_last_leaves_out_the_short_step_only() -> None:
    ledger = Ledger(10, seed=0, drop_last=True)
    ledger.next_span(4)
    ledger.commit(4)
    ledger.next_span(4)
    ledger.commit(8)
    assert ledger.next_span(4) is None
    assert ledger.remaining == 2
    assert ledger.next_span(2) == (8, 10), "a batch that has shrunk still fits"


def test_drop_last_with_a_batch_larger_than_the_epoch_is_an_error_and_not_an_empty_epoch() -> None:
    with pytest.raises(DataError, match=r"global_batch is 11 .*drop_last.* 10"):
        Ledger(10, seed=0, drop_last=True).next_span(11)


def test_epochs_follow_one_another_and_samples_add_up() -> None:
    ledger = Ledger(lambda epoch: 5 + epoch, seed=0)
    for epoch in range(3):
        assert (ledger.epoch, ledger.length, ledger.cursor) == (epoch, 5 + epoch, 0)
        while (span := ledger.next_span(4)) is not None:
            ledger.commit(span[1])
        ledger.next_epoch()
    assert ledger.samples == 5 + 6 + 7


def test_an_epoch_left_early_counts_what_was_committed() -> None:
    ledger = Ledger(10, seed=0)
    ledger.next_span(4)
    ledger.commit(4)
    ledger.next_span(4)
    ledger.next_epoch()
    assert (ledger.epoch, ledger.cursor, ledger.samples) == (1, 0, 4)
    with pytest.raises(LoopError):
        ledger.commit(4)  # of the epoch before


def test_only_the_span_under_way_can_be_committed_and_only_once() -> None:
    ledger = Ledger(10, seed=0)
    with pytest.raises(LoopError, match=r"commit\(4\) .*next_span\(\)"):
        ledger.commit(4)
    ledger.next_span(6)
    ledger.next_span(4)
    with pytest.raises(LoopError, match=r"stop is .* from 0.*commit\(4\)"):
        ledger.commit(6)
    ledger.commit(4)
    with pytest.raises(LoopError, match=r"commit\(4\) .*next_span\(\)"):
        ledger.commit(4)
    assert (ledger.cursor, ledger.samples) == (4, 4)


def test_the_state_is_plain_numbers_and_nothing_that_can_be_computed_from_the_world() -> None:
    ledger = Ledger(10, seed=7)
    assert isinstance(ledger, Stateful)
    assert ledger.state_dict() == {"seed": 7, "epoch": 0, "cursor": 0, "samples": 0, "length": 10}


def test_a_ledger_resumes_in_the_epoch_it_was_saved_in() -> None:
    ledger = Ledger(lambda epoch: 10 + epoch, seed=7)
    ledger.next_epoch()
    ledger.next_span(3)
    ledger.commit(3)
    resumed = Ledger(lambda epoch: 10 + epoch, seed=7)
    resumed.next_span(5)
    resumed.load_state_dict(ledger.state_dict())
    assert (resumed.epoch, resumed.length, resumed.cursor, resumed.samples) == (1, 11, 3, 3)
    with pytest.raises(LoopError):
        resumed.commit(5)  # of before the load


def test_a_ledger_saved_at_the_end_of_an_epoch_resumes_there() -> None:
    ledger = Ledger(3, seed=0)
    ledger.next_span(3)
    ledger.commit(3)
    assert again(ledger, 3).next_span(1) is None


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"length": 9}, DataError, "epoch 0 has 10 samples; expected 9"),
        ({"seed": 8}, CheckpointError, "seed is 7; expected 8"),
        ({"cursor": 11, "samples": 11}, CheckpointError, "11 samples of epoch 0 committed"),
        ({"cursor": 5, "samples": 4}, CheckpointError, "and 4 in all"),
        ({"cursor": -1}, CheckpointError, "cursor is -1"),
        ({"epoch": 0.5}, CheckpointError, r"epoch is 0\.5"),
        ({"samples": None}, CheckpointError, "samples is None"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed(
    change: dict, error: type[Exception], message: str
) -> None:
    ledger = Ledger(10, seed=7)
    ledger.next_span(2)
    ledger.commit(2)
    before = ledger.state_dict()
    with pytest.raises(error, match=message):
        ledger.load_state_dict({**before, **change})
    assert ledger.state_dict() == before


@pytest.mark.parametrize("state", [{}, {"seed": 7}, None, 3])
def test_what_is_no_state_is_refused(state) -> None:
    with pytest.raises(CheckpointError, match="state"):
        Ledger(10, seed=7).load_state_dict(state)


@pytest.mark.parametrize("length", [0, lambda epoch: 0])
def test_an_empty_data_set_is_refused(length) -> None:
    with pytest.raises(DataError, match="epoch 0 has no samples"):
        Ledger(length, seed=0)


@pytest.mark.parametrize("batch", [0, -1, 2.0, "4", True, None])
def test_a_batch_is_a_positive_whole_number(batch) -> None:
    with pytest.raises(ConfigError, match="global_batch is"):
        Ledger(10, seed=0).next_span(batch)
