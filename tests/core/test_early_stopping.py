"""A metric ends a run at its target, or when it became no better for long enough."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.early_stopping import EarlyStopping
from swell.errors import ConfigError

values = st.lists(st.floats(-100, 100), min_size=1, max_size=30)


def ends(stopping: EarlyStopping, seen: list[float]) -> int | None:
    """The place of the value that ends the run."""
    return next((place for place, value in enumerate(seen) if stopping.judge(value) is not None), None)


@given(seen=values, target=st.floats(-100, 100))
def test_the_first_value_that_is_good_enough_ends_the_run(seen, target):
    low = next((place for place, value in enumerate(seen) if value <= target), None)
    high = next((place for place, value in enumerate(seen) if value >= target), None)
    assert ends(EarlyStopping("loss", target=target), seen) == low
    assert ends(EarlyStopping("accuracy", target=target, better="higher"), seen) == high


@given(seen=values, patience=st.integers(1, 6))
def test_patience_is_the_number_of_values_in_a_row_without_a_better_one(seen, patience):
    def expected() -> int | None:
        for place in range(patience, len(seen)):
            if min(seen[place - patience + 1 : place + 1]) >= min(seen[: place - patience + 1]):
                return place
        return None

    assert ends(EarlyStopping("loss", patience=patience), seen) == expected()
    mirrored = [-value for value in seen]
    assert ends(EarlyStopping("score", patience=patience, better="higher"), mirrored) == expected()


@given(seen=values, cut=st.integers(0, 30), patience=st.integers(1, 4))
def test_a_resumed_run_is_judged_like_one_that_went_through(seen, cut, patience):
    whole, resumed = EarlyStopping("loss", patience=patience), EarlyStopping("loss", patience=patience)
    first = ends(resumed, seen[:cut])
    if first is None:
        saved = json.loads(json.dumps(resumed.state_dict()))
        resumed = EarlyStopping("loss", patience=patience)
        resumed.load_state_dict(saved)
        rest = ends(resumed, seen[cut:])
        first = None if rest is None else cut + rest
    assert first == ends(whole, seen)


def test_a_value_that_is_no_number_is_no_better():
    stopping = EarlyStopping("loss", patience=2)
    assert ends(stopping, [math.nan, 1.0, math.nan, math.nan]) == 3
    assert stopping.best == 1.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metric": ""}, "metric is ''"),
        ({"metric": "loss"}, "target and patience are None"),
        ({"metric": "loss", "patience": 0}, "patience is 0"),
        ({"metric": "loss", "target": "low"}, "target is 'low'"),
        ({"metric": "loss", "patience": 1, "better": "smaller"}, "better is 'smaller'"),
    ],
)
def test_what_makes_no_sense_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        EarlyStopping(given.pop("metric"), **given)
