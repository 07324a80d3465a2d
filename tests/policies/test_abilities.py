"""What a policy can do besides choosing a batch is kept by every combinator and every wrapper around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from swell.compat.adaptdl.torch.autoscale import autoscale
from swell.core.goodput import Outlook
from swell.core.protocols import (
    BoundedPolicy,
    ExplainingPolicy,
    FinitePolicy,
    ForecastingPolicy,
    LayoutPolicy,
    NoiseAwaitingPolicy,
    NoiseFollowingPolicy,
    Policy,
    WrappingPolicy,
)
from swell.core.types import Decision, Layout, NoiseEstimate, Observation, StepSummary
from swell.core.world_bounds import WorldBounds
from swell.errors import ConfigError
from swell.job.rehearsal import RoundOfLayouts
from swell.loop.pace import Pace
from swell.policies import (
    COMBINATORS,
    Clamp,
    Fixed,
    Goodput,
    Hysteresis,
    OnePass,
    as_policy,
    chosen_layout,
    explanation,
    find,
    is_finished,
)
from swell.policies.decision import awaiting, follows_noise, predicted_outlook
from swell.policies.parse import policy_from_text
from tests.policies.observations import estimate, seen

PROFILE = tuple(
    StepSummary(replicas=4, nodes=1, micro_batch=size, accumulation=1, step_s=0.01 + size / 1000, count=32)
    for size in (8, 16, 32)
)


class Able:
    """Has every ability, each with an answer that no other policy gives."""

    follows_noise: ClassVar[bool] = True
    max, micro = 96, (16, 48)

    def batch(self, seen: Observation) -> int:
        return 96

    def layout(self, seen: Observation) -> Layout:
        return Layout(global_batch=96, micro_batch=24)

    def worlds(self, among: Iterable[int]) -> list[WorldBounds]:
        return [WorldBounds(replicas=count, batches=(96, 96) if count in (2, 4, 6) else None) for count in among]

    def outlook(self, seen: Observation, replicas: Iterable[int]) -> dict[int, Outlook]:
        return {count: Outlook(count / 7, 0.5) for count in replicas}

    def explain(self, seen: Observation) -> Decision:
        return Decision(chosen=self.layout(seen), current=None, reasons=("Because.",))

    def finished(self, seen: Observation) -> bool:
        return seen.epoch >= 3

    def awaits(self, noise: NoiseEstimate | None) -> bool:
        return noise is not None and noise.total.noise_scale == 777.0


class AbleWithBase(Able):
    base = 32


@dataclass(frozen=True)
class UsersOwn:
    """A wrapper as a user writes one: it names what it wraps, and nothing else."""

    policy: Policy

    @property
    def base(self) -> int:
        return self.policy.base

    def batch(self, seen: Observation) -> int:
        return self.policy.batch(seen)


ARGUMENTS: dict[str, dict[str, Any]] = {"dwell": {"samples": 1000}, "round_to": {"multiple": 8}}
WRAPPERS: dict[str, Callable[[Policy], Policy]] = {
    **{name: lambda policy, name=name: COMBINATORS[name](policy, **ARGUMENTS.get(name, {})) for name in COMBINATORS},
    "nested": lambda policy: Clamp(Hysteresis(policy), high=4096),
    "users_own": UsersOwn,
    "round_of_layouts": lambda policy: RoundOfLayouts(policy, layouts=((96, 24),), turn=5, after=0),
}
ABILITIES = [
    BoundedPolicy,
    ExplainingPolicy,
    FinitePolicy,
    ForecastingPolicy,
    LayoutPolicy,
    NoiseAwaitingPolicy,
    NoiseFollowingPolicy,
]
every_wrapper = pytest.mark.parametrize("name", WRAPPERS)


def possible_replicas(policy: Policy) -> list[int] | None:
    return Pace(policy, micro=None, constant_micro=False, capacity=None).possible_replicas()


@every_wrapper
def test_a_wrapper_says_what_it_wraps(name: str) -> None:
    assert isinstance(WRAPPERS[name](AbleWithBase()), WrappingPolicy)


@every_wrapper
@pytest.mark.parametrize("ability", ABILITIES)
def test_a_wrapper_keeps_every_ability(name: str, ability: type) -> None:
    assert find(WRAPPERS[name](AbleWithBase()), ability) is not None


@pytest.mark.parametrize("name", COMBINATORS)
@pytest.mark.parametrize("ability", [a for a in ABILITIES if a is not FinitePolicy])  # all end, or answer no
def test_a_combinator_has_no_ability_that_its_policy_has_not(name: str, ability: type) -> None:
    assert find(WRAPPERS[name](Fixed(96)), ability) is None


@every_wrapper
def test_noise_is_awaited_inside_a_wrapper(name: str) -> None:
    awaits, never = awaiting(WRAPPERS[name](AbleWithBase())), awaiting(WRAPPERS[name](Fixed(96)))
    assert follows_noise(WRAPPERS[name](AbleWithBase()))
    assert awaits(estimate(777.0)) and not awaits(estimate(778.0)) and not awaits(None)
    assert not follows_noise(WRAPPERS[name](Fixed(96)))
    assert not never(None)


@every_wrapper
def test_the_micro_batch_is_chosen_inside_a_wrapper(name: str) -> None:
    layout = chosen_layout(WRAPPERS[name](AbleWithBase()), seen(batch=96))
    assert layout == Layout(global_batch=96, micro_batch=24)


@every_wrapper
def test_possible_replicas_are_known_inside_a_wrapper(name: str) -> None:
    assert possible_replicas(WRAPPERS[name](AbleWithBase())) == [2, 4, 6]


@every_wrapper
def test_the_forecast_inside_a_wrapper_is_used(name: str) -> None:
    assert predicted_outlook(WRAPPERS[name](AbleWithBase()), seen(), [7, 14]) == {
        7: Outlook(1.0, 0.5),
        14: Outlook(2.0, 0.5),
    }


@every_wrapper
def test_reasons_are_given_inside_a_wrapper(name: str) -> None:
    decision = explanation(WRAPPERS[name](AbleWithBase()), seen())
    assert decision is not None and decision.reasons == ("Because.",)


@pytest.mark.parametrize("name", [name for name in WRAPPERS if name != "round_of_layouts"])
def test_the_end_of_the_run_is_known_inside_a_wrapper(name: str) -> None:
    policy = WRAPPERS[name](AbleWithBase())
    assert is_finished(policy, seen(epoch=3)) and not is_finished(policy, seen(epoch=2))


def test_measuring_layouts_does_not_end_with_the_scripts_own_policy() -> None:
    assert not is_finished(WRAPPERS["round_of_layouts"](AbleWithBase()), seen(epoch=3))


def test_the_outermost_layer_with_an_ability_answers() -> None:
    inner, outer = Goodput(64, max=512), Goodput(64, max=256)
    assert find(Clamp(inner), LayoutPolicy) is inner
    assert find(UsersOwn(Clamp(outer)), BoundedPolicy) is outer


def test_an_object_without_a_base_keeps_its_abilities() -> None:
    policy = as_policy(Able(), base=32)
    assert follows_noise(policy)
    assert possible_replicas(policy) == [2, 4, 6]
    assert chosen_layout(policy, seen()) == Layout(global_batch=96, micro_batch=24)
    assert explanation(policy, seen()) is not None
    assert is_finished(policy, seen(epoch=3)) and not is_finished(policy, seen(epoch=2))
    plain = as_policy(lambda seen: 96, base=32)
    assert not follows_noise(plain) and chosen_layout(plain, seen()) is None and possible_replicas(plain) is None


# AdaptDL's autoscaling


@pytest.mark.parametrize("accumulation", [False, True])
def test_adaptdls_autoscaling_has_every_ability_of_goodput(accumulation: bool) -> None:
    inner = Goodput(64, max=512, micro=(16, 128))
    policy = autoscale(64, max_batch=512, bounds=(16, 128), accumulation=accumulation)
    here = seen(noise=estimate(300.0), profile=PROFILE, micro_batch=16, epoch_size=None)
    assert follows_noise(policy)
    assert possible_replicas(policy) == possible_replicas(inner) == list(range(1, 33))
    forecast = predicted_outlook(policy, here, [1, 2, 8])
    assert forecast == inner.outlook(here, [1, 2, 8])
    assert forecast != predicted_outlook(Fixed(64), here, [1, 2, 8]), "throughput, not goodput"
    assert policy_from_text(repr(policy)) == policy, "swell explain builds it again from the log"
    decision = explanation(policy, here)
    assert decision is not None and decision.reasons
    assert decision.chosen == chosen_layout(policy, here)
    assert decision.chosen.global_batch == policy.batch(here)


def test_with_accumulation_adaptdls_autoscaling_is_goodput() -> None:
    policy = autoscale(64, max_batch=512, bounds=(16, 128), accumulation=True)
    assert policy == Goodput(64, max=512, micro=(16, 128), slack=0.08, prefer="steps", price=None)


def test_without_accumulation_every_replica_computes_its_share_in_one_pass() -> None:
    policy = OnePass(Goodput(64, max=4096, micro=(4, 64), slack=0, price=None))
    for replicas in (2, 3, 4):
        profile = tuple(dataclasses.replace(point, replicas=replicas) for point in PROFILE)
        here = seen(noise=estimate(1e6), profile=profile, replicas=replicas, resized=True, epoch_size=None)
        layout = policy.layout(here)
        assert 64 <= layout.global_batch <= 64 * replicas
        assert layout.micro_batch == -(-layout.global_batch // replicas)
        assert policy.explain(here).chosen == layout


def test_without_accumulation_a_single_replica_keeps_the_base_batch() -> None:
    policy = OnePass(Goodput(64, max=4096, micro=(4, 128)))
    here = seen(noise=estimate(1e6), replicas=1, batch=128, micro_batch=128)
    assert policy.layout(here) == Layout(global_batch=64, micro_batch=64)
    assert "keeps the base batch of 64" in " ".join(policy.explain(here).reasons)


@pytest.mark.parametrize(
    "policy", [Fixed(64), Goodput(64, max=512), Goodput(64, micro=(8, 64)), Goodput(64, max=512, micro=(8, 32))]
)
def test_one_pass_needs_bounds_that_hold_the_base_batch(policy: Any) -> None:
    with pytest.raises(ConfigError, match="policy is"):
        OnePass(policy)
