"""A log holds all a policy looked at, so its decisions can be made again, or made by another policy."""

from __future__ import annotations

import pytest
from hypothesis import given

from swell.core.events import BatchChanged, Warned, from_json, to_json
from swell.errors import ConfigError
from swell.policies import Fixed, NoiseScale, Replayed, observation_from_dict, observation_to_dict, replay
from tests.policies.observations import estimate, observations, seen


def changed(here, after):
    return BatchChanged(
        time=0.0, step=here.step, before=here.batch, after=after, policy="p", seen=observation_to_dict(here)
    )


@given(seen=observations())
def test_an_observation_comes_back_from_the_log_as_it_was(seen):
    event = from_json(to_json(changed(seen, 1)))
    assert isinstance(event, BatchChanged)
    back = observation_from_dict(event.seen)
    assert repr(back) == repr(seen)  # by text, since not-a-number is not itself
    assert repr(observation_from_dict(observation_to_dict(seen))) == repr(seen)


def test_another_policy_shows_what_it_would_have_done():
    run = NoiseScale(base=64, max=4096)
    moments = [seen(step=step, noise=estimate(scale)) for step, scale in [(1, 100), (2, 5000), (3, 10)]]
    log = [Warned(time=0.0, message="m"), *(changed(here, run.batch(here)) for here in moments)]
    assert replay(run, log) == [Replayed(1, 100, 100), Replayed(2, 4096, 4096), Replayed(3, 64, 64)]
    other = replay(NoiseScale(base=64, max=1024), log)
    assert [one[:3] for one in other] == [(1, 100, 100), (2, 4096, 1024), (3, 64, 64)]
    assert [one.same for one in other] == [True, False, True]
    assert replay(Fixed(1), []) == []


def test_fields_of_a_newer_version_are_left_out_and_defaults_fill_in():
    fields = observation_to_dict(seen(noise=estimate(100)))
    fields["weather"] = "fair"
    fields["noise"]["mood"] = 1
    del fields["feasible"], fields["capacity"], fields["times"]
    assert observation_from_dict(fields) == seen(noise=estimate(100))


@pytest.mark.parametrize("fields", [{}, {"step": 1}, {**observation_to_dict(seen()), "noise": 3}, None, [1]], ids=str)
def test_what_is_no_observation_is_refused(fields):
    with pytest.raises(ConfigError, match="observation is"):
        observation_from_dict(fields)
