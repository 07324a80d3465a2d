"""A run's columns are those of the run as it went in the end: nothing twice, short last steps marked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.events import Resized, Stepped, Warned
from swell.errors import ConfigError
from swell.telemetry import series_of
from swell.telemetry.series import smoothed
from tests.reference.telemetry import smoothed as smoothed_slowly
from tests.telemetry.runs import a_run, stepped

STEPS = [event for event in a_run() if isinstance(event, Stepped)]


def test_there_is_one_entry_for_each_step():
    run = series_of(a_run())
    assert run.steps == len(STEPS) == 28
    assert run.samples.tolist() == [step.samples for step in STEPS]
    assert run.global_batch.tolist() == [step.global_batch for step in STEPS]
    assert run.lr_factor.tolist() == [step.lr_factor[0] for step in STEPS]
    assert run.samples_per_s.tolist() == [step.global_batch / step.step_s for step in STEPS]


@given(crashes=st.lists(st.tuples(st.integers(0, 27), st.integers(0, 27)), max_size=4))
def test_steps_that_were_done_again_after_a_resume_count_once(crashes):
    events: list = []
    for crash, save in crashes:  # each process did some steps and was lost; the next began at a checkpoint
        events += STEPS[min(crash, save) : crash + 1]
        events += STEPS[min(crash, save) :]
    events += STEPS
    assert series_of(events).samples.tolist() == series_of(STEPS).samples.tolist()


def test_resizes_are_placed_between_the_steps_and_go_with_steps_that_were_undone():
    resized = Resized(time=0.0, step=1, before=1, after=2, reason="r")
    assert series_of([*STEPS[:5], resized, *STEPS[5:]]).resizes.tolist() == [STEPS[4].samples]
    assert series_of([*STEPS[:5], resized, *STEPS[2:]]).resizes.tolist() == []
    assert series_of([resized, *STEPS]).resizes.tolist() == []  # before the first step there is nothing to mark


def test_the_short_last_step_of_an_epoch_is_not_taken_for_a_decision():
    run = series_of(a_run(epochs=3, size=1000))
    assert run.cut.sum() == 3 and set(run.global_batch[run.cut]) == {1000 % 64, 1000 % 128, 1000 % 256}
    assert set(run.chosen(run.global_batch)) == {64, 128, 256}
    assert set(run.chosen(run.gain)) == set(run.gain[~run.cut])


def test_a_batch_that_shrinks_within_an_epoch_is_a_decision():
    run = series_of([stepped(samples=64 * i + 64, global_batch=b) for i, b in enumerate([64, 32, 32, 64])])
    assert not run.cut.any()
    assert run.chosen(run.global_batch).tolist() == [64, 32, 32, 64]


def test_what_was_not_measured_is_not_a_number():
    run = series_of([stepped(loss=None, lr_factor=(), step_s=0.0)])
    assert all(np.isnan(column).all() for column in (run.loss, run.lr_factor, run.noise_scale, run.samples_per_s))


@pytest.mark.parametrize("events", [[], [Warned(time=0.0, message="m")]])
def test_a_log_without_a_step_has_no_columns(events):
    with pytest.raises(ConfigError, match="no committed step"):
        series_of(events)


@given(
    steps=st.lists(
        st.tuples(st.floats(-1e3, 1e3) | st.sampled_from([math.nan, math.inf]), st.integers(1, 500)), min_size=1
    ),
    over=st.floats(1, 1e4),
)
def test_the_average_is_the_weighted_one_it_is_said_to_be(steps, over):
    values = np.array([value for value, _ in steps])
    samples = np.cumsum([size for _, size in steps]).astype(float)
    expected = smoothed_slowly(values.tolist(), samples.tolist(), over=over)
    np.testing.assert_allclose(smoothed(values, samples, over=over), expected, rtol=1e-9, atol=1e-9)


@given(value=st.floats(-1e3, 1e3), over=st.floats(1, 1e6))
def test_a_constant_is_its_own_average_from_the_first_step_on(value, over):
    samples = np.arange(1.0, 50.0)
    np.testing.assert_allclose(smoothed(np.full(49, value), samples, over=over), value, rtol=1e-9, atol=1e-9)
