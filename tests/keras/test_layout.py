"""How a share becomes passes, and how passes become the numbers a compiled step reads; without Keras."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from swell.core.planning import plan_remainder
from swell.core.types import Factors
from swell.integrations.keras.device_grid import DeviceGrid
from swell.integrations.keras.noise_meter import Squares
from swell.integrations.keras.pass_layout import passes_of
from swell.integrations.keras.step_control import step_control
from swell.integrations.keras.step_sequence import StepSequence
from swell.loop.statistics import Statistics
from swell.policies import as_policy
from swell.rules import Constant


def weight_at(control, place):
    return (
        control.weight_1 if place < control.end_1 else control.weight_2 if place < control.end_2 else control.weight_3
    )


def no_figures():
    return Squares(0.0, 0.0), Squares(0.0, 0.0)


@given(count=st.integers(1, 300), micro=st.integers(1, 40), devices=st.integers(1, 5), replicas=st.integers(1, 4))
def test_every_sample_is_in_one_pass_and_every_pass_divides_by_the_devices(count, micro, devices, replicas):
    plan = plan_remainder(count, replicas, max_micro=micro * devices, constant_micro=True)
    covered, total = [], 0.0
    for share in plan.shares:
        passes = passes_of(share, devices=devices)
        control = step_control([one.weight for one in passes], Factors(), effective_step=1.0)
        assert control.count == len(passes)
        for place, one in enumerate(passes):
            assert weight_at(control, place) == one.weight
            assert one.size * one.repeated % devices == 0
            assert -(-one.size // devices) <= micro
            total += one.weight
            if share:
                covered += range(one.offset, one.offset + one.size)
    assert sorted(covered) == list(range(count))
    assert math.isclose(total, 1.0, rel_tol=1e-9)


def test_every_process_computes_a_share_of_a_step_that_one_could_compute_alone():
    sizes = []
    for rank in range(3):
        steps = StepSequence(as_policy(8), Constant(), length=16, seed=0)
        steps.place(DeviceGrid(processes=3, rank=rank))
        steps.restart()
        step = steps.step_to_train()
        assert step is not None
        sizes.append([one.size for one in step.passes])
    assert sizes == [[3], [3], [2]]


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    length=st.integers(20, 90),
    stop=st.integers(0, 9),
    further=st.booleans(),
)
def test_steps_are_the_same_whether_or_not_they_are_read_ahead_and_after_a_restart(sizes, length, stop, further):
    def sequence():
        steps = StepSequence(
            as_policy(lambda seen: sizes[seen.step % len(sizes)], base=8),
            Constant(),
            length=length,
            seed=0,
            statistics=Statistics(every=1),
        )
        steps.is_training = True
        steps.restart()
        return steps

    straight, broken = sequence(), sequence()
    plain, cut, read = [], [], []
    while (step := straight.step_to_train()) is not None:
        straight.commit(step, no_figures, step_s=0.1)
        plain.append((step.start, step.stop, step.gain))
    for number in range(1000):
        if number == stop:
            state = broken.state_dict()
            broken = sequence()
            broken.load_state_dict(state)
            read = []
            if broken.trained.ledger.remaining == 0:
                break
        if not read:
            read.append(broken.step_to_read(broken.attach()))
        if further and read[0] is not None:
            read.append(broken.step_to_read(broken.attach()))
        step = broken.step_to_train()
        if step is None:
            break
        assert read.pop(0) == step
        assert not broken.is_unread(step)
        broken.commit(step, no_figures, step_s=0.1)
        cut.append((step.start, step.stop, step.gain))
    assert cut == plain
    assert plain[-1][1] == length
