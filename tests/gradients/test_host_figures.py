"""Figures that the host works out are the weighted sums they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swell.gradients.host_figures import HostFigures

numbers = st.floats(-100, 100, width=32)
terms = st.lists(st.tuples(numbers, st.floats(0.01, 4), st.sampled_from(["float32", "float64", "host"])), max_size=5)


@given(figures=st.lists(st.tuples(terms, st.booleans()), min_size=1, max_size=5))
def test_each_figure_is_its_weighted_sum(figures: list[tuple[list[tuple[float, float, str]], bool]]) -> None:
    host, expected = HostFigures(), []
    for drawn, squared in figures:
        host.add(
            [
                (number if kind == "host" else torch.tensor([number], dtype=getattr(torch, kind)), weight)
                for number, weight, kind in drawn
            ],
            squared=squared,
        )
        expected.append(sum(number ** (2 if squared else 1) * weight for number, weight, _ in drawn))
    worked_out = host.work_out(host.numbers().tolist())
    assert worked_out == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert [host.value(figure) for figure in range(len(figures))] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_without_a_tensor_there_is_nothing_to_read() -> None:
    figures = HostFigures()
    figures.add([(3.0, 0.5)])
    figures.add([], squared=True)
    assert not figures.is_cuda
    assert figures.work_out(figures.numbers().tolist()) == [1.5, 0.0]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(wrong: float) -> None:
    figures = HostFigures()
    figures.add([(torch.tensor(wrong), 0.5), (torch.tensor(1.0), 0.5)], squared=True)
    assert not figures.work_out(figures.numbers().tolist())[0] < float("inf")
