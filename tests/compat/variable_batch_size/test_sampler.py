"""Which samples each replica reads under a trace: every one once, in minibatches, whatever the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import swell.compat.variable_batch_size as vbs
from swell.errors import ConfigError, TraceError
from tests.compat.variable_batch_size.loop import problem
from tests.reference.fairscale import eth_assignments, eth_epochs

TRACES = st.lists(st.integers(1, 12).map(lambda count: 8 * count), min_size=1, max_size=12)


def make_sampler(samples: int = 256, **arguments: Any) -> vbs.CustomSampler:
    settings: dict[str, Any] = {"num_replicas": 1, "rank": 0, "minibatch_size": 8} | arguments
    return vbs.CustomSampler(dataset_size=samples, **settings)


@given(n=st.integers(96, 300), trace=TRACES, replicas=st.integers(1, 5), epoch=st.integers(0, 2))
def test_every_sample_is_read_once_an_epoch_by_one_replica_and_no_dummy_beside(
    n: int, trace: list[int], replicas: int, epoch: int
) -> None:
    """ETH E5 and E11: dummies were computed, and up to a whole batch was dropped every epoch."""
    indices: list[int] = []
    for rank in range(replicas):
        sampler = make_sampler(n, trace=trace, num_replicas=replicas, rank=rank, at_end="hold")
        sampler.set_epoch(epoch)
        minibatches = list(sampler)
        assert len(sampler) == len(minibatches) and all(1 <= len(each) <= 8 for each in minibatches)
        indices += [index for minibatch in minibatches for index in minibatch]
    assert sorted(indices) == list(range(n))


@given(trace=TRACES, replicas=st.integers(1, 5), rank=st.integers(0, 4))
def test_minibatches_are_dealt_to_replicas_as_eth_deals_them(trace: list[int], replicas: int, rank: int) -> None:
    sampler = make_sampler(trace=trace, num_replicas=replicas, rank=min(rank, replicas - 1))
    theirs = eth_assignments(trace, minibatch=8, replicas=replicas, rank=sampler.rank)
    assert sampler.get_batch_assignments(trace) == theirs


@given(n=st.integers(96, 300), trace=TRACES)
def test_with_drop_last_epochs_are_cut_as_eth_cuts_them(n: int, trace: list[int]) -> None:
    sampler = make_sampler(n - n % 8, trace=trace, drop_last=True, at_end="stop")
    theirs = eth_epochs(trace, samples=n - n % 8, minibatch=8)
    assert [sampler.get_epochtrace(epoch) for epoch in range(len(theirs))] == theirs


@given(trace=TRACES, replicas=st.integers(1, 4))
def test_the_order_of_samples_depends_on_seed_and_epoch_alone(trace: list[int], replicas: int) -> None:
    shares = [make_sampler(trace=trace, num_replicas=replicas, rank=rank, at_end="hold") for rank in range(replicas)]
    alone = make_sampler(trace=256, minibatch_size=256)
    (order,) = list(alone)
    start = 0
    shares_of = [iter(sampler) for sampler in shares]
    for size in shares[0].get_epochtrace(0):
        step = [next(shares_of[r]) for r in range(replicas) for _ in shares[r].share(size)]
        assert sorted(index for each in step for index in each) == sorted(order[start : start + size])
        start += size


@pytest.mark.parametrize("trace", [[64, 96, 96], (64, 96, 96), np.array([64, 96, 96])])
def test_lists_tuples_and_arrays_are_traces(trace: Any) -> None:
    """ETH E8: tuples and arrays were an ``AttributeError``."""
    assert make_sampler(trace=trace).get_epochtrace(0) == [64, 96, 96]


def test_a_number_is_the_size_of_every_step_without_a_list_of_millions() -> None:
    sampler = make_sampler(trace=64)
    assert sampler.get_epochtrace(1000) == [64] * 4 and sampler.get_epoch_range(1000) == (4000, 4004)


def test_a_single_entry_is_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    sampler = make_sampler(64, trace=[64], verbose=True)
    sampler.set_epoch(0)
    assert list(map(len, sampler)) == [8] * 8 and "1 steps, 8 minibatches" in capsys.readouterr().out


def test_the_readmes_file_is_read_by_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(" step,batchsize\n 0, 64\n 1, 64\n 7, 128\n")
    assert make_sampler(trace=path).get_epochtrace(0) == [64, 64, 128]


def test_a_trace_that_exactly_fills_the_last_epoch_needs_no_spare_entry() -> None:
    """ETH E8: such a trace was an ``IndexError``."""
    assert make_sampler(trace=[128, 128]).get_epochtrace(0) == [128, 128]


def test_a_trace_too_short_is_an_error_or_holds_or_stops_as_asked() -> None:
    """ETH E8: the end of the trace was an ``IndexError``."""
    with pytest.raises(TraceError, match=r"\b1\b"):
        len(make_sampler(trace=[128]))
    assert make_sampler(trace=[128, 64], at_end="hold").get_epochtrace(0) == [128, 64, 64]
    stopping = make_sampler(trace=[128, 64], at_end="stop")
    assert [stopping.get_epochtrace(epoch) for epoch in range(2)] == [[128, 64], []]


def test_sizes_that_are_no_multiple_of_the_minibatch_are_refused_or_end_with_a_smaller_one() -> None:
    """ETH E11: only multiples of the minibatch were possible."""
    with pytest.raises(TraceError, match="minibatch_size"):
        make_sampler(trace=[16, 20])
    sampler = make_sampler(36, trace=[16, 20], multiples_only=False)
    assert [len(minibatch) for minibatch in sampler] == [8, 8, 8, 8, 4]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"trace": [64, 0]}, r"\b1\b.*\b0\b"),
        ({"trace": [-8]}, "-8"),
        ({"trace": []}, "trace"),
        ({"trace": [512]}, "512.*256"),
        ({"trace": None}, "trace"),
        ({"trace": 64, "rank": 3}, "rank"),
        ({"trace": 64, "dataset": range(9)}, "dataset_size"),
    ],
)
def test_traces_and_places_that_cannot_work_are_refused(arguments: dict[str, Any], fact: str) -> None:
    """ETH E8: sizes of 0 or larger than the data set trained on nothing, without end."""
    with pytest.raises((ConfigError, TraceError), match=fact):
        make_sampler(**arguments)


def test_a_malformed_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("step,batchsize\n0,64\n1,a lot\n")
    with pytest.raises(TraceError, match="line 3"):
        make_sampler(trace=path)


def test_the_loader_knows_its_length() -> None:
    """ETH E8: ``len(loader)`` counted samples."""
    data: TensorDataset = problem()[1]
    loader = DataLoader(data, batch_sampler=vbs.CustomSampler(data, trace=[64, 192], minibatch_size=32))
    assert len(loader) == len(list(loader)) == 8
