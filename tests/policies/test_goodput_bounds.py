"""Goodput within old-style bounds: a largest global batch, sizes for one replica, either alone or both."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings

from swell.errors import ConfigError, PlanError
from swell.policies import Goodput
from swell.policies.parse import policy_from_text
from tests.policies.machines import run_on
from tests.policies.observations import observations, seen

ALONE = [Goodput(64, micro=(4, 48)), Goodput(100, micro=64, monotone=True), Goodput(64, micro=(1, 8), shrink=True)]


@pytest.mark.parametrize("policy", ALONE, ids=repr)
@given(here=observations())
@settings(max_examples=50, deadline=None)
def test_without_max_the_sizes_for_one_replica_bound_the_batch_in_every_world(policy, here):
    chosen = policy.layout(here)
    smallest, largest = policy.worlds([here.replicas])[0].batches
    assert chosen.micro_batch <= policy.micro[1]
    assert here.replicas <= chosen.global_batch
    if here.max_micro is None:
        assert smallest <= chosen.global_batch <= largest
        assert chosen.micro_batch >= policy.micro[0]
    elif not policy.shrink:
        assert policy.base <= chosen.global_batch


def test_without_max_the_batch_follows_the_world():
    policy = Goodput(128, micro=(8, 256), explore=0, slack=0.08, prefer="steps", price=None)
    run = run_on(4, "kneed", replicas=1, nodes=1, noise=lambda samples: 1e6, policy=policy)
    run.until(60_000)
    assert run.batch == 256
    run.resize(8)
    run.until(300_000)
    assert 256 < run.batch <= 8 * 256
    run.resize(1)
    run.one_step()
    assert run.batch <= 256


def test_where_memory_holds_less_than_the_bounds_ask_for_the_base_batch_is_still_reached():
    chosen = Goodput(100, micro=64).layout(seen(replicas=1, batch=128, base_batch=100, max_micro=45))
    assert chosen.global_batch == 135 and chosen.micro_batch == 45


def test_the_worlds_that_bounds_rule_out_can_be_asked_for():
    both = Goodput(128, max=1000, micro=(100, 500)).worlds(range(1, 13))
    assert [world.replicas for world in both if world.batches is None] == [11, 12]
    assert "at least 100 on each make 1100" in both[10].reason
    assert Goodput(128, max=1000).worlds([1000, 1001])[1].batches is None
    assert all(world.batches for world in Goodput(128, micro=(100, 500)).worlds([1, 11, 4096]))


def test_an_outlook_knows_the_limit_of_each_world():
    policy = Goodput(128, micro=(8, 256))
    run = run_on(12, "linear", replicas=2, nodes=1, noise=lambda samples: 1e6, policy=policy)
    run.until(50_000)
    here = run.observation()
    outlook = policy.outlook(here, [1, 2, 4])
    assert outlook[1].speedup < outlook[2].speedup == 1.0 < outlook[4].speedup
    assert outlook[2].error < outlook[4].error
    assert policy.speedup(here, [1, 2, 4]) == {count: there.speedup for count, there in outlook.items()}


def test_an_outlook_in_doubt_is_of_the_batch_that_stands_or_of_the_nearest_that_fits():
    policy = Goodput(128, max=1000, micro=(100, 500))
    run = run_on(12, "linear", replicas=1, nodes=1, policy=policy)
    run.until(5_000)
    unsure = dataclasses.replace(run.observation(), noise=None)
    speedup = policy.speedup(unsure, [1, 8, 11])
    assert speedup[1] == 1.0 and speedup[8] > 0 and speedup[11] == 0.0


@pytest.mark.parametrize("policy", ALONE, ids=repr)
def test_a_policy_without_max_is_read_back_from_its_text(policy):
    assert policy_from_text(repr(policy)) == policy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": 32}, r"max is None and micro is 'auto'.* max=512"),
        ({"base": 32, "micro": None}, "max is None and micro is None"),
        ({"base": 32, "max": 40, "micro": 64}, r"base is 32, max is 40 and micro is \(64, 64\)"),
        ({"base": 33, "max": 40, "micro": 30}, "largest batch to 60 or more"),
        ({"base": 32, "max": 40, "micro": (100, 200)}, "smallest micro-batch to 40 or less"),
        ({"base": 32, "max": "512"}, r"max is '512'.* example 512\."),
        ({"base": 32, "max": 512.0}, r"max is 512\.0.* example 512\."),
        ({"base": 32, "max": "large"}, r"max is 'large'.* example 512\."),
        ({"base": 32, "max": 0}, r"max is 0.* example 512\."),
        ({"base": 32, "max": 64, "hysteresis": "a"}, r"hysteresis is 'a'; .* 0\.03\."),
        ({"base": 32, "max": 64, "shrink": "no"}, "shrink is 'no'"),
        ({"base": 32, "max": 64, "monotone": 3}, "monotone is 3"),
    ],
    ids=str,
)
def test_settings_that_no_world_satisfies_are_refused_with_how_to_fix_them(arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        Goodput(**arguments)
    assert "min_micro" not in str(error.value)


def test_a_world_that_is_ruled_out_is_refused_in_words_of_the_bounds_that_were_given():
    with pytest.raises(PlanError, match=r"smallest micro-batch to 90 or less.* at most 10 replicas"):
        Goodput(128, max=1000, micro=(100, 500)).batch(seen(replicas=11, resized=True))
