"""Schedules hold a size from point to point, ramps move it evenly; both count in any unit."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.errors import ConfigError
from swell.policies import Ramp, Schedule
from tests.policies.observations import observations, seen
from tests.reference.policies import linear_ramp, schedule_batch

SIZES = st.integers(1, 4096)


def at(samples: int, *, epoch_size: int = 1000, total_samples: int | None = 10_000):
    epoch, epoch_samples = divmod(samples, epoch_size)
    return seen(
        samples=samples, epoch=epoch, epoch_samples=epoch_samples, epoch_size=epoch_size, total_samples=total_samples
    )


@given(
    whens=st.sets(st.integers(1, 500)), sizes=st.lists(SIZES, min_size=501, max_size=501), samples=st.integers(0, 600)
)
def test_a_schedule_in_samples_is_the_batch_of_the_last_point_reached(whens, sizes, samples):
    points = [(when, sizes[when]) for when in sorted({0, *whens})]
    expected = schedule_batch([(Fraction(when), size) for when, size in points], Fraction(samples))
    assert Schedule(points).batch(at(samples)) == expected


@given(
    tenths=st.sets(st.integers(1, 60)),
    sizes=st.lists(SIZES, min_size=61, max_size=61),
    epoch_size=st.integers(1, 300),
    data=st.data(),
)
def test_a_schedule_in_epochs_counts_parts_of_an_epoch_exactly(tenths, sizes, epoch_size, data):
    samples = data.draw(st.integers(0, 7 * epoch_size))
    points = [(tenth / 10, sizes[tenth]) for tenth in sorted({0, *tenths})]
    exact = [(Fraction(tenth, 10), sizes[tenth]) for tenth in sorted({0, *tenths})]
    expected = schedule_batch(exact, Fraction(samples, epoch_size))
    assert Schedule(points, unit="epochs").batch(at(samples, epoch_size=epoch_size)) == expected


@given(percents=st.sets(st.integers(1, 100)), total=st.integers(1, 10**6), data=st.data())
def test_a_schedule_in_fractions_counts_parts_of_the_run_exactly(percents, total, data):
    samples = data.draw(st.integers(0, 2 * total))  # a run may be resumed past its end
    percents = sorted({0, *percents})
    expected = schedule_batch([(Fraction(p, 100), p + 1) for p in percents], min(Fraction(1), Fraction(samples, total)))
    policy = Schedule([(p / 100, p + 1) for p in percents], unit="fraction")
    assert policy.batch(at(samples, total_samples=total)) == expected


def test_whole_epochs_need_no_length_of_an_epoch():
    policy = Schedule([(0, 64), (2, 128)], unit="epochs")
    assert [policy.batch(seen(epoch=e, epoch_size=None)) for e in (0, 1, 2, 9)] == [64, 64, 128, 128]


def test_parts_of_an_epoch_of_unknown_length_are_an_error_that_says_what_to_use():
    with pytest.raises(ConfigError, match=r"unit is 'epochs'.*no length.*unit='samples'"):
        Schedule([(0, 64), (1.5, 128)], unit="epochs").batch(seen(epoch_size=None))
    with pytest.raises(ConfigError, match=r"unit is 'epochs'.*no length.*unit='samples'"):
        Ramp(64, 128, over=2, unit="epochs").batch(seen(epoch_size=None))


def test_a_fraction_of_a_run_that_progress_ends_is_one_of_its_progress():
    policy = Schedule([(0, 64), (0.5, 128)], unit="fraction")
    here = at(9_000)  # larger batches have taken more samples than the base batch would
    assert policy.batch(here) == 128
    assert policy.batch(dataclasses.replace(here, progress=40.0, total_progress=100.0)) == 64
    assert policy.batch(dataclasses.replace(here, progress=50.0, total_progress=100.0)) == 128


@pytest.mark.parametrize(
    "policy", [Schedule([(0, 64), (0.5, 128)], unit="fraction"), Ramp(64, 128, over=0.5, unit="fraction")]
)
def test_a_fraction_of_a_run_without_an_end_is_an_error_that_says_what_to_use(policy):
    with pytest.raises(ConfigError, match=r"unit is 'fraction'.*unit='samples' or unit='epochs'"):
        policy.batch(seen(total_samples=None))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "points is"),
        (5, "points is 5"),
        ([(10, 64)], r"points\[0\]\[0\] is 10"),
        ([(0, 64), (10, 64), (10, 128)], r"points\[2\]\[0\] is 10"),
        ([(0, 64), (10, 64), (5, 128)], r"points\[2\]\[0\] is 5"),
        ([(0, 64), (-1, 64)], r"points\[1\]\[0\] is -1"),
        ([(0, 64), (float("nan"), 64)], r"points\[1\]\[0\] is nan"),
        ([(0, 64.0)], r"points\[0\]\[1\] is 64.0"),
        ([(0, 0)], r"points\[0\]\[1\] is 0"),
        ([64, 128], r"points\[0\] is 64"),
        ([(0, 64, 1)], r"points\[0\] is \(0, 64, 1\)"),
        ({0: 64}, r"points\[0\] is 0"),
    ],
)
def test_a_table_that_is_no_schedule_is_refused(points, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(points)


def test_points_past_the_run_and_unknown_units_are_refused():
    with pytest.raises(ConfigError, match=r"is [0-9.]+; .*0 to 1"):
        Schedule([(0, 64), (1.5, 128)], unit="fraction")
    with pytest.raises(ConfigError, match=r"is [0-9.]+; .*0 to 1"):
        Ramp(64, 128, over=2, unit="fraction")
    for make in (lambda unit: Schedule([(0, 64)], unit=unit), lambda unit: Ramp(64, 128, over=1, unit=unit)):
        with pytest.raises(ConfigError, match=r"unit is 'steps'.*'samples', 'epochs', 'fraction'"):
            make("steps")


@given(
    start=st.integers(1, 60),
    end=st.integers(1, 60),
    multiple=st.integers(1, 9),
    over=st.integers(1, 1000),
    samples=st.integers(0, 2000),
)
def test_a_linear_ramp_is_the_multiple_nearest_to_the_line(start, end, multiple, over, samples):
    ramp = Ramp(start * multiple, end * multiple, over=over, multiple=multiple)
    batch = ramp.batch(at(samples))
    exact = start * multiple + (end - start) * multiple * min(Fraction(1), Fraction(samples, over))
    assert batch % multiple == 0
    assert abs(batch - exact) <= Fraction(multiple, 2) + Fraction(1, 10**9)
    if (2 * exact) % multiple:  # elsewhere a rounding error may decide between two that are equally near
        expected = linear_ramp(start * multiple, end * multiple, part=Fraction(samples, over), multiple=multiple)
        assert batch == expected


@given(
    start=SIZES,
    end=SIZES,
    kind=st.sampled_from(["linear", "geometric"]),
    unit=st.sampled_from(["samples", "epochs", "fraction"]),
    positions=st.lists(st.integers(0, 10_000), min_size=2, max_size=20),
)
def test_a_ramp_starts_at_its_start_ends_at_its_end_and_never_turns_back(start, end, kind, unit, positions):
    over = {"samples": 6000, "epochs": 6, "fraction": 0.6}[unit]
    ramp = Ramp(start, end, over=over, unit=unit, kind=kind)
    batches = [ramp.batch(at(samples)) for samples in [0, *sorted(positions), 6000, 10_000]]
    assert batches[0] == start and batches[-2:] == [end, end]
    assert batches == sorted(batches, reverse=end < start)


def test_a_geometric_ramp_multiplies_where_a_linear_one_adds():
    assert [Ramp(16, 1024, over=600, kind="geometric").batch(at(n)) for n in range(0, 700, 100)] == [
        16, 32, 64, 128, 256, 512, 1024,
    ]  # fmt: skip
    assert [Ramp(16, 1024, over=600).batch(at(n)) for n in (0, 300, 600)] == [16, 520, 1024]


@given(seen=observations())
def test_the_base_is_the_first_size_unless_it_is_given(seen):
    assert Schedule([(0, 64), (5, 128)]).base == Ramp(64, 128, over=5).base == 64
    assert Schedule([(0, 64)], base=8).base == Ramp(64, 128, over=5, base=8).base == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 0}, "start is 0"),
        ({"end": -5}, "end is -5"),
        ({"end": 1.5}, "end is 1.5"),
        ({"over": 0}, "over is 0"),
        ({"over": float("inf")}, "over is inf"),
        ({"multiple": 0}, "multiple is 0"),
        ({"multiple": 48}, r"start is 64.*multiple of 48.*start=48"),
        ({"start": 96, "multiple": 48}, r"end is 128.*multiple of 48.*end=144"),
        ({"kind": "cubic"}, "kind is 'cubic'"),
        ({"base": 0}, "base is 0"),
    ],
)
def test_numbers_that_make_no_ramp_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Ramp(**{"start": 64, "end": 128, "over": 1000, **arguments})
