"""Noise scale and norm test follow a sure estimate within their bounds, and keep the batch without one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.types import Moments, NoiseEstimate
from swell.errors import ConfigError
from swell.policies import NoiseScale, NormTest
from tests.policies.observations import estimate, observations, seen

SCALES = st.floats(1e-3, 1e9)


@given(scale=SCALES, factor=st.floats(0.01, 100), batch=st.integers(1, 10**5))
def test_the_batch_is_the_noise_scale_times_the_factor_within_the_bounds(scale, factor, batch):
    policy = NoiseScale(base=64, max=4096, factor=factor)
    chosen = policy.batch(seen(batch=batch, noise=estimate(scale)))
    assert 64 <= chosen <= 4096
    if 64 <= factor * scale <= 4096:
        assert abs(chosen - factor * scale) <= 0.5


def test_the_batch_shrinks_below_the_base_only_where_a_minimum_allows_it():
    small = seen(batch=64, noise=estimate(10))
    assert NoiseScale(base=64, max=4096).batch(small) == 64
    assert NoiseScale(base=64, max=4096, min=16).batch(small) == 16
    assert NoiseScale(base=64, max=4096, min=1).batch(small) == 10


@given(scale=SCALES, eta=st.floats(0.05, 2), batch=st.integers(64, 4096))
def test_the_norm_test_passes_at_the_batch_it_asks_for_and_at_none_below(scale, eta, batch):
    policy = NormTest(base=64, max=4096, eta=eta, monotone=False)
    chosen = policy.batch(seen(batch=batch, noise=estimate(scale)))

    def passes(size):  # Byrd et al.: the variance of the mean gradient against its squared norm (here 1)
        return scale / size <= eta**2 * (1 + 1e-9)

    assert passes(chosen) or chosen == 4096
    assert chosen == 64 or not passes(chosen - 1.001)


@given(scales=st.lists(SCALES, min_size=1, max_size=20))
def test_the_norm_test_never_shrinks_the_batch_unless_asked(scales):
    growing, free = NormTest(base=64, max=4096), NormTest(base=64, max=4096, monotone=False)
    batch = 64
    for scale in scales:
        here = seen(batch=batch, noise=estimate(scale))
        after = growing.batch(here)
        assert after == max(batch, free.batch(here))
        batch = after


def test_an_eta_of_one_asks_for_the_noise_scale_itself():
    here = seen(batch=64, noise=estimate(1000))
    assert NormTest(base=64, max=4096, eta=1).batch(here) == NoiseScale(base=64, max=4096).batch(here) == 1000
    assert NormTest(base=64, max=4096, eta=0.5).batch(here) == 4000


NOT_SURE = [
    None,
    estimate(1000, sure=False),
    NoiseEstimate(total=Moments(0.0, 1.0), groups=(), interval=(math.inf, math.inf), observations=9),
    NoiseEstimate(total=Moments(-1.0, 1.0), groups=(), interval=(10.0, 20.0), observations=9),
    NoiseEstimate(total=Moments(1.0, 10.0), groups=(), interval=(0.0, 20.0), observations=9),
    NoiseEstimate(total=Moments(1.0, 10.0), groups=(), interval=(math.nan, math.nan), observations=9),
    NoiseEstimate(total=Moments(math.nan, math.nan), groups=(), interval=(-5.0, 20.0), observations=9),
]


@pytest.mark.parametrize("noise", NOT_SURE, ids=str)
@pytest.mark.parametrize("policy", [NoiseScale(base=64, max=4096), NormTest(base=64, max=4096)], ids=repr)
def test_without_a_sure_estimate_the_batch_stays_within_the_bounds(policy, noise):
    assert [policy.batch(seen(batch=b, noise=noise)) for b in (8, 64, 500, 4096, 9999)] == [64, 64, 500, 4096, 4096]


@given(seen=observations(), base=st.integers(1, 500), room=st.integers(0, 5000))
def test_no_observation_leads_out_of_the_bounds(seen, base, room):
    for policy in (NoiseScale(base=base, max=base + room), NormTest(base=base, max=base + room, eta=1e-200)):
        assert base <= policy.batch(seen) <= base + room
        assert seen.epoch_size is None or policy.batch(seen) <= max(base, seen.epoch_size)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoiseScale(base=0, max=64), "base is 0"),
        (lambda: NoiseScale(base=64, max=2.5), "max is 2.5"),  # pyright: ignore[reportArgumentType]
        (lambda: NoiseScale(base=64, max=32), r"max is 32 and base is 64.* 64"),
        (lambda: NoiseScale(base=64, max=128, min=256), "max is 128 and min is 256"),
        (lambda: NoiseScale(base=64, max=128, min=0), "min is 0"),
        (lambda: NoiseScale(base=64, max=128, factor=0), "factor is 0"),
        (lambda: NoiseScale(base=64, max=128, factor=math.nan), "factor is nan"),
        (lambda: NormTest(base=64, max=32), "max is 32 and base is 64"),
        (lambda: NormTest(base=64, max=128, eta=0), "eta is 0"),
        (lambda: NormTest(base=64, max=128, eta=-1), "eta is -1"),
        (lambda: NormTest(base=True, max=128), "base is True"),
    ],
)
def test_bounds_that_cross_and_numbers_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
