"""A growth of the batch that raises the loss is noticed and taken back; one that does not is left alone."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from swell.core.growth_watch import GrowthWatch, Rise

BASE = 32


def run(
    watch: GrowthWatch, losses: list[float], batch: int, *, samples: int = 0, replicas: int = 1
) -> tuple[int, list[Rise]]:
    """Steps with these losses at one batch; the samples after them, and the rises that were found."""
    found = []
    for loss in losses:
        samples += batch
        rise = watch.see(batch=batch, loss=loss, samples=samples, replicas=replicas)
        found += [] if rise is None else [rise]
    return samples, found


def noisy(mean: float, count: int, *, seed: int, slope: float = 0.0, noise: float = 0.2) -> list[float]:
    draw = random.Random(seed)
    return [(mean + slope * i) * draw.gauss(1, noise) for i in range(count)]


@given(seed=st.integers(0, 10_000), growth=st.sampled_from([2, 4, 16]))
@settings(max_examples=50, deadline=None)
def test_a_loss_that_doubles_after_a_growth_is_taken_back_within_a_few_steps(seed, growth):
    watch = GrowthWatch(base_batch=BASE)
    samples, none = run(watch, noisy(1.0, 40, seed=seed), BASE)
    _, found = run(watch, noisy(2.0, 30, seed=seed + 1, noise=0.1), growth * BASE, samples=samples)
    assert not none and len(found) == 1
    assert (found[0].before, found[0].after) == (BASE, growth * BASE)
    assert found[0].loss_after > 1.2 * found[0].loss_before
    assert watch.limit(found[0].until - 1, 1) == BASE
    assert watch.limit(found[0].until, 1) is None


@given(seed=st.integers(0, 10_000), slope=st.sampled_from([0.0, -0.005]))
@settings(max_examples=50, deadline=None)
def test_a_loss_that_stays_or_falls_is_left_alone(seed, slope):
    watch = GrowthWatch(base_batch=BASE)
    samples, found = 0, []
    for place, batch in enumerate((BASE, 2 * BASE, BASE, 4 * BASE, 8 * BASE)):
        losses = noisy(2.0 + 60 * place * slope, 60, seed=seed + place, slope=slope)
        samples, more = run(watch, losses, batch, samples=samples)
        found += more
    assert not found and watch.limit(samples, 1) is None


def test_a_loss_that_is_not_finite_after_a_growth_is_taken_back_at_once():
    watch = GrowthWatch(base_batch=BASE)
    samples, _ = run(watch, noisy(1.0, 40, seed=0), BASE)
    _, found = run(watch, [float("nan")], 4 * BASE, samples=samples)
    assert [rise.before for rise in found] == [BASE]


def test_a_rise_without_a_growth_is_none_of_its_business():
    watch = GrowthWatch(base_batch=BASE)
    _, found = run(watch, [*noisy(1.0, 60, seed=0), *noisy(5.0, 60, seed=1)], BASE)
    assert not found


def test_each_time_a_growth_is_taken_back_for_twice_as_long():
    watch, samples, holds = GrowthWatch(base_batch=BASE), 0, []
    for turn in range(3):
        samples, _ = run(watch, noisy(1.0, 40, seed=turn), BASE, samples=samples)
        for loss in noisy(3.0, 20, seed=turn + 9):
            samples += 4 * BASE
            rise = watch.see(batch=4 * BASE, loss=loss, samples=samples, replicas=1)
            if rise is not None:
                holds.append(rise.until - samples)
                break
    assert len(holds) == 3
    assert holds[1] == 2 * holds[0] and holds[2] == 4 * holds[0]


def test_another_world_has_no_ceiling_yet():
    watch = GrowthWatch(base_batch=BASE)
    samples, _ = run(watch, noisy(1.0, 40, seed=0), BASE)
    samples, found = run(watch, noisy(3.0, 20, seed=1), 4 * BASE, samples=samples)
    assert found and watch.limit(samples, 1) == BASE and watch.limit(samples, 2) is None


@given(cut=st.integers(1, 69), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_a_resumed_watch_goes_on_as_if_nothing_had_happened(cut, seed):
    steps = [(BASE, loss) for loss in noisy(1.0, 40, seed=seed)]
    steps += [(4 * BASE, loss) for loss in noisy(2.0, 30, seed=seed + 1, noise=0.1)]
    whole, cut_short = GrowthWatch(base_batch=BASE), GrowthWatch(base_batch=BASE)
    seen: list[list[Rise | None]] = [[], []]
    for place, (batch, loss) in enumerate(steps):
        if place == cut:
            saved = json.loads(json.dumps(cut_short.state_dict()))
            cut_short = GrowthWatch(base_batch=BASE)
            cut_short.load_state_dict(saved)
        for watch, rises in zip((whole, cut_short), seen, strict=True):
            rises.append(watch.see(batch=batch, loss=loss, samples=place * BASE, replicas=1))
    assert seen[0] == seen[1] and any(seen[0])
    assert whole.state_dict() == cut_short.state_dict()


@given(seed=st.integers(0, 10_000), tried=st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_what_a_batch_did_that_was_only_tried_is_noticed_when_it_is_gone(seed, tried):
    watch, draw, found = GrowthWatch(base_batch=8), random.Random(seed), []
    for step in range(60 + tried):
        grown = 30 <= step < 30 + tried
        loss = draw.gauss(1.0, 0.05) * (2.0 if step >= 30 + tried else 1.0)
        found.append(watch.see(batch=32 if grown else 8, loss=loss, samples=8 * step, replicas=1))
    rises = [(step, rise) for step, rise in enumerate(found) if rise is not None]
    assert len(rises) == 1 and rises[0][0] <= 30 + tried + 10
    assert (rises[0][1].before, rises[0][1].after) == (8, 32)
    assert watch.limit(8 * (60 + tried), 1) == 8


@given(seed=st.integers(0, 10_000), tried=st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_a_trial_that_did_no_harm_is_forgotten(seed, tried):
    watch, draw = GrowthWatch(base_batch=8), random.Random(seed)
    for step in range(120):
        batch = 32 if step % 40 >= 40 - tried else 8
        assert watch.see(batch=batch, loss=draw.gauss(1.0, 0.05), samples=8 * step, replicas=1) is None


@given(seed=st.integers(0, 10_000), tried=st.integers(1, 12), rest=st.integers(1, 46))
@settings(max_examples=50, deadline=None)
def test_a_growth_after_a_trial_is_watched_like_any_other(seed, tried, rest):
    watch, draw, found = GrowthWatch(base_batch=8), random.Random(seed), []
    batches = [8] * 30 + [16] * tried + [8] * rest + [32] * 40
    for step, batch in enumerate(batches):
        loss = draw.gauss(1.0, 0.05) * (2.0 if step >= 30 + tried + rest + 20 else 1.0)
        found.append(watch.see(batch=batch, loss=loss, samples=8 * step, replicas=1))
    (rise,) = [rise for rise in found if rise is not None]
    assert (rise.before, rise.after) == (8, 32)
