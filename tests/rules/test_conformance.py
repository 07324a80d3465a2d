"""What every rule promises, whichever it is; a new member of RULES is tested here without being named."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.core.protocols import Rule
from swell.core.types import Factors, Moments, ScaleState
from swell.rules import CHOICES, RULES, KeepAverageTime, KeepDecayTime, as_rule

MEMBERS: list[Rule] = list(
    dict.fromkeys(  # each once: names and optimizers share rules
        [
            *(make() for make in RULES.values()),
            *(choice.rule for choice in CHOICES.values()),
            KeepDecayTime(RULES["adam-sde"]()),
            KeepAverageTime(RULES["constant"]()),
        ]
    )
)
every_rule = pytest.mark.parametrize("rule", MEMBERS, ids=repr)
few = settings(max_examples=50)  # of every test for every member

moments = st.none() | st.builds(Moments, st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
states = st.builds(
    ScaleState,
    scale=st.floats(1e-3, 1e4),
    base_batch=st.integers(1, 10**5),
    moments=moments,
    preconditioned=moments,
    dual=moments,
    progress=st.floats(0, 1e7),
    samples=st.integers(0, 10**12),
)


def at(state: ScaleState, scale: float) -> ScaleState:
    return dataclasses.replace(state, scale=scale)


@every_rule
@few
@given(state=states)
def test_nothing_changes_at_the_base_batch(rule: Rule, state: ScaleState) -> None:
    assert rule.factors(at(state, 1.0)) == Factors()
    assert rule.gain(at(state, 1.0)) == 1.0


@every_rule
@few
@given(state=states)
def test_a_step_is_worth_between_one_and_scale_base_steps(rule: Rule, state: ScaleState) -> None:
    low, high = sorted((1.0, state.scale))
    assert low <= rule.gain(state) <= high


@every_rule
@few
@given(state=states)
def test_the_learning_rate_ends_up_between_one_and_scale(rule: Rule, state: ScaleState) -> None:
    """Warm-ups that are still going on aside, which is why the step is taken late in the run."""
    low, high = sorted((1.0, state.scale))
    late = dataclasses.replace(state, samples=10**15)
    assert low * (1 - 1e-12) <= rule.factors(late).lr <= high * (1 + 1e-12)


@every_rule
@few
@given(state=states)
def test_factors_are_finite_and_positive(rule: Rule, state: ScaleState) -> None:
    assert all(0 < factor < math.inf for factor in dataclasses.astuple(rule.factors(state)))


@every_rule
@few
@given(state=states, way=st.lists(st.floats(1e-3, 1e4), max_size=5))
def test_the_way_to_a_batch_size_does_not_matter(rule: Rule, state: ScaleState, way: list[float]) -> None:
    direct = rule.factors(state), rule.gain(state)
    for scale in way:
        rule.factors(at(state, scale))
        rule.gain(at(state, scale))
    assert (rule.factors(state), rule.gain(state)) == direct
    assert rule.factors(at(state, 1.0)) == Factors()


@every_rule
@few
@given(state=states, other=st.floats(1e-3, 1e4))
def test_a_larger_batch_never_gets_a_smaller_learning_rate(rule: Rule, state: ScaleState, other: float) -> None:
    late = dataclasses.replace(state, samples=10**15)
    smaller, larger = sorted((state.scale, other))
    assert rule.factors(at(late, smaller)).lr <= rule.factors(at(late, larger)).lr * (1 + 1e-12)


@every_rule
def test_a_rule_is_a_value(rule: Rule) -> None:
    assert isinstance(rule, Rule)
    assert as_rule(rule) is rule
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert hash(pickle.loads(pickle.dumps(rule))) == hash(rule)
    with pytest.raises((AttributeError, TypeError)):
        rule.anything = 1  # pyright: ignore[reportAttributeAccessIssue]
