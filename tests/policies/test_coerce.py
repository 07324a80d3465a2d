"""A number, a list, a file, a function, a class or an object: what a user gives becomes a policy, or says why not."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.protocols import Policy
from swell.errors import ConfigError, TraceError
from swell.policies import Fixed, Trace, UserPolicy, as_policy, checked_batch, is_finished
from tests.policies.observations import observations, seen


@given(size=st.integers(1, 10**9), base=st.none() | st.integers(1, 10**9))
def test_a_whole_number_is_a_fixed_batch(size, base):
    assert as_policy(size, base=base) == as_policy(np.int64(size), base=base) == Fixed(size, base=base)


def test_a_path_or_a_list_is_a_trace(tmp_path):
    path = tmp_path / "sizes.csv"
    path.write_text("step,batchsize\n0,64\n1,128\n")
    assert as_policy(str(path)) == as_policy(path) == Trace(path)
    assert as_policy(path, base=32).base == 32
    assert as_policy([64, 128]) == as_policy((64, 128)) == as_policy(np.array([64, 128])) == Trace([64, 128])
    with pytest.raises(TraceError, match=r"nowhere\.CSV"):
        as_policy("nowhere.CSV")
    with pytest.raises(TraceError, match="cannot be read"):
        as_policy(Path("nowhere.txt"))


def doubling(seen):
    return seen.base_batch * 2**seen.epoch


class Halving:
    base = 1024

    def batch(self, seen):
        return max(1, 1024 >> seen.epoch)

    def finished(self, seen):
        return seen.epoch == 3


class Baseless:
    def __init__(self, size=8):
        self.size = size

    def batch(self, seen):
        return self.size

    def finished(self, seen):
        return seen.epoch == 1


@given(epoch=st.integers(0, 10))
def test_a_function_of_the_observation_is_a_policy_once_its_base_is_known(epoch):
    here = seen(epoch=epoch)
    for function in (doubling, lambda seen: doubling(seen), functools.partial(doubling)):
        policy = as_policy(function, base=64)
        assert isinstance(policy, Policy) and policy.base == 64
        assert checked_batch(policy, here) == 64 * 2**epoch
        assert not is_finished(policy, here)


def test_a_function_may_carry_its_base_itself():
    def mine(seen):
        return 7

    mine.base = 5  # pyright: ignore[reportFunctionMemberAccess]
    assert as_policy(mine).base == 5
    assert repr(as_policy(mine)).endswith("mine, base=5)")


def test_an_object_with_a_method_batch_is_itself_a_policy():
    policy = Halving()
    assert as_policy(policy) is policy
    assert as_policy(policy, base=1024) is policy
    assert isinstance(as_policy(Halving), Halving)
    assert is_finished(policy, seen(epoch=3)) and not is_finished(policy, seen(epoch=2))


def test_an_object_without_a_base_takes_the_one_that_is_given_and_keeps_its_end():
    for given_ in (Baseless(), Baseless):
        policy = as_policy(given_, base=4)
        assert isinstance(policy, UserPolicy) and policy.base == 4
        assert checked_batch(policy, seen()) == 8
        assert is_finished(policy, seen(epoch=1)) and not is_finished(policy, seen(epoch=0))


class Needy(Baseless):
    def __init__(self, size):
        super().__init__(size)


class Wordless:
    pass


class Oddly:
    base = "64"

    def batch(self, seen):
        return 1


@pytest.mark.parametrize(
    ("thing", "base", "message"),
    [
        (0, None, "batch is 0; expected a whole number of samples"),
        (-4, None, "batch is -4"),
        (True, None, "batch is True"),
        (64.0, None, r"batch is 64\.0"),
        (np.float32(64), None, "batch is"),
        (np.bool_(True), None, "batch is"),
        (64, 0, "base is 0"),
        (64, 2.5, r"base is 2\.5"),
        (None, None, "batch is None; expected a whole number, a policy such as"),
        ("goodput", None, "batch is 'goodput'; expected"),
        ({"base": 64}, None, "batch is {'base': 64}; expected"),
        (doubling, None, r"base batch is not known.*doubling.*Give base=64"),
        (Baseless, None, "base batch is not known"),
        (Baseless(), None, "base batch is not known"),
        (lambda: 64, 64, "cannot be asked for a batch.*def choose"),
        (lambda seen, more: 64, 64, "cannot be asked for a batch"),
        (Halving(), 64, "base is 64 and the policy's own base is 1024.*Leave one of them out"),
        (Fixed(64), 32, "base is 32 and the policy's own base is 64"),
        (Needy, 64, r"Needy cannot be made without arguments.*batch=Needy\(\.\.\.\)"),
        (Wordless, 64, "the class Wordless has no method `batch`"),
        (Wordless(), 64, "expected a whole number, a policy"),
        (Oddly(), None, r"Oddly\.base is '64'"),
    ],
)
def test_what_is_no_policy_is_refused_with_what_would_be_one(thing, base, message):
    with pytest.raises(ConfigError, match=message):
        as_policy(thing, base=base)


@pytest.mark.parametrize("answer", [0, -1, 1.0, 64.5, True, None, "64", np.float64(3), float("nan"), [64]], ids=repr)
def test_an_answer_that_is_no_batch_names_the_policy_the_answer_and_the_step(answer):
    policy = as_policy(lambda seen: answer, base=64)
    with pytest.raises(
        ConfigError, match=r"UserPolicy\(.*base=64\) chose the global batch .* at step 10; .*max\(1, round"
    ):
        checked_batch(policy, seen(step=10))


@given(seen=observations(), size=st.integers(1, 1000))
def test_integers_of_numpy_are_taken_as_plain_ones(seen, size):
    for kind in (np.int64, np.int32, np.uint16):
        batch = checked_batch(as_policy(lambda seen, kind=kind: kind(size), base=64), seen)
        assert type(batch) is int and batch == size


def test_an_error_of_the_users_own_comes_through_as_it_is():
    def broken(seen):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        checked_batch(as_policy(broken, base=64), seen())
