"""What a larger step was worth, and the critical batch: by the losses of branches from one state."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.branch_worth import branch_worth, critical_batch, critical_batch_of_draws, worths
from tests.reference.branch_worth import tried_critical_batch, walked_worth

falls = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)
BASE = 16


def falling(drops: list[float]) -> list[tuple[int, float]]:
    curve, loss = [(0, 10.0)], 10.0
    for number, drop in enumerate(drops, start=1):
        loss -= drop
        curve.append((24 * number, loss))
    return curve


def law(batch: int, phi: float) -> float:
    return batch / BASE * (phi + BASE) / (phi + batch)


@given(drops=falls, part=st.floats(0.0, 1.0), steps=st.integers(1, 50))
def test_a_worth_is_the_base_steps_to_the_same_loss_over_the_large_steps(
    drops: list[float], part: float, steps: int
) -> None:
    base = falling(drops)
    loss = 10.0 - part * sum(drops)
    expected = walked_worth(base, steps, loss)
    assert branch_worth(base, [(steps, loss)]) == pytest.approx(expected, abs=base[-1][0] / steps / 10_000 + 1e-9)


def test_the_longest_piece_that_the_base_branch_reaches_counts() -> None:
    base = [(0, 3.0), (50, 2.0), (100, 1.0)]
    assert branch_worth(base, [(10, 2.5), (20, 1.5)]) == 75 / 20
    assert branch_worth(base, [(10, 2.5), (20, 0.5)]) == 25 / 10, "the longer one is off the base branch"
    assert branch_worth(base, [(10, 0.9), (20, 0.5)]) == 100 / 10, "at least as much as the whole base branch"
    assert branch_worth(base, [(10, 3.5)]) == 0.0, "large steps did harm"


def test_nothing_is_said_of_a_base_branch_without_progress() -> None:
    curve = [(0, 1.0), (50, 1.1), (100, 1.0)]
    assert branch_worth(curve, [(10, 0.5)]) is None
    assert worths([{BASE: curve, 64: [(10, 0.5)]}], base=BASE) == []
    assert critical_batch_of_draws([{BASE: curve, 64: [(10, 0.5)]}], base=BASE) is None


@given(phi=st.floats(4.0, 1500.0), most=st.integers(1, 5))
def test_the_critical_batch_of_worths_by_the_law_is_that_of_the_law(phi: float, most: int) -> None:
    worth_of = {BASE * 2**power: law(BASE * 2**power, phi) for power in range(1, most + 1)}
    assert critical_batch(worth_of, base=BASE) == pytest.approx(phi, rel=0.01)


@given(values=st.lists(st.floats(0.2, 0.9), min_size=2, max_size=4))
def test_the_fit_is_that_of_trying_every_batch(values: list[float]) -> None:
    worth_of = {BASE * 2**power: 1 + part * (2**power - 1) for power, part in enumerate(values, start=1)}
    tried = tried_critical_batch(worth_of, base=BASE)
    assert critical_batch(worth_of, base=BASE) == pytest.approx(tried, rel=0.01, abs=1)


def test_the_critical_batch_has_no_end_where_no_sample_is_lost_and_is_zero_where_no_step_gains() -> None:
    assert critical_batch({32: 2.0, 64: 4.0}, base=BASE) == math.inf
    assert critical_batch({32: 1.0, 64: 0.7}, base=BASE) == 0.0


def test_bounds_hold_the_critical_batch_and_close_in_where_draws_agree() -> None:
    base = [(0, 3.0), (100, 1.0)]

    def draw(off: float) -> dict[int, list[tuple[int, float]]]:
        return {BASE: base, 64: [(20, 3.0 - 20 * law(64, 100.0) * off / 50)]}

    near = critical_batch_of_draws([draw(0.99), draw(1.01), draw(1.0)], base=BASE)
    far = critical_batch_of_draws([draw(0.9), draw(1.1), draw(1.0)], base=BASE)
    one = critical_batch_of_draws([draw(1.0)], base=BASE)
    assert near is not None and far is not None and one is not None
    assert far.low < near.low < near.batch < near.high < far.high
    assert near.batch == pytest.approx(100, rel=0.02)
    assert (one.low, one.high) == (0.0, math.inf)
