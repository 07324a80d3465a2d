"""A run that ends by a metric of its own: together on all replicas, saved, and resumed with what was judged so far."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import swell
from swell.core.events import Satisfied, Warned
from swell.errors import ConfigError
from swell.telemetry.log import read_events
from tests.workers import run_workers

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))


def train(run_dir, values, *, read=True, leave_after=None, apart=0.0, **ending):
    """The epochs that were gone through, where each reports the next of the values."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job = swell.Job(run_dir, batch=8, save=None)
    job.wrap(model, optimizer)
    loader = job.loader(torch.utils.data.TensorDataset(X))
    came = []
    for epoch in job.until(epochs=len(values), **ending):
        came.append(epoch)
        for (rows,) in loader:
            job.backward(F.mse_loss(model(rows), rows.sum(1, keepdim=True)))
            job.step()
        if values[epoch] is not None:
            for (rows,) in job.evaluation(torch.utils.data.TensorDataset(X)):
                job.metrics.mean("score", values[epoch] + apart * (-1) ** job.rank, weight=len(rows))
        if read:
            job.metrics.results()
        if epoch == leave_after:
            job.save()
            break
    job.close()
    return came


@pytest.mark.parametrize("read", [True, False])
def test_a_run_ends_at_its_target(tmp_path, read):
    values = [0.1, 0.5, 0.9, 0.95, 0.99]
    if not read:  # then the mean over all turns is judged, because counting does not start again
        values = [0.1, 0.5, 3.0, 0.95, 0.99]
    came = train(tmp_path, values, read=read, metric="score", target=0.9, better="higher")
    assert came == [0, 1, 2]
    (end,) = [event for event in read_events(tmp_path / "events.jsonl") if isinstance(event, Satisfied)]
    assert end.value >= 0.9 and "reaches the target" in end.reason


def test_a_run_ends_when_its_patience_does_and_a_resumed_one_with_it(tmp_path):
    values, ending = [0.5, 0.3, 0.4, 0.35, 0.2, 0.1], {"metric": "score", "patience": 2}
    assert train(tmp_path / "whole", values, **ending) == [0, 1, 2, 3]
    assert train(tmp_path / "cut", values, leave_after=2, **ending) == [0, 1, 2]
    assert train(tmp_path / "cut", values, **ending) == [3]  # the second without a better one
    assert train(tmp_path / "cut", values, **ending) == []  # it is over, and stays so


def test_a_turn_that_reports_nothing_is_not_judged_and_named_in_a_warning(tmp_path):
    values = [0.5, None, 0.6, 0.7, 0.8]
    assert train(tmp_path, values, metric="score", patience=2) == [0, 1, 2, 3]
    warned = [event for event in read_events(tmp_path / "events.jsonl") if isinstance(event, Warned)]
    assert len(warned) == 1 and "'score'" in warned[0].message


@pytest.mark.parametrize("wrong", [{"target": 1.0}, {"patience": 3}, {"metric": "score"}])
def test_a_target_without_a_metric_or_a_metric_without_an_end_is_refused(wrong):
    job = swell.Job(batch=8)
    with pytest.raises(ConfigError):
        job.until(epochs=3, **wrong)


def on_a_replica(collective, run_dir, values, ending):
    return train(run_dir, values, apart=0.5, **ending)


@pytest.mark.distributed
def test_replicas_that_saw_different_values_end_after_the_same_turn(tmp_path):
    values, ending = [0.5, 0.3, 0.4, 0.35, 0.2], {"metric": "score", "patience": 2}
    assert run_workers(2, on_a_replica, tmp_path, values, ending) == [[0, 1, 2, 3]] * 2
