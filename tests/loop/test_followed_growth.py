"""Under a policy by the noise, rules follow a growth of the batch over some steps, and everything else at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.planning import plan
from swell.loop.pace import Pace
from swell.policies import Fixed, Goodput, NoiseScale, NormTest

BASE, DOUBLED = 16, 16  # steps in which the scale may double
batches = st.lists(st.tuples(st.integers(1, 1024), st.integers(1, 60)), min_size=1, max_size=8)


def make(policy: object = Goodput(BASE, max=1024)) -> Pace:
    return Pace(policy, micro=None, constant_micro=False, capacity=None)  # type: ignore[arg-type]


def step(pace: Pace, batch: int) -> float:
    """The scale that rules go by in a step at this batch, in base batches."""
    followed = batch * pace.part_followed(batch) / BASE
    pace.committed(plan(batch, 1), batch=batch, samples=0, gain=1.0, nodes=1)
    return followed


@given(batches=batches)
def test_the_scale_doubles_in_16_steps_at_most_and_falls_at_once(batches: list[tuple[int, int]]) -> None:
    pace, before = make(), None
    for batch, count in batches:
        for _ in range(count):
            scale = step(pace, batch)
            assert scale <= batch / BASE * (1 + 1e-9)
            if before is not None:
                most = max(before, 1.0) * 2 ** (1 / DOUBLED)
                assert scale == pytest.approx(min(batch / BASE, most))
            before = scale


@given(batch=st.integers(1, 1024))
def test_the_batch_that_a_run_starts_with_is_followed_at_once(batch: int) -> None:
    assert step(make(), batch) == batch / BASE


@pytest.mark.parametrize("policy", [NoiseScale(BASE, max=1024), NormTest(BASE, max=1024)])
def test_every_policy_by_the_noise_is_followed_gradually(policy: object) -> None:
    pace = make(policy)
    step(pace, BASE)
    scales = [step(pace, 4 * BASE) for _ in range(2 * DOUBLED)]
    assert scales[0] == pytest.approx(2 ** (1 / DOUBLED)) and scales[-1] == pytest.approx(4.0)
    assert scales == sorted(scales)


def test_a_batch_that_the_user_planned_is_followed_at_once() -> None:
    pace = make(Fixed(BASE))
    assert [step(pace, batch) for batch in (BASE, 8 * BASE, 2 * BASE)] == [1.0, 8.0, 2.0]


@given(batches=batches)
def test_a_saved_run_goes_on_where_it_was(batches: list[tuple[int, int]]) -> None:
    pace, other = make(), make()
    for batch, count in batches:
        for _ in range(count):
            step(pace, batch)
    other.load_state_dict(pace.state_dict())
    assert [step(other, 512) for _ in range(50)] == [step(pace, 512) for _ in range(50)]


def test_a_run_that_was_saved_without_it_goes_on_at_its_batch() -> None:
    pace, other = make(), make()
    step(pace, 64)
    state = pace.state_dict()
    del state["followed"]
    other.load_state_dict(state)
    assert step(other, 64) == 4.0
    assert step(other, 128) == pytest.approx(4 * 2 ** (1 / DOUBLED))
