"""Short lines give back every step: its place exactly, its figures to five digits, and the log stays small."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from swell.core.events import Stepped, from_json
from swell.telemetry.step_lines import StepReader, StepWriter
from tests.telemetry.runs import stepped

FIGURES = st.none() | st.floats(1e-6, 1e9)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "global_batch": st.sampled_from([32, 64, 96]),
            "micro_batch": st.sampled_from([8, 16, 32]),
            "accumulation": st.integers(1, 3),
            "replicas": st.integers(1, 4),
            "step_s": st.floats(0.0, 10.0),
            "loss": st.none() | st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, 0.0]),
            "gain": st.floats(1.0, 8.0),
            "lr": st.lists(st.floats(0.0, 1.0), min_size=1, max_size=2).map(tuple),
            "noise_scale": FIGURES | st.just(math.inf),
            "noise_low": FIGURES,
            "data_s": st.none() | st.floats(0.0, 2.0),
            "measured": st.booleans(),
        }
    ),
    min_size=1,
    max_size=20,
)
EXACT = ("step", "epoch", "samples", "global_batch", "micro_batch", "accumulation", "replicas", "measured")


def sequence(changes, jumps=()):
    """Steps that follow one another; at ``jumps`` an epoch ends."""
    samples, progress, now, epoch = 0, 0.0, 1.7e9, 0
    for number, fields in enumerate(changes, start=1):
        samples, now, progress = samples + fields["global_batch"], now + fields["step_s"], progress + fields["gain"]
        epoch += number in jumps
        yield stepped(time=now, step=number, samples=samples, progress=progress, epoch=epoch, **fields)


def written_and_read(events, writer):
    reader = StepReader()
    for event in events:
        line = writer.line(event)
        if line.startswith("{"):
            back = from_json(line)
            reader.whole(back)
        else:
            back = reader.short(json.loads(line))
        yield event, back, line


def close(one, other, tolerance=6e-5):
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other or repr(one) == repr(other) or math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-9)


@given(changes=STEPS, jumps=st.sets(st.integers(1, 40)))
def test_with_some_room_every_field_comes_back(changes, jumps):
    for event, back, _ in written_and_read(sequence(changes, jumps), StepWriter(burst=1e9, rate=0.0)):
        assert repr(back) == repr(event)  # whole lines are exact
    writer = StepWriter(burst=1e6, reserve=1e6)  # no room for whole lines, but for all that changed
    for event, back, _ in written_and_read(sequence(changes, jumps), writer):
        assert isinstance(back, Stepped)
        for name in vars(event):
            if name in ("data_s", "step_s", "time", "loss"):
                continue
            assert close(getattr(event, name), getattr(back, name)), name
        assert math.isclose(event.step_s, back.step_s, rel_tol=6e-3, abs_tol=1e-9)
        assert close(event.loss, back.loss) if event.loss is not None else back.loss is None


@given(changes=STEPS, jumps=st.sets(st.integers(1, 40)))
def test_without_room_a_step_keeps_its_place_its_loss_and_its_time(changes, jumps):
    for event, back, _ in written_and_read(sequence(changes, jumps), StepWriter(burst=0.0, rate=0.0)):
        assert isinstance(back, Stepped)
        assert [getattr(back, name) for name in EXACT] == [getattr(event, name) for name in EXACT]
        assert abs(back.time - event.time) <= 0.0011
        assert close(event.loss, back.loss) if event.loss is not None else back.loss is None
        assert math.isclose(event.step_s, back.step_s, rel_tol=6e-3, abs_tol=1e-9)


def test_an_hour_of_ten_steps_a_second_in_which_everything_changes_is_less_than_a_megabyte():
    draw, writer, size = random.Random(0), StepWriter(), 0
    for step in range(1, 36_001):
        gain = 1 + draw.random()
        event = stepped(
            time=1.7e9 + step / 10,
            step=step,
            samples=64 * step,
            loss=5 * draw.random(),
            step_s=0.1 * draw.random(),
            lr=(draw.random(),),
            lr_factor=(gain,),
            gain=gain,
            progress=1.5 * step,
            signal=draw.random(),
            noise=1e6 * draw.random(),
            noise_scale=1e6 * draw.random(),
            noise_low=1e6 * draw.random(),
            noise_high=1e6 * draw.random(),
            data_s=0.0002,
            measured=step % 16 == 0,
        )
        size += len(writer.line(event)) + 1
    assert size < 850_000  # the rest is for everything that is no step


def test_one_step_in_three_seconds_is_never_shortened():
    writer = StepWriter()
    for step in range(1, 2000):
        event = stepped(time=1.7e9 + 3.0 * step, step=step, samples=64 * step, loss=1 / step)
        assert from_json(writer.line(event)) == event


def test_a_reader_that_begins_in_the_middle_finds_a_whole_line_soon():
    writer = StepWriter(burst=0.0, rate=0.0)
    lines = [writer.line(stepped(time=1.7e9 + step, step=step, samples=64 * step)) for step in range(1, 2000)]
    whole = [number for number, line in enumerate(lines) if line.startswith("{")]
    assert max(later - former for former, later in pairwise(whole)) <= 401


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3), st.lists, max_leaves=8))
def test_nonsense_in_brackets_is_no_step(nonsense):
    reader = StepReader()
    reader.whole(stepped())
    items = nonsense if isinstance(nonsense, list) else [nonsense]
    assert reader.short(items) is None or isinstance(items[0], (int, float))
