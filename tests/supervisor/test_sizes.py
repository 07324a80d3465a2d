"""Allowed numbers of workers are read as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.errors import ConfigError
from swell.supervisor.sizes import WorldSizes, parse_sizes


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("4", (4,)), ("1:4", (1, 2, 3, 4)), ("2:9:3", (2, 5, 8)), ("8,2,4", (2, 4, 8)), ("1,4:6", (1, 4, 5, 6))],
)
def test_numbers_ranges_steps_and_lists_are_understood(text: str, allowed: tuple[int, ...]) -> None:
    assert parse_sizes(text).allowed == allowed


@pytest.mark.parametrize("text", ["", "0", "-1", "4:2", "1:8:0", "two", "1:2:3:4", "1,,2", "1:", "1000000"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match=r"workers.*1:8.*2,4,8"):
        parse_sizes(text)


@given(st.sets(st.integers(1, 50), min_size=1), st.integers(0, 60))
def test_floor_is_the_largest_allowed_number_that_can_be_filled(allowed: set[int], workers: int) -> None:
    sizes = WorldSizes(tuple(sorted(allowed)))
    floor = sizes.floor(workers)
    assert floor == max((size for size in allowed if size <= workers), default=None)
    assert sizes.nearest_below(workers) == (floor or min(allowed))


@given(st.sets(st.integers(1, 50), min_size=1))
def test_what_is_printed_can_be_read_again(allowed: set[int]) -> None:
    sizes = WorldSizes(tuple(sorted(allowed)))
    assert parse_sizes(str(sizes).replace(" to ", ":").replace(" ", "")) == sizes


def test_what_the_job_can_be_laid_out_on_narrows_what_the_run_allows() -> None:
    assert parse_sizes("1:8").only([2, 4, 16]).allowed == (2, 4)
    with pytest.raises(ConfigError, match=r"3.*2, 4"):
        parse_sizes("3").only([2, 4])
