"""One model of a run: the same however its events arrive, and true to what happened."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.events import EpochStarted, Resized, RunEnded, RunStarted, Saved, Stepped
from swell.telemetry.run_model import COLUMNS, RunModel, model_of
from swell.telemetry.series import series_of
from swell.telemetry.time_account import KINDS
from swell.telemetry.time_left import TimeLeft, time_left
from tests.telemetry.runs import a_run, stepped


def started(time: float, samples: int) -> RunStarted:
    return RunStarted(
        time=time, version="1", replicas=2, base_batch=64, policy="Fixed(64)", rule="auto", seed=0, samples=samples
    )


@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_it_does_not_matter_how_the_events_are_cut(cuts):
    events = a_run(resize_at=5)
    parts, model, first = sorted(cuts), RunModel(), 0
    for end in [*parts, len(events)]:
        model.take_all(events[first:end])
        first = max(first, end)
    whole = model_of(events)
    assert model.columns == whole.columns and model.notes == whole.notes
    assert (model.done, model.left, model.account.parts()) == (whole.done, whole.left, whole.account.parts())


@given(at=st.integers(1, 40), back=st.integers(0, 40))
def test_after_a_resume_every_sample_is_in_one_row(at, back):
    events = [event for event in a_run() if not isinstance(event, RunEnded)]
    steps = [event for event in events if hasattr(event, "samples")]
    cut = steps[: min(at, len(steps) - 1) + 1]
    resumed = max(0, len(cut) - back)
    last = cut[resumed - 1] if resumed else None
    position = last.samples if isinstance(last, Stepped) else 0
    again = [event for event in a_run() if getattr(event, "samples", 0) > position]
    model = model_of([*cut, started(1000.0, position), *again])
    samples = model.columns["samples"]
    assert samples == sorted(set(samples)) and samples[-1] == 3000
    assert all(len(column) == len(samples) for column in model.columns.values())
    assert all(later > former for former, later in pairwise(model.columns["step"]))


def test_its_rows_are_those_of_the_pictures():
    events = a_run(resize_at=20)
    model, series = model_of(events), series_of(events)
    assert model.num_steps == series.steps
    for name, column in {"samples": series.samples, "loss": series.loss, "batch": series.global_batch}.items():
        assert model.columns[name] == pytest.approx(column)
    assert set(model.columns) == set(COLUMNS)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_run_that_has_hardly_begun_has_a_model(count):
    model = model_of(a_run()[:count])
    assert model.num_steps == max(0, count - 2)
    assert model.left is None
    assert model.active_s >= 0 and sum(model.account.parts().values()) >= 0
    assert model.samples_per_s is None or model.samples_per_s > 0


def test_the_time_of_a_run_is_accounted_for_and_the_time_it_was_stopped_is_not():
    events = [
        started(0.0, 0),
        EpochStarted(time=0.0, epoch=0, samples=0, epoch_size=640, epochs=1, total_samples=640),
        stepped(time=2.0, step=1, samples=64, step_s=1.5, data_s=0.5),
        Saved(time=3.0, step=1, samples=64, path="p", held_s=0.25, bytes=100),
        Resized(time=4.0, step=1, before=2, after=3, reason="joined", pause_s=0.75),
        RunEnded(time=5.0, step=1, samples=64, reason="stopped on notice"),
        started(1005.0, 64),
        stepped(time=1007.0, step=2, samples=128, step_s=2.0, data_s=0.0),
    ]
    model = model_of(events)
    parts = model.account.parts()
    assert model.active_s == 7.0
    assert model.columns["active"] == [2.0, 7.0]
    assert parts == {
        "training": 3.0,
        "statistics": 0.0,
        "data": 0.5,
        "saving": 0.25,
        "resizing": 0.75,
        "repeated": 0.0,
        "other": 2.5,
    }
    assert tuple(parts) == KINDS and sum(parts.values()) == model.active_s


def test_measuring_gradients_costs_what_measured_steps_take_longer():
    model = RunModel()
    for step in range(1, 101):
        measured = step % 10 == 0
        model.take(
            stepped(time=float(step), step=step, samples=64 * step, step_s=0.7 if measured else 0.5, measured=measured)
        )
    assert model.account.parts()["statistics"] == pytest.approx(10 * 0.2)


def test_steps_done_again_are_counted_as_such():
    model = model_of([stepped(time=float(n), step=n, samples=64 * n, step_s=0.5) for n in range(1, 11)])
    model.take(started(20.0, 64 * 6))
    assert model.num_steps == 6
    assert model.account.parts()["repeated"] == pytest.approx(2.0)


# Time left


@given(speed=st.floats(0.1, 1e4), steps=st.integers(5, 200), seconds=st.floats(0.5, 10), more=st.floats(0.0, 1e6))
def test_at_a_steady_speed_the_time_left_is_exact_and_sure(speed, steps, seconds, more):
    active = [seconds * n for n in range(steps)]
    done = [speed * time for time in active]
    left = time_left(active, done, done[-1] + more)
    assert left is not None or active[-1] < 2.0
    if left is not None:
        assert left.low - 1e-9 <= left.seconds <= left.high + 1e-9
        assert left.seconds == pytest.approx(more / speed, rel=1e-6, abs=1e-6)
        assert left.high == pytest.approx(left.low, rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e5)), max_size=50), st.floats(0, 1e7))
def test_whatever_a_run_did_the_guess_is_finite_and_within_its_range(moves, total):
    active = done = 0.0
    actives, dones = [], []
    for seconds, gained in moves:
        active, done = active + seconds, done + gained
        actives.append(active)
        dones.append(done)
    left = time_left(actives, dones, total)
    if left is not None:
        assert 0 <= left.low <= left.seconds <= left.high and math.isfinite(left.high)


def test_a_run_that_became_slower_has_a_range():
    active = [*range(0, 100), *range(100, 300, 10)]
    done = list(range(len(active)))
    left = time_left(active, done, 200)
    assert left is not None and left.high > 1.5 * left.low
    assert " to " in str(left) and " to " not in str(TimeLeft(60.0, 60.0, 60.0))
