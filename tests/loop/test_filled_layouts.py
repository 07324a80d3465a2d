"""Whole micro-batches and one with the rest, on replicas of several devices, as compiled models are trained."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swell.core.types import Layout, Observation
from swell.loop.pace import Pace
from swell.policies import Fixed, as_policy

sizes = st.integers(1, 200)


def filled(batch: int, *, micro: int, devices: int = 1) -> Pace:
    pace = Pace(Fixed(batch), micro=micro, constant_micro=False, capacity=None, fill=True)
    pace.devices = devices
    return pace


def observe(pace: Pace, *, replicas: int = 1) -> Observation:
    return pace.observe(
        replicas=replicas,
        nodes=1,
        noise=None,
        samples=0,
        epoch=0,
        epoch_samples=0,
        epoch_size=1000,
        total_samples=None,
    )


@given(batch=sizes, micro=st.integers(1, 40), devices=st.integers(1, 4), replicas=st.integers(1, 4))
def test_all_micro_batches_but_one_have_one_size_within_the_bound_of_all_devices(batch, micro, devices, replicas):
    batch = max(batch, replicas)
    plan = filled(batch, micro=micro, devices=devices).lay_out(batch, batch, replicas=replicas, split=False)
    micro_batches = sorted(one.size for share in plan.shares for one in share)
    assert sum(micro_batches) == batch
    assert max(micro_batches) <= micro * devices
    assert len(set(micro_batches[1:])) <= 1


@given(batch=sizes, micro=st.integers(1, 300), replicas=st.integers(1, 4))
def test_every_replica_has_samples_however_large_a_micro_batch_may_be(batch, micro, replicas):
    batch = max(batch, replicas**2)  # fewer cannot be cut into equal parts and one rest for all
    shares = filled(batch, micro=micro).lay_out(batch, batch, replicas=replicas, split=False).share_sizes()
    assert min(shares) > 0
    assert max(shares) - min(shares) <= min(micro, -(-batch // replicas))


@given(batch=st.integers(2, 200), devices=st.integers(1, 4))
def test_a_split_step_is_two_parts_of_whole_devices_as_far_as_there_are_samples(batch, devices):
    plan = filled(batch, micro=200, devices=devices).lay_out(batch, batch, replicas=1, split=True)
    sizes = [one.size for one in plan.shares[0]]
    assert sum(sizes) == batch
    assert len(sizes) == (2 if batch > devices else 1)
    assert len(sizes) == 1 or sizes[0] % devices == 0


def test_a_policy_counts_all_devices_and_the_micro_batch_of_one() -> None:
    pace = filled(24, micro=4, devices=3)
    seen = observe(pace, replicas=2)
    assert (seen.replicas, seen.max_micro, seen.feasible) == (6, 4, True)
    plan = pace.lay_out(pace.choose(seen), 24, replicas=2, split=False)
    pace.committed(plan, batch=24, samples=0, gain=1.0, nodes=1)
    pace.timed(0.5)
    seen = observe(pace, replicas=2)
    assert seen.micro_batch == 4
    assert seen.times is not None
    assert (seen.times.replicas, seen.times.micro_batch, seen.times.accumulation) == (6, 4, 1)


def test_a_copy_counts_on_its_own_and_shares_the_step_times() -> None:
    pace = Pace(as_policy(8, base=4), micro=4, constant_micro=False, capacity=None, fill=True)
    ahead = pace.copy()
    plan = ahead.lay_out(8, 8, replicas=1, split=False)
    ahead.layout = Layout(global_batch=8, micro_batch=2)
    ahead.committed(plan, batch=8, samples=0, gain=2.0, nodes=1)
    assert (pace.step, pace.batch, pace.progress, pace.micro) == (0, 4, 0.0, None)
    assert (ahead.step, ahead.batch, ahead.progress, ahead.micro) == (1, 8, 2.0, 2)
    pace.committed(plan, batch=8, samples=0, gain=2.0, nodes=1)
    pace.timed(0.5)
    times = observe(ahead).times
    assert times is not None and times.step_s == 0.5
