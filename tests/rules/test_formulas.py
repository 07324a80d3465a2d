"""Each rule against its formula as the paper prints it."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swell.core.types import Factors, Moments, ScaleState
from swell.errors import ConfigError
from swell.rules import (
    LEGW,
    AdamMeanGain,
    AdamScale,
    AdamSDE,
    AdaScale,
    Constant,
    KeepAverageTime,
    KeepDecayTime,
    Linear,
    MeanGain,
    Root,
)
from tests.reference import rules as slow

scales = st.floats(0.01, 1000)
signals = st.floats(1e-3, 1e3)
noises = st.floats(1e-3, 1e6)
bases = st.integers(1, 4096)


def state(scale: float, **known: object) -> ScaleState:
    return ScaleState(**{"scale": scale, "base_batch": 32, **known})  # pyright: ignore[reportArgumentType]


@given(scale=scales)
def test_constant_changes_nothing_and_counts_steps(scale: float) -> None:
    assert Constant().factors(state(scale)) == Factors()
    assert Constant().gain(state(scale)) == 1.0


@given(scale=scales)
def test_linear_and_root_follow_the_scale_and_count_samples(scale: float) -> None:
    assert Linear().factors(state(scale)) == Factors(lr=scale, ema_power=scale)
    assert Root().factors(state(scale)) == Factors(lr=math.sqrt(scale), ema_power=scale)
    assert Linear().gain(state(scale)) == Root().gain(state(scale)) == scale


@given(scale=scales, signal=signals, noise=noises, base=bases)
def test_adascale_is_its_gain(scale: float, signal: float, noise: float, base: int) -> None:
    seen = state(scale, base_batch=base, moments=Moments(signal, noise))
    expected = slow.adascale_gain(scale, signal=signal, noise=noise, base_batch=base)
    assert AdaScale().factors(seen).lr == pytest.approx(expected, rel=1e-9)
    assert AdaScale().gain(seen) == pytest.approx(expected, rel=1e-9)


@given(scale=scales, signal=signals, noise=noises, base=bases)
def test_adamscale_is_the_root_of_the_gain_in_its_own_metric_as_far_as_the_plain_one_goes(
    scale: float, signal: float, noise: float, base: int
) -> None:
    expected = slow.adascale_gain(scale, signal=signal, noise=noise, base_batch=base)
    bound = slow.adascale_gain(scale, signal=noise, noise=signal, base_batch=base)
    other = Moments(signal=noise, noise=signal)
    both = state(scale, base_batch=base, moments=other, preconditioned=Moments(signal, noise))
    assert AdamScale().gain(both) == pytest.approx(min(expected, bound), rel=1e-9)
    alone = state(scale, base_batch=base, preconditioned=Moments(signal, noise))
    plain = state(scale, base_batch=base, moments=Moments(signal, noise), preconditioned=other)
    for rule, seen in ((AdamScale(), alone), (AdamScale(metric="plain"), plain)):
        assert rule.factors(seen).lr == pytest.approx(math.sqrt(expected), rel=1e-9)
        assert rule.gain(seen) == pytest.approx(expected, rel=1e-9)


@given(scale=scales, signal=signals, noise=noises, base=bases)
def test_the_mean_gain_is_the_geometric_mean_of_the_linear_rule_and_adascale(
    scale: float, signal: float, noise: float, base: int
) -> None:
    seen = state(scale, base_batch=base, moments=Moments(signal, noise), preconditioned=Moments(signal, noise))
    expected = math.sqrt(scale * slow.adascale_gain(scale, signal=signal, noise=noise, base_batch=base))
    for rule in (MeanGain(), AdamMeanGain(), AdamMeanGain(metric="plain")):
        assert rule.gain(seen) == pytest.approx(expected, rel=1e-9)
    assert MeanGain().factors(seen).lr == pytest.approx(expected, rel=1e-9)
    # Adam divides by the root of the second moment, which falls by the root of the gain.
    assert AdamMeanGain().factors(seen).lr * AdamScale().gain(seen) ** 0.5 == pytest.approx(expected, rel=1e-9)
    assert AdamMeanGain(betas="follow").factors(seen).beta_power == pytest.approx(expected, rel=1e-9)
    assert AdamMeanGain().factors(seen).beta_power == 1.0


@given(scale=scales)
def test_noise_aware_rules_are_cautious_until_something_is_measured(scale: float) -> None:
    plain_only = state(scale, moments=Moments(0.0, 1.0))
    assert AdaScale().factors(state(scale)).lr == AdaScale().gain(state(scale)) == min(1.0, scale)
    assert AdamScale().gain(plain_only) == min(1.0, scale)
    assert AdamScale().factors(plain_only).lr == math.sqrt(min(1.0, scale))


@given(scale=scales)
def test_pure_noise_gives_the_linear_and_the_root_rule(scale: float) -> None:
    noisy = state(scale, moments=Moments(0.0, 1.0), preconditioned=Moments(-1e-9, 1.0))
    assert AdaScale().factors(noisy).lr == pytest.approx(Linear().factors(noisy).lr)
    assert AdamScale().factors(noisy).lr == pytest.approx(Root().factors(noisy).lr)


@given(scale=scales, warmup=st.floats(0.5, 1e4), base=bases, samples=st.integers(0, 10**8))
def test_legw_stretches_the_users_warm_up_or_makes_all_of_it(
    scale: float, warmup: float, base: int, samples: int
) -> None:
    seen = state(scale, base_batch=base, samples=samples)
    reached = samples + scale * base
    whole = slow.legw_lr(scale, warmup_samples=warmup * base, reached=reached)
    assert LEGW(warmup=warmup, base_warmup="rule").factors(seen).lr == pytest.approx(whole, rel=1e-9)
    own = min(1.0, reached / (warmup * base))  # what the user's schedule does at this sample by itself
    assert own * LEGW(warmup=warmup).factors(seen).lr == pytest.approx(whole, rel=1e-9)


def test_legw_without_warm_up_is_the_root_rule() -> None:
    assert LEGW(warmup=0).factors(state(9.0)) == Root().factors(state(9.0))


def test_legw_takes_its_warm_up_in_epochs_too() -> None:
    assert LEGW.from_epochs(2, epoch_size=1000, base_batch=50) == LEGW(warmup=40)


@given(scale=scales)
def test_adam_sde_scales_all_of_adam(scale: float) -> None:
    root = math.sqrt(scale)
    assert AdamSDE().factors(state(scale)) == Factors(lr=root, eps=1 / root, beta_power=scale, ema_power=scale)
    assert AdamSDE().gain(state(scale)) == scale


@given(beta=st.floats(0.9, 0.9999), scale=st.floats(0.01, 8))
def test_the_power_of_beta_is_malladis_rule_to_first_order_and_stays_a_decay(beta: float, scale: float) -> None:
    assume(scale * (1 - beta) < 0.1)
    power = AdamSDE().factors(state(scale)).beta_power
    printed = 1 - scale * (1 - beta)
    assert beta**power == pytest.approx(printed, abs=(max(scale, 1) * (1 - beta)) ** 2)
    assert 0 <= beta ** AdamSDE().factors(state(1e4)).beta_power < 1


@given(scale=scales, most=st.floats(1, 100))
def test_a_capped_adam_sde_takes_larger_batches_for_the_largest(scale: float, most: float) -> None:
    capped = AdamSDE(max_scale=most)
    assert capped.factors(state(scale)) == AdamSDE().factors(state(min(scale, most)))
    assert capped.gain(state(scale)) == min(scale, most)


@pytest.mark.parametrize("rule", [Constant(), Linear(), Root(), AdamSDE(), AdaScale(), LEGW(warmup=10)])
@given(scale=scales, samples=st.integers(0, 10**6))
def test_weight_decay_keeps_its_time_scale_in_samples(rule: Linear, scale: float, samples: int) -> None:
    seen = state(scale, samples=samples, moments=Moments(1.0, 100.0))
    kept = KeepDecayTime(rule).factors(seen)
    assert kept.lr * kept.weight_decay == pytest.approx(scale)
    assert kept.lr == rule.factors(seen).lr
    assert KeepDecayTime(rule).gain(seen) == rule.gain(seen)


def test_a_weight_forgets_as_much_over_the_same_samples() -> None:
    lr, decay = 1e-3, 0.1
    kept = KeepDecayTime(Root()).factors(state(8.0))
    small = slow.left_after([lr * decay] * 800)
    large = slow.left_after([lr * kept.lr * decay * kept.weight_decay] * 100)
    assert large == pytest.approx(small, rel=1e-3)


def test_weight_decay_is_left_alone_where_the_learning_rate_is_zero() -> None:
    class Still:
        def factors(self, state: ScaleState) -> Factors:
            return Factors(lr=0.0)

        def gain(self, state: ScaleState) -> float:
            return 1.0

    assert KeepDecayTime(Still()).factors(state(8.0)) == Factors(lr=0.0)


@given(scale=scales)
def test_a_model_average_spans_the_same_samples(scale: float) -> None:
    kept = KeepAverageTime(Constant())
    assert kept.factors(state(scale)) == Factors(ema_power=scale)
    assert kept.gain(state(scale)) == 1.0
    decay, steps = 0.999, 10_000
    at_base, at_scale = decay**steps, (decay**scale) ** (steps / scale)
    assert at_scale == pytest.approx(at_base)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LEGW(warmup=-1),
        lambda: LEGW(warmup=math.inf),
        lambda: LEGW(base_warmup="nobody"),  # pyright: ignore[reportArgumentType]
        lambda: AdamSDE(max_scale=0.5),
        lambda: AdamSDE(max_scale=math.nan),
        lambda: AdamScale(metric="euclid"),  # pyright: ignore[reportArgumentType]
        lambda: AdamMeanGain(metric="euclid"),  # pyright: ignore[reportArgumentType]
        lambda: AdamMeanGain(betas="drop"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_that_make_no_sense_are_refused(make: type) -> None:
    with pytest.raises(ConfigError, match=r"(warmup|base_warmup|max_scale|metric|betas) is "):
        make()
