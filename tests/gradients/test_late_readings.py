"""Figures are handed out once each, in order, with what belongs to them; from an accelerator one push later."""

from __future__ import annotations

import pytest
import torch

from swell.gradients.late_readings import LateReadings

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_figures_on_the_host_are_read_at_once(exact: bool, dtype: torch.dtype) -> None:
    readings: LateReadings[str] = LateReadings(exact=exact)
    assert readings.push(torch.tensor([1.5, 2.0], dtype=dtype), "first") == [([1.5, 2.0], "first")]
    assert readings.push(torch.tensor([3.0], dtype=dtype), "second") == [([3.0], "second")]
    assert readings.drain() == []


@needs_cuda
def test_figures_on_a_device_come_with_the_next_push_in_order() -> None:
    readings: LateReadings[int] = LateReadings(exact=False)
    figures = torch.zeros(2, device="cuda")
    came = []
    for number in range(4):
        torch.cuda._sleep(10**7)
        came += readings.push(figures + number, number)
        assert [payload for _, payload in came] == list(range(number))
    came += readings.drain()
    assert came == [([float(number)] * 2, number) for number in range(4)]
    assert readings.drain() == []


@needs_cuda
def test_exact_figures_on_a_device_are_waited_for() -> None:
    readings: LateReadings[int] = LateReadings(exact=True)
    assert readings.push(torch.ones(1, device="cuda"), 7) == [([1.0], 7)]
