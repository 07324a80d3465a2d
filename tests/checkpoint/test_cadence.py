from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.checkpoint import Cadence, Mark
from swell.errors import ConfigError


def at(samples: int = 0, step: int = 0, time_s: float = 0.0) -> Mark:
    return Mark(time_s=time_s, samples=samples, step=step)


def test_without_a_period_no_checkpoint_is_ever_due() -> None:
    assert not Cadence().due(at(10**9, 10**9, 1e9), last=at())


@given(every=st.integers(1, 100), batches=st.lists(st.integers(1, 250), max_size=60), cut=st.integers(0, 60))
def test_by_samples_the_places_do_not_depend_on_where_the_run_was_resumed(
    every: int, batches: list[int], cut: int
) -> None:
    def places(start: int, batches: list[int]) -> list[int]:
        samples, last, saved = start, start, []
        for batch in batches:
            samples += batch
            if Cadence(every_samples=every).due(at(samples), last=at(last)):
                saved.append(samples)
                last = samples
        return saved

    whole = places(0, batches)
    assert places(0, batches[:cut]) + places(sum(batches[:cut]), batches[cut:]) == whole
    assert len(whole) <= sum(batches) // every


@given(every=st.floats(0.1, 1e6), last=st.floats(0, 1e6), waited=st.floats(0, 1e6))
def test_by_time_a_checkpoint_is_due_when_the_period_has_passed(every: float, last: float, waited: float) -> None:
    now = last + waited
    assert Cadence(every_s=every).due(at(time_s=now), last=at(time_s=last)) == (now - last >= every)


def test_the_first_period_to_pass_decides() -> None:
    cadence = Cadence(every_s=60, every_samples=1000, every_steps=10)
    assert cadence.due(at(step=10), last=at(step=9))
    assert cadence.due(at(1001), last=at(999))
    assert cadence.due(at(time_s=61), last=at(time_s=1))
    assert not cadence.due(at(999, 9, 59), last=at())


@pytest.mark.parametrize("period", ["every_s", "every_samples", "every_steps"])
def test_a_period_of_nothing_is_refused(period: str) -> None:
    with pytest.raises(ConfigError, match=period):
        Cadence(**{period: 0})
