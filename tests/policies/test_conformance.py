"""What holds for every policy and every combinator; a new member needs an example here and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.core.events import BatchChanged, from_json, to_json
from swell.core.protocols import FinitePolicy, Policy
from swell.core.types import Observation
from swell.policies import (
    COMBINATORS,
    POLICIES,
    AtEpochEnds,
    Clamp,
    Dwell,
    Fixed,
    Goodput,
    Hysteresis,
    LateSwitch,
    NoiseScale,
    NormTest,
    Ramp,
    RoundTo,
    RoundToReplicas,
    Schedule,
    Seesaw,
    Trace,
    as_policy,
    checked_batch,
    is_finished,
    observation_to_dict,
    replay,
)
from tests.policies.observations import observations

RAMP = Ramp(64, 1024, over=0.5, unit="fraction", multiple=8)
EXAMPLES: dict[str, list[Policy]] = {
    "fixed": [Fixed(256), Fixed(1000, base=64, tolerance=0.1, micro=4)],
    "schedule": [
        Schedule([(0, 64), (1000, 128), (5000, 32)]),
        Schedule([(0, 64), (2.5, 128)], unit="epochs", base=32),
        Schedule([(0, 64), (0.25, 512)], unit="fraction"),
    ],
    "ramp": [
        RAMP,
        Ramp(64, 1024, over=100_000),
        Ramp(1024, 64, over=3, unit="epochs", kind="geometric", multiple=2, base=128),
    ],
    "trace": [Trace([64, 128, 32]), Trace(256, base=64), Trace(range(1, 100))],
    "goodput": [
        Goodput(64, max=4096),
        Goodput(64, max=4096, micro=(4, 32), monotone=True),
        Goodput(64, max=4096, micro=16, shrink=True, dwell=1000, explore=0),
    ],
    "noise_scale": [NoiseScale(base=64, max=4096), NoiseScale(base=64, max=4096, factor=0.5, min=8)],
    "norm_test": [NormTest(base=64, max=4096), NormTest(base=64, max=4096, eta=0.3, monotone=False)],
    "late_switch": [LateSwitch(64, to=1024), LateSwitch(64, to=32, at=0.5)],
    "seesaw": [Seesaw(64, max=4096), Seesaw(48, max=1000, step=1.5)],
    "clamp": [Clamp(RAMP, low=100, high=300), Clamp(RAMP)],
    "hysteresis": [Hysteresis(RAMP), Hysteresis(NoiseScale(base=64, max=4096), change=0.5)],
    "dwell": [Dwell(RAMP, samples=10_000)],
    "at_epoch_ends": [AtEpochEnds(RAMP)],
    "round_to": [
        RoundTo(RAMP, multiple=48),
        RoundTo(RAMP, multiple=7, how="up"),
        RoundTo(RAMP, multiple=7, how="down"),
    ],
    "round_to_replicas": [RoundToReplicas(RAMP), RoundToReplicas(RAMP, micro=8, how="down")],
}
NESTED = Clamp(
    RoundTo(Hysteresis(Dwell(AtEpochEnds(NoiseScale(base=64, max=4096)), samples=1000)), multiple=8), high=512
)
EVERYONE = [policy for examples in EXAMPLES.values() for policy in examples] + [NESTED]
few = settings(max_examples=20)  # of many members each
every_policy = pytest.mark.parametrize("policy", EVERYONE, ids=repr)


def test_every_member_has_an_example_here() -> None:
    members = {**POLICIES, **COMBINATORS}
    missing = [name for name in members if not any(type(p) is members[name] for p in EXAMPLES.get(name, []))]
    assert not missing, f"add an example of {missing} to EXAMPLES, so that these tests run on it"


@every_policy
@few
@given(seen=observations())
def test_every_policy_answers_every_observation_with_a_batch(policy: Policy, seen: Observation) -> None:
    batch = checked_batch(policy, seen)
    assert type(batch) is int and batch >= 1


@every_policy
@few
@given(seen=observations())
def test_the_answer_depends_on_the_observation_alone(policy: Policy, seen: Observation) -> None:
    answer = policy.batch(seen)
    twin = pickle.loads(pickle.dumps(policy))
    assert twin == policy
    assert [policy.batch(seen), twin.batch(seen), copy.deepcopy(policy).batch(seen)] == [answer] * 3


@every_policy
@few
@given(seen=observations())
def test_a_decision_can_be_recomputed_from_its_line_in_the_log(policy: Policy, seen: Observation) -> None:
    after = policy.batch(seen)
    event = BatchChanged(
        time=0.0, step=seen.step, before=seen.batch, after=after, policy=repr(policy), seen=observation_to_dict(seen)
    )
    (decision,) = replay(policy, [from_json(to_json(event))])
    assert decision[:3] == (seen.step, after, after) and decision.same


@every_policy
def test_a_policy_is_a_frozen_value_with_a_base(policy: Policy) -> None:
    assert isinstance(policy, Policy)
    assert type(policy.base) is int and policy.base >= 1
    assert hash(policy) == hash(copy.copy(policy))
    assert dataclasses.is_dataclass(policy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, dataclasses.fields(policy)[0].name, 1)


@every_policy
def test_what_a_policy_prints_says_which_it_is(policy: Policy) -> None:
    assert repr(policy).startswith(type(policy).__name__ + "(")
    assert len(repr(policy)) < 400


@every_policy
def test_a_policy_is_what_as_policy_takes_it_for(policy: Policy) -> None:
    assert as_policy(policy) is policy
    assert as_policy(policy, base=policy.base) is policy


@pytest.mark.parametrize("name", sorted(COMBINATORS))
@few
@given(seen=observations(), length=st.integers(1, 5))
def test_a_combinator_is_over_when_its_policy_is(name: str, seen: Observation, length: int) -> None:
    ending = Trace([64] * length, at_end="stop")
    outer = dataclasses.replace(EXAMPLES[name][0], policy=ending)  # pyright: ignore[reportArgumentType]
    assert isinstance(outer, FinitePolicy)
    assert is_finished(outer, seen) == ending.finished(seen) == (seen.step >= length)
    never = dataclasses.replace(EXAMPLES[name][0], policy=Fixed(64))  # pyright: ignore[reportArgumentType]
    assert not is_finished(never, seen)


@pytest.mark.parametrize("name", sorted(COMBINATORS))
@few
@given(seen=observations())
def test_a_combinator_refuses_what_a_users_policy_must_not_answer(name: str, seen: Observation) -> None:
    broken = as_policy(lambda seen: 12.5, base=64)
    outer = dataclasses.replace(EXAMPLES[name][0], policy=broken)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"chose the global batch 12\.5"):
        outer.batch(seen)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("cls", COMBINATORS.values(), ids=COMBINATORS)
@pytest.mark.parametrize("inner", [64, "trace.csv", Fixed, None, lambda seen: 64])
def test_a_combinator_takes_policies_only(cls: type, inner: object) -> None:
    arguments = {"dwell": {"samples": 1}, "round_to": {"multiple": 8}}
    name = next(name for name in COMBINATORS if COMBINATORS[name] is cls)
    with pytest.raises(ValueError, match="policy is "):
        cls(inner, **arguments.get(name, {}))
