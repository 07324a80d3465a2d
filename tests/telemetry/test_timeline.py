"""A picture of a run over time: what was there when, with a gap where nothing was."""

from __future__ import annotations

import dataclasses
import math

import pytest

from swell.core.events import RunStarted
from swell.errors import ConfigError
from swell.telemetry import draw_timeline
from tests.telemetry.runs import a_run, stepped


def resumed(events, *, later=30.0):
    """The events of a run and, after a while, the same again with the samples going on."""
    samples = max(event.samples for event in events if hasattr(event, "samples"))
    again = [
        dataclasses.replace(
            event,
            time=event.time + later,
            **({"samples": event.samples + samples} if hasattr(event, "samples") else {}),
        )
        for event in events
    ]
    return [*events, *again]


def test_a_run_is_drawn_over_its_seconds_with_marks_and_another_beside_it(tmp_path):
    run = resumed(a_run(resize_at=10))
    assert sum(isinstance(event, RunStarted) for event in run) == 2
    path = draw_timeline(run, tmp_path / "deep" / "run.svg", marks=[(5.0, "kill -9")], beside={"alone": a_run()})
    text = path.read_text()
    for phrase in (
        "workers",
        "global batch",
        "learning rate factor",
        "loss",
        "seconds",
        "kill -9",
        "alone, at the same",
    ):
        assert phrase in text


def test_a_png_is_drawn_without_marks_and_others(tmp_path):
    assert draw_timeline(a_run(), tmp_path / "run.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "events",
    [
        [stepped()],
        [stepped(samples=64 * i, loss=None, lr_factor=()) for i in range(1, 9)],
        [stepped(samples=64 * i, loss=math.nan) for i in range(1, 9)],
        [stepped(samples=64 * i, replicas=i * 37) for i in range(1, 9)],
        [*a_run(), a_run()[0]],  # resumed at its end
    ],
)
def test_odd_runs_are_drawn_too(tmp_path, events):
    assert draw_timeline(events, tmp_path / "run.png").stat().st_size > 5_000


def test_a_log_without_a_step_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no committed step"):
        draw_timeline([], tmp_path / "run.png")
