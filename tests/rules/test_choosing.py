"""Rules by name, by function, by object, and by optimizer."""

from __future__ import annotations

import functools
import math
import re

import numpy as np
import pytest

from swell.core.protocols import Rule
from swell.core.types import Factors, Moments, ScaleState
from swell.errors import ConfigError
from swell.rules import (
    CHOICES,
    LEGW,
    RULES,
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
    as_rule,
    auto,
    auto_by_gain,
    choice,
    dual_norm,
    suits,
)
from swell.rules.metric import needs_dual, needs_preconditioned, refuse_dual
from swell.rules.worth import worth_power

STATE = ScaleState(scale=4.0, base_batch=32, samples=1000)
TORCH = [
    "SGD",
    "ASGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "SparseAdam",
    "Adafactor",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "LBFGS",
    "Muon",
]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_goes_by_its_name_in_any_spelling(name: str) -> None:
    assert as_rule(name) == as_rule(name.upper()) == as_rule(name.replace("-", "_")) == RULES[name]()


def test_a_parameter_called_scale_gets_the_number() -> None:
    def power(scale):
        return scale**0.5

    assert as_rule(power).factors(STATE) == Factors(lr=2.0)
    assert as_rule(lambda scale: scale).factors(STATE).lr == 4.0


def test_a_parameter_annotated_float_gets_the_number() -> None:
    def power(kappa: float) -> float:
        return kappa**0.5

    assert as_rule(power).factors(STATE).lr == 2.0


@pytest.mark.parametrize("function", [math.sqrt, np.sqrt])
def test_functions_not_written_in_python_get_the_number(function: object) -> None:
    assert as_rule(function).factors(STATE).lr == 2.0


def test_any_other_parameter_gets_the_whole_state() -> None:
    def by_state(state: ScaleState) -> Factors:
        return Factors(lr=state.scale / 2, weight_decay=float(state.samples))

    assert as_rule(by_state).factors(STATE) == Factors(lr=2.0, weight_decay=1000.0)
    assert as_rule(lambda s: s.samples / 500).factors(STATE) == Factors(lr=2.0)


def test_further_parameters_may_have_defaults_or_be_bound() -> None:
    def power(scale: float, exponent: float = 0.5) -> float:
        return scale**exponent

    assert as_rule(power).factors(STATE).lr == 2.0
    assert as_rule(functools.partial(power, exponent=1.0)).factors(STATE).lr == 4.0


def test_a_callable_object_is_a_function_too() -> None:
    class Power:
        def __call__(self, scale: float) -> float:
            return scale**0.5

    assert as_rule(Power()).factors(STATE).lr == 2.0


def test_progress_of_a_users_rule_counts_samples_unless_it_says_otherwise() -> None:
    class OnlyFactors:
        def factors(self, state: ScaleState) -> Factors:
            return Factors(lr=1.5)

    class Whole(OnlyFactors):
        def gain(self, state: ScaleState) -> float:
            return 1.25

    whole = Whole()
    assert as_rule(lambda scale: 1.0).gain(STATE) == 4.0
    assert as_rule(OnlyFactors()).gain(STATE) == 4.0
    assert as_rule(OnlyFactors()).factors(STATE).lr == 1.5
    assert as_rule(whole) is whole


def test_a_users_rule_keeps_saying_which_moments_it_looks_at() -> None:
    class InAdamsMetric:
        metric = "preconditioned"

        def factors(self, state: ScaleState) -> Factors:
            return Factors()

    assert needs_preconditioned(as_rule(InAdamsMetric()))
    assert not needs_preconditioned(as_rule(math.sqrt))
    assert not needs_preconditioned(as_rule(lambda scale: scale))


@pytest.mark.parametrize("given", ["quadratic", 3, None, "", [Linear()]])
def test_what_is_not_a_rule_is_told_what_could_be(given: object) -> None:
    with pytest.raises(ConfigError, match=r"rule is .*'auto'.*'constant'.*'adam-sde'.*f\(scale\)"):
        as_rule(given)


def test_a_class_where_an_instance_belongs_is_recognised() -> None:
    with pytest.raises(ConfigError, match=r"rule is .*AdaScale\(\)"):
        as_rule(AdaScale)


def test_auto_is_resolved_with_the_optimizers_name() -> None:
    with pytest.raises(ConfigError, match="rule is 'auto'"):
        as_rule("auto")


@pytest.mark.parametrize(
    "function", [lambda: 1.0, lambda scale, other: 1.0, lambda scale, *, other: 1.0, lambda *a: 1.0]
)
def test_a_function_of_another_number_of_arguments_is_refused(function: object) -> None:
    with pytest.raises(ConfigError, match=r"rule is .*lambda"):
        as_rule(function)


@pytest.mark.parametrize("returned", ["fast", None, -1.0, math.nan, math.inf, Factors(eps=math.nan)])
def test_a_users_factor_must_be_a_finite_number(returned: object) -> None:
    with pytest.raises(ConfigError, match=r"rule .*lambda"):
        as_rule(lambda scale: returned).factors(STATE)


@pytest.mark.parametrize("name", TORCH)
def test_every_torch_optimizer_has_a_rule_with_a_reason_that_suits_it(name: str) -> None:
    known = choice(name)
    assert known is CHOICES[name]
    assert auto(name) == auto(name.lower()) == known.rule
    assert len(known.reason) > 20
    assert suits(auto(name), name) is None


@pytest.mark.parametrize("name", [*TORCH, "Unheard"])
@pytest.mark.parametrize("rule", [Constant(), as_rule(lambda scale: 1.0), KeepAverageTime(Constant())])
def test_no_rule_and_a_users_own_suit_every_optimizer(rule: Rule, name: str) -> None:
    assert suits(rule, name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SGDW", MeanGain()),
        ("AdamW8bit", KeepDecayTime(AdamMeanGain(metric="plain"))),
        ("PagedAdam", AdamMeanGain(metric="plain")),
        ("SingleDeviceMuon", KeepDecayTime(AdamScale(metric="plain"))),
        ("SignSGD", AdamMeanGain(metric="plain")),
        ("DistributedLion", KeepDecayTime(AdamMeanGain(metric="plain"))),
        ("FusedAdam", KeepDecayTime(AdamMeanGain())),
    ],
)
def test_third_party_optimizers_are_known_by_parts_of_their_names(name: str, expected: Rule) -> None:
    assert auto(name) == expected
    assert suits(expected, name) is None


def test_an_unknown_optimizer_gets_a_cautious_rule_and_is_told_so() -> None:
    assert auto("Shampoo") == AdamMeanGain(metric="plain")
    assert "Shampoo" in (suits(auto("Shampoo"), "Shampoo") or "")
    assert suits(Linear(), "Shampoo") is None


@pytest.mark.parametrize(
    ("rule", "name", "instead"),
    [
        (Linear(), "Adam", "AdamMeanGain"),
        (AdaScale(), "AdamW", "KeepDecayTime"),
        (MeanGain(), "AdamW", "KeepDecayTime"),
        (KeepAverageTime(AdaScale()), "Muon", "plain"),
        (AdamScale(), "SGD", r"MeanGain\(\)"),
        (AdamMeanGain(), "SGD", r"MeanGain\(\)"),
        (AdamMeanGain(), "Muon", "plain"),
        (AdamScale(), "Adamax", "plain"),
        (AdamScale(metric="dual"), "SGD", r"MeanGain\(\)"),
        (KeepDecayTime(AdamScale(metric="dual")), "AdamW", "AdamMeanGain"),
        (AdamSDE(), "SGD", r"MeanGain\(\)"),
        (AdamSDE(), "RMSprop", "AdamMeanGain"),
        (Root(), "LBFGS", r"Constant\(\)"),
        (LEGW(), "Rprop", r"Constant\(\)"),
        (KeepDecayTime(AdamScale()), "Adam", "decoupled_weight_decay=True"),
    ],
)
def test_a_rule_that_does_not_suit_says_why_and_what_would(rule: Rule, name: str, instead: str) -> None:
    advice = suits(rule, name)
    assert advice is not None
    assert re.search(rf"{name}.*{instead}", advice)


@pytest.mark.parametrize("name", ["Muon", "SingleDeviceMuon", "Lion", "Signum", "SignSGD"])
def test_the_dual_norm_suits_steps_by_signs_and_by_orthogonal_matrices(name: str) -> None:
    assert suits(as_rule("dualscale"), name) is None
    assert dual_norm(name) == ("nuclear" if "Muon" in name else "absolute")
    assert "dual" not in repr(auto(name))


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Shampoo", "LBFGS"])
def test_other_optimizers_have_no_dual_norm(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the optimizer is {name}; expected .*'signum'.*Use .*rule='auto'"):
        dual_norm(name)


def test_a_rule_says_whether_it_looks_at_the_dual_norm() -> None:
    assert needs_dual(KeepDecayTime(AdamScale(metric="dual"))) and needs_dual(as_rule("dualscale"))
    assert not needs_dual(AdamScale()) and not needs_preconditioned(AdamScale(metric="dual"))
    refuse_dual(AdamScale(), "there")
    with pytest.raises(ConfigError, match=r"rule is AdamScale\(metric='dual'\), and there does not measure"):
        refuse_dual(AdamScale(metric="dual"), "there")


def test_the_gain_in_a_dual_norm_stands_alone() -> None:
    noisy, clear = Moments(signal=0.0, noise=32.0), Moments(signal=1.0, noise=0.0)
    rule = AdamScale(metric="dual")
    assert rule.gain(ScaleState(scale=4.0, base_batch=32, moments=clear, dual=noisy)) == 4.0
    assert rule.gain(ScaleState(scale=4.0, base_batch=32, moments=noisy, preconditioned=noisy)) == 1.0
    with pytest.raises(ConfigError, match="'preconditioned', 'plain' or 'dual'"):
        AdamScale(metric="nuclear")  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [Root(), LEGW(), AdamSDE(), KeepDecayTime(AdamSDE())])
def test_rules_of_the_root_suit_adamw(rule: Rule) -> None:
    assert suits(rule, "AdamW") is None


@pytest.mark.parametrize("rule", [Linear(), Root(), LEGW(), AdaScale(), KeepDecayTime(AdaScale())])
def test_rules_of_the_gradient_suit_sgd(rule: Rule) -> None:
    assert suits(rule, "SGD") is None


@pytest.mark.parametrize("name", TORCH)
def test_the_same_choice_by_adascales_own_gain_is_there_for_every_optimizer(name: str) -> None:
    by_gain, mean = auto_by_gain(name), auto(name)
    assert worth_power(by_gain) == 1.0
    assert suits(by_gain, name) is None
    assert isinstance(by_gain, KeepDecayTime) == isinstance(mean, KeepDecayTime)
    assert needs_preconditioned(by_gain) == needs_preconditioned(mean)


@pytest.mark.parametrize(
    ("rule", "power"),
    [
        (MeanGain(), 0.5),
        (KeepAverageTime(KeepDecayTime(AdamMeanGain())), 0.5),
        (AdamScale(), 1.0),
        (Linear(), 1.0),
        (as_rule(lambda scale: 1.0), 1.0),
    ],
)
def test_a_rule_says_by_which_law_it_counts(rule: Rule, power: float) -> None:
    assert worth_power(rule) == power
