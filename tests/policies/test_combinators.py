"""Combinators bound, hold back and round what another policy wants; a batch that no longer fits is never held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.types import Layout, Observation
from swell.errors import ConfigError
from swell.policies import AtEpochEnds, Clamp, Dwell, Fixed, Hysteresis, RoundTo, RoundToReplicas, chosen_layout
from tests.policies.observations import observations, seen
from tests.reference.policies import rounded

SIZES = st.integers(1, 5000)
HOW = st.sampled_from(["nearest", "up", "down"])


def holds(seen: Observation) -> bool:
    """Whether there is a batch to hold: a step was made with it and it fits the replicas."""
    return seen.step > 0 and seen.feasible and seen.batch >= seen.replicas


@given(wanted=SIZES, bounds=st.tuples(SIZES, SIZES).map(sorted), seen=observations())
def test_a_clamped_batch_is_the_nearest_one_within_the_bounds(wanted, bounds, seen):
    low, high = bounds
    nearest = min(range(low, high + 1), key=lambda batch: abs(batch - wanted))
    assert Clamp(Fixed(wanted), low=low, high=high).batch(seen) == nearest
    assert Clamp(Fixed(wanted), low=low).batch(seen) == max(low, wanted)


@given(wanted=SIZES, change=st.floats(0, 2), seen=observations())
def test_hysteresis_makes_large_changes_and_leaves_small_ones(wanted, change, seen):
    held = holds(seen) and abs(wanted - seen.batch) < change * seen.batch
    assert Hysteresis(Fixed(wanted), change=change).batch(seen) == (seen.batch if held else wanted)


@pytest.mark.parametrize("how", ["nearest", "up"])
def test_rounding_makes_no_batch_larger_than_an_epoch(how):
    here = seen(epoch_size=230, batch=64, replicas=3)
    assert RoundTo(Fixed(230), multiple=64, how=how).batch(here) == 192
    assert RoundToReplicas(Fixed(230), micro=20, how=how).batch(here) == 180
    assert RoundTo(Fixed(180), multiple=64, how="up").batch(here) == 192


def test_hysteresis_measures_a_change_by_the_batch_there_is():
    policy = Hysteresis(Fixed(110), change=0.1)
    assert policy.batch(seen(batch=100)) == 110  # ten percent is enough
    assert policy.batch(seen(batch=101)) == 101
    assert Hysteresis(Fixed(111), change=0).batch(seen(batch=110)) == 111


@given(wanted=SIZES, dwell=st.integers(1, 10**6), seen=observations())
def test_a_batch_dwells_for_its_samples_unless_the_world_changes(wanted, dwell, seen):
    young = seen.samples - seen.batch_since < dwell
    held = young and holds(seen) and not seen.resized
    assert Dwell(Fixed(wanted), samples=dwell).batch(seen) == (seen.batch if held else wanted)


def test_a_dwell_counts_from_the_last_change():
    policy = Dwell(Fixed(128), samples=1000)
    ages = [policy.batch(seen(batch=64, samples=5000 + age, batch_since=5000)) for age in (0, 999, 1000)]
    assert ages == [64, 64, 128]


@given(wanted=SIZES, seen=observations())
def test_at_epoch_ends_a_change_waits_for_the_next_epoch(wanted, seen):
    held = seen.epoch_samples > 0 and holds(seen)
    assert AtEpochEnds(Fixed(wanted)).batch(seen) == (seen.batch if held else wanted)


@given(wanted=SIZES, multiple=st.integers(1, 600), how=HOW, seen=observations())
def test_a_rounded_batch_is_the_multiple_that_was_asked_for(wanted, multiple, how, seen):
    batch = RoundTo(Fixed(wanted), multiple=multiple, how=how).batch(seen)
    assert batch == rounded(wanted, multiple, how, seen.epoch_size)


@given(wanted=SIZES, micro=st.integers(1, 20), how=HOW, seen=observations())
def test_rounded_to_replicas_every_share_is_the_same_whole_number_of_micro_batches(wanted, micro, how, seen):
    batch = RoundToReplicas(Fixed(wanted), micro=micro, how=how).batch(seen)
    assert batch == rounded(wanted, seen.replicas * micro, how, seen.epoch_size)
    assert batch % (seen.replicas * micro) == 0


HOLDING = [
    Hysteresis(Fixed(1000), change=1e9),
    Dwell(Fixed(1000), samples=10**9),
    AtEpochEnds(Fixed(1000)),
    AtEpochEnds(Dwell(Hysteresis(Fixed(1000), change=1e9), samples=10**9)),
]


@pytest.mark.parametrize("policy", HOLDING, ids=repr)
def test_a_batch_is_held_in_the_middle_of_an_epoch(policy):
    assert policy.batch(seen(batch=64)) == 64


@pytest.mark.parametrize("policy", HOLDING, ids=repr)
def test_the_first_step_has_no_batch_to_hold(policy):
    assert policy.batch(seen(step=0, samples=0, epoch_samples=0)) == 1000
    assert policy.batch(seen(step=0, samples=64, epoch_samples=64)) == 1000  # the step before was skipped


@pytest.mark.parametrize("policy", HOLDING, ids=repr)
def test_a_batch_that_does_not_fit_the_replicas_is_not_held(policy):
    assert policy.batch(seen(batch=64, feasible=False, resized=True)) == 1000
    assert policy.batch(seen(batch=3, replicas=4, resized=True)) == 1000


def test_a_resize_ends_a_dwell_and_nothing_else():
    here = seen(batch=900, resized=True)
    assert Dwell(Fixed(1000), samples=10**9).batch(here) == 1000
    assert Hysteresis(Fixed(1000), change=0.2).batch(here) == 900
    assert AtEpochEnds(Fixed(1000)).batch(here) == 900


class LayingOut:
    base = 64

    def batch(self, seen):
        return self.layout(seen).global_batch

    def layout(self, seen):
        return Layout(global_batch=1000, micro_batch=25)


def test_the_micro_batch_of_a_policy_that_lays_steps_out_comes_through():
    assert chosen_layout(LayingOut(), seen()) == Layout(global_batch=1000, micro_batch=25)
    nested = Clamp(RoundTo(LayingOut(), multiple=64), high=512)
    assert chosen_layout(nested, seen()) == Layout(global_batch=512, micro_batch=25)
    assert chosen_layout(Clamp(Fixed(64)), seen()) is None


@given(wanted=SIZES, seen=observations())
def test_combinators_nest_and_the_outermost_has_the_last_word(wanted, seen):
    policy = Clamp(RoundTo(Hysteresis(Fixed(wanted)), multiple=64), low=128, high=2048)
    assert policy.batch(seen) in range(128, 2049)
    assert policy.batch(seen) % 64 == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clamp(Fixed(64), low=0), "low is 0"),
        (lambda: Clamp(Fixed(64), high=0), "high is 0"),
        (lambda: Clamp(Fixed(64), low=10, high=5), "low is 10 and high is 5"),
        (lambda: Hysteresis(Fixed(64), change=-0.1), "change is -0.1"),
        (lambda: Hysteresis(Fixed(64), change=float("nan")), "change is nan"),
        (lambda: Dwell(Fixed(64), samples=0), "samples is 0"),
        (lambda: Dwell(Fixed(64), samples=1e6), r"samples is 1000000\.0"),  # pyright: ignore[reportArgumentType]
        (lambda: RoundTo(Fixed(64), multiple=0), "multiple is 0"),
        (lambda: RoundTo(Fixed(64), multiple=8, how="out"), "how is 'out'"),  # pyright: ignore[reportArgumentType]
        (lambda: RoundToReplicas(Fixed(64), micro=-1), "micro is -1"),
        (lambda: RoundToReplicas(Fixed(64), how="out"), "how is 'out'"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
