"""What a run remembers of its step times: medians, without warm-up, in bounded memory."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.profile import Profile, slowest
from swell.core.types import StepTimes
from swell.errors import CheckpointError, ConfigError


def step(step_s: float = 1.0, *, micro: int = 32, sync_s: float = 0.0, replicas: int = 1) -> StepTimes:
    return StepTimes(replicas=replicas, nodes=1, micro_batch=micro, accumulation=1, step_s=step_s, sync_s=sync_s)


def filled(*steps: StepTimes, **settings: int) -> Profile:
    profile = Profile(**settings)
    for one in steps:
        profile.add(one)
    return profile


runs = st.lists(
    st.tuples(st.sampled_from([8, 16, 32]), st.floats(1e-3, 10)).map(lambda pair: step(pair[1], micro=pair[0])),
    max_size=120,
)


def test_the_first_steps_of_a_shape_and_the_odd_stall_do_no_harm():
    summaries = filled(step(40.0), step(3.0), *[step(1.0)] * 5, step(9.0), *[step(1.0)] * 5).summaries()
    assert [(summary.micro_batch, summary.step_s) for summary in summaries] == [(32, 1.0)]


def test_after_a_change_of_shape_one_step_is_left_out_of_a_known_one_and_two_of_a_new_one():
    profile = filled(*[step(1.0)] * 5)  # three measured
    assert [summary.count for summary in profile.summaries()] == [3]
    for one in [*[step(2.0, micro=64)] * 4, *[step(1.0)] * 2]:
        profile.add(one)
    assert len(profile.summaries()) == 1  # two of the new shape are measured, which is too few to tell
    profile.add(step(7.0, micro=64))  # the first after the change: left out
    profile.add(step(2.0, micro=64))
    assert [(summary.micro_batch, summary.step_s) for summary in profile.summaries()] == [(32, 1.0), (64, 2.0)]


def test_the_newest_steps_count_so_a_machine_that_slows_down_is_noticed():
    profile = filled(*[step(1.0)] * 100, *[step(2.0)] * 40, window=32)
    assert profile.summaries()[0].step_s == 2.0


def test_what_was_only_tried_long_ago_is_forgotten_and_each_time_later():
    profile = filled(*[step(3.0, micro=64)] * 8, *[step(1.0)] * 400)
    assert [summary.micro_batch for summary in profile.summaries()] == [32, 64]
    for _ in range(200):
        profile.add(step(1.0))
    assert [summary.micro_batch for summary in profile.summaries()] == [32]
    for one in [*[step(3.0, micro=64)] * 8, *[step(1.0)] * 900]:
        profile.add(one)
    assert [summary.micro_batch for summary in profile.summaries()] == [32, 64]
    restored = Profile()
    restored.load_state_dict(json.loads(json.dumps(profile.state_dict())))
    for _ in range(200):
        restored.add(step(1.0))
    assert [summary.micro_batch for summary in restored.summaries()] == [32]


def test_a_configuration_that_stood_for_long_is_kept_for_long():
    profile = filled(*[step(3.0, micro=64)] * 40, *[step(1.0)] * 2000)
    assert [summary.micro_batch for summary in profile.summaries()] == [32, 64]
    for _ in range(100):
        profile.add(step(1.0))
    assert [summary.micro_batch for summary in profile.summaries()] == [32]


def test_more_work_that_once_took_out_of_all_proportion_longer_is_forgotten():
    profile = filled(*[step(5.0, micro=64)] * 40, *[step(1.0)] * 90)
    assert [summary.micro_batch for summary in profile.summaries()] == [32]
    profile = filled(*[step(3.5, micro=64)] * 40, *[step(1.0)] * 90)
    assert [summary.micro_batch for summary in profile.summaries()] == [32, 64]  # it may miss a cache


def test_less_work_that_once_took_longer_is_forgotten_but_not_for_ever_and_again():
    profile = filled(*[step(1.5, micro=16)] * 40, *[step(1.0)] * 60)
    assert [summary.micro_batch for summary in profile.summaries()] == [16, 32]
    for _ in range(20):
        profile.add(step(1.0))
    assert [summary.micro_batch for summary in profile.summaries()] == [32]
    for one in [*[step(1.5, micro=16)] * 8, *[step(1.0)] * 100]:
        profile.add(one)
    assert [summary.micro_batch for summary in profile.summaries()] == [16, 32]  # it may be so: asked again much later


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_of_another_speed_is_measured_anew_and_other_worlds_are_kept(factor):
    profile = filled(*[step(3.0, micro=64)] * 40, *[step(3.0, micro=8, replicas=2)] * 40, *[step(1.0)] * 40)
    for _ in range(40):
        profile.add(step(1.2))  # a little slower is the same machine
    assert len(profile.summaries()) == 3
    for _ in range(40):
        profile.add(step(factor))
    assert [(summary.micro_batch, summary.replicas) for summary in profile.summaries()] == [(32, 1), (8, 2)]


@given(runs)
def test_a_median_lies_among_the_steps_it_is_over(steps):
    profile = filled(*steps, window=16)
    for summary in profile.summaries():
        times = [one.step_s for one in steps if one.micro_batch == summary.micro_batch]
        assert min(times) <= summary.step_s <= max(times)
        assert 3 <= summary.count <= 16


@given(st.floats(1e-3, 10), st.lists(st.floats(-0.009, 0.009), min_size=40, max_size=200))
def test_the_summaries_stay_the_same_object_while_nothing_material_changes(seconds, jitter):
    profile, objects = Profile(), set()
    for wiggle in jitter:
        profile.add(step(seconds * (1 + wiggle)))
        objects.add(id(profile.summaries()))
    assert len(objects) <= 5  # none yet, and at 3, 12 and 32 steps


@given(runs, runs)
def test_a_profile_goes_on_from_its_saved_state_as_if_nothing_had_happened(before, after):
    profile = filled(*before)
    restored = Profile()
    restored.load_state_dict(json.loads(json.dumps(profile.state_dict())))
    assert restored.summaries() == profile.summaries()
    fresh_start = Profile()
    fresh_start.load_state_dict(profile.state_dict())
    for one in after:
        restored.add(one)
        fresh_start.add(one)
    assert restored.summaries() == fresh_start.summaries()


@given(runs, st.lists(st.booleans(), max_size=60))
def test_it_does_not_matter_how_often_a_profile_is_read(steps, reads):
    often, once = Profile(), Profile()
    for times, read in zip(steps, itertools.chain(reads, itertools.repeat(False)), strict=False):
        often.add(times)
        once.add(times)
        if read:
            often.summaries()
            assert often.latest == times
    assert often.state_dict() == once.state_dict()
    assert often.summaries() == once.summaries() and often.latest == once.latest


def test_memory_is_bounded_and_the_configuration_not_run_for_longest_goes_first():
    profile = Profile(window=8, limit=3)
    for micro in (1, 2, 3, 1, 4):
        for _ in range(50):
            profile.add(step(micro / 10, micro=micro))
    assert [summary.micro_batch for summary in profile.summaries()] == [1, 3, 4]
    state = profile.state_dict()
    assert len(state["entries"]) == 3
    assert all(len(entry["step_s"]) == 8 for entry in state["entries"])


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_times_that_are_no_times_are_left_out(seconds):
    profile = filled(*[step(1.0)] * 10)
    profile.add(step(seconds))
    assert [summary.step_s for summary in profile.summaries()] == [1.0]


def test_waiting_is_summarised_beside_the_step():
    summaries = filled(*[step(1.0, sync_s=0.25)] * 10).summaries()
    assert summaries[0].sync_s == 0.25


def test_a_step_is_as_slow_as_its_slowest_replica():
    one = slowest([step(1.0, sync_s=0.5, replicas=3), step(1.5, sync_s=0.1, replicas=3), step(1.2, replicas=3)])
    assert (one.step_s, one.sync_s, one.replicas) == (1.5, 0.0, 3)
    with pytest.raises(ConfigError, match="times is empty"):
        slowest([])


@pytest.mark.parametrize("settings", [{"window": 2}, {"limit": 0}])
def test_a_profile_that_could_tell_nothing_is_refused(settings):
    with pytest.raises(ConfigError, match=r"window is .* and limit is"):
        Profile(**settings)


@pytest.mark.parametrize(
    "state", [{}, {"entries": [{"shape": [1, 2]}]}, {"entries": 3}, {"entries": [{"shape": [1, 1, 1, "x"]}]}], ids=str
)
def test_a_damaged_state_is_refused_and_changes_nothing(state):
    profile = filled(*[step(1.0)] * 10)
    before = profile.summaries()
    with pytest.raises(CheckpointError, match="step times"):
        profile.load_state_dict(state)
    assert profile.summaries() is before
