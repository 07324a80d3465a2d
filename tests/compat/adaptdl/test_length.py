"""The length of a training loader is the number of its batches, as long as the global batch stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import swell.compat.adaptdl as adaptdl
from swell.compat.adaptdl.torch.loop_length import Forecast
from swell.core.planning import plan_remainder
from tests.compat.adaptdl.scenario import loader, mean_loss, open_run
from tests.workers import run_processes


def lengths(loading: dict[str, Any], epochs: int = 4) -> list[tuple[set[int], int]]:
    """For each epoch: every length before, during and after the loop, and the number of batches."""
    torch.manual_seed(3)
    _, optimizer, wrapped = open_run()
    data = loader(45, batch_size=8, shuffle=True, **loading)
    results = []
    for _ in adaptdl.torch.remaining_epochs_until(epochs):
        values, batches = {len(data)}, 0
        for x, y, _ in data:
            values.add(len(data))
            optimizer.zero_grad()
            mean_loss(wrapped, x, y).backward()
            optimizer.step()
            values.add(len(data))
            batches += 1
        results.append((values | {len(data)}, batches))
    adaptdl.close()
    return results


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("autoscale", [None, 32])
def test_the_length_is_the_number_of_batches_on_one_replica_also_if_steps_are_split(
    autoscale: int | None, drop_last: bool
) -> None:
    results = lengths({"autoscale": autoscale, "drop_last": drop_last})
    assert all(values == {batches} for values, batches in results), results
    assert autoscale is None or results[0][1] > 45 // 8 + 1, "no step was split, so this tests little"


@pytest.mark.distributed
def test_the_length_is_the_number_of_batches_of_each_replica() -> None:
    for results in run_processes(2, lengths, {}):
        assert all(values == {batches} for values, batches in results), results


def test_a_loop_that_was_left_early_has_the_rest_of_its_batches() -> None:
    _, optimizer, wrapped = open_run()
    data = loader(48, batch_size=8)
    for _ in adaptdl.torch.remaining_epochs_until(1):
        for number, (x, y, _) in enumerate(data):
            mean_loss(wrapped, x, y).backward()
            optimizer.step()
            if number == 1:
                break
        assert len(data) == 4
        assert sum(1 for x, y, _ in data if mean_loss(wrapped, x, y).backward() is optimizer.step()) == 4


@given(
    length=st.integers(1, 60),
    batch=st.integers(1, 60),
    drop_last=st.booleans(),
    target=st.none() | st.floats(0.1, 40),
    worth=st.floats(0, 2),
)
def test_a_forecast_always_comes_to_an_end(
    length: int, batch: int, drop_last: bool, target: float | None, worth: float
) -> None:
    forecast = Forecast(
        length=length,
        drop_last=drop_last,
        batch=min(batch, length),
        lay_out=lambda count: plan_remainder(count, 1),
        rank=0,
        base=batch,
        gain=lambda base_steps: worth * base_steps,
        splits=lambda step: step % 2 == 0,
    )
    assert forecast.ahead(position=0, progress=0.0, step=0, target=target) >= 1
