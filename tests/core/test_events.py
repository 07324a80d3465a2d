"""Every event survives its line of JSON, and a line that is none says so."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core import events
from swell.core.events import Event, Stepped, Warned, from_json, to_json
from swell.core.types import Moments, NoiseEstimate, Observation, StepTimes
from swell.errors import ConfigError

CLASSES = [member for member in vars(events).values() if isinstance(member, type) and issubclass(member, Event)]
KINDS = {member.kind: member for member in CLASSES if member is not Event}
TEXTS = st.text() | st.sampled_from(["NaN", "Infinity", "-Infinity", "null", '{"event": "step"}', "two\nlines"])
SEEN = st.dictionaries(st.text(), st.recursive(st.integers() | st.floats() | st.none() | st.booleans(), st.tuples))
STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    "int": st.integers(),
    "int | None": st.none() | st.integers(),
    "float": st.floats(),
    "float | None": st.none() | st.floats(),
    "str": TEXTS,
    "bool": st.booleans(),
    "tuple[float, ...]": st.lists(st.floats()).map(tuple),
    "dict[str, float]": st.dictionaries(st.text(), st.floats()),
    "dict[str, Any]": SEEN,
}


def any_event(kind: type[Event]) -> st.SearchStrategy[Event]:
    return st.builds(kind, **{field.name: STRATEGIES[field.type] for field in dataclasses.fields(kind)})


def same(left: object, right: object) -> bool:
    """Equality in which not-a-number equals itself: what a log must keep is what was written."""
    return repr(left) == repr(right)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@given(data=st.data())
def test_every_event_comes_back_from_its_line_as_it_was(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(any_event(kind))
    back = from_json(to_json(event))
    assert type(back) is kind
    assert same(back, event)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@given(data=st.data())
def test_a_line_is_one_line_of_strict_json_that_any_reader_can_parse(kind: type[Event], data: st.DataObject) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    line = to_json(data.draw(any_event(kind)))
    assert "\n" not in line and line.isascii()
    assert json.loads(line, parse_constant=refuse)["event"] == kind.kind


def test_every_kind_has_its_own_name_and_a_docstring() -> None:
    assert len(KINDS) == len(CLASSES) - 1
    assert all(kind.__doc__ and get_type_hints(kind) for kind in KINDS.values())


def test_numbers_of_numpy_are_written_as_plain_ones() -> None:
    seen = {"count": np.int64(3), "flag": np.bool_(True), "half": np.float32(0.5), "zero_d": np.array(2), "nan": np.nan}
    event = events.BatchChanged(time=np.float64(1.5), step=1, before=2, after=3, policy="p", seen=seen)
    back = from_json(to_json(event))
    assert isinstance(back, events.BatchChanged)
    assert math.isnan(back.seen.pop("nan"))
    assert back.seen == {"count": 3, "flag": True, "half": 0.5, "zero_d": 2}
    assert back.time == 1.5


def test_an_observation_is_written_as_plain_fields() -> None:
    moments = Moments(1.0, math.inf)
    noise = NoiseEstimate(total=moments, groups=(moments,), interval=(1.0, math.inf), observations=3)
    times = StepTimes(replicas=1, nodes=1, micro_batch=4, accumulation=2, step_s=0.5)
    seen = Observation(
        step=1,
        samples=8,
        epoch=0,
        epoch_samples=8,
        epoch_size=None,
        total_samples=None,
        progress=1.0,
        base_batch=8,
        batch=8,
        batch_since=0,
        replicas=1,
        noise=noise,
        times=times,
    )
    event = events.BatchChanged(time=0.0, step=1, before=8, after=16, policy="p", seen={"seen": seen})
    back = from_json(to_json(event))
    assert isinstance(back, events.BatchChanged)
    assert back.seen["seen"] == dataclasses.asdict(seen)


def test_what_json_has_no_form_for_is_written_as_its_text() -> None:
    event = events.BatchChanged(time=0.0, step=1, before=8, after=16, policy="p", seen={"kind": Warned})
    assert "Warned" in to_json(event)


def test_fields_of_a_newer_version_are_left_out() -> None:
    assert from_json('{"event": "warning", "time": 1.0, "message": "m", "colour": "red"}') == Warned(
        time=1.0, message="m"
    )


def test_fields_with_a_default_may_be_absent_from_the_line() -> None:
    record = json.loads(
        to_json(
            Stepped(
                time=0.0,
                step=1,
                epoch=0,
                samples=4,
                global_batch=4,
                replicas=1,
                micro_batch=4,
                accumulation=1,
                lr=(0.1,),
                lr_factor=(1.0,),
                gain=1.0,
                progress=1.0,
                step_s=0.1,
            )
        )
    )
    del record["loss"], record["noise_scale"]
    back = from_json(json.dumps(record))
    assert isinstance(back, Stepped) and back.loss is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "null",
        "3",
        '"step"',
        "[1]",
        "{}",
        '{"event": "dream", "time": 0.0}',
        '{"event": ["step"]}',
        '{"event": "warning"}',
        '{"event": "step", "time": 1.0}',
    ],
)
def test_a_line_that_is_no_event_is_refused_with_what_was_expected(line: str) -> None:
    with pytest.raises(ConfigError, match="'event' kind"):
        from_json(line)


@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
def test_a_torn_line_is_never_taken_for_an_event(kind: str, data: st.DataObject) -> None:
    line = to_json(data.draw(any_event(KINDS[kind])))
    torn = line[: data.draw(st.integers(0, len(line) - 1))]
    with pytest.raises(ConfigError):
        from_json(torn)
