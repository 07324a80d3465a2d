"""What a scheduler can ask a run: how much faster it would be on other numbers of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import swell
from swell.core.events import Event, Hinted, from_json
from swell.errors import ConfigError
from swell.job import hints
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None: ...


def trained(batch: Any, **settings: Any) -> swell.Job:
    job = swell.Job(batch=batch, progress=False, **settings)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Points(512))
    assert job.speedup([1]) == {}  # nothing was timed yet
    for _ in job.epochs(1):
        for x, y, _index in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    return job


def run(collective: Any, batch: Any, replicas: list[int], **settings: Any) -> dict[int, float]:
    return trained(batch, **settings).speedup(replicas)


def on_workers(collective: Any, batch: Any, replicas: list[int]) -> dict[int, float]:
    return run(collective, batch, replicas)


def test_relative_to_now_the_present_world_is_one_and_an_impossible_one_zero() -> None:
    told = run(None, 16, [1, 2, 16, 17])
    assert told[1] == pytest.approx(1.0)
    assert told[17] == 0.0  # a batch of 16 cannot be laid out on 17 replicas
    assert told[2] > 0 and told[16] > 0


@pytest.mark.distributed
@pytest.mark.parametrize("batch", [16, swell.Goodput(16, max=64)], ids=["fixed", "goodput"])
def test_every_replica_gives_the_same_advice(batch: Any) -> None:
    told = run_workers(2, on_workers, batch, [1, 2, 3, 4])
    assert told[0] == told[1]
    assert told[0][2] == pytest.approx(1.0)
    assert all(told[0][replicas] > 0 for replicas in (1, 3, 4))


def test_hints_are_told_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "EVERY_S", 0.0)
    run(None, 16, [1], run_dir=tmp_path, save=None)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    told = [event for event in map(from_json, lines) if isinstance(event, Hinted)]
    assert told and set(told[-1].speedup) == {"1", "2"}
    assert told[-1].speedup["1"] == pytest.approx(1.0)


def test_hints_reach_a_sink_without_a_run_folder_with_the_error_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "EVERY_S", 0.0)
    heard = Heard()
    run(None, swell.Goodput(16, max=64), [1], sinks=[heard])
    told = [event for event in heard.events if isinstance(event, Hinted)][-1]
    assert set(told.errors) == set(told.speedup) == {"1", "2"}
    assert told.errors["1"] < told.errors["2"]  # what two would exchange over was never seen


def test_hints_of_older_logs_have_no_errors() -> None:
    told = from_json('{"event": "hint", "time": 0.0, "step": 3, "speedup": {"1": 1.0}}')
    assert isinstance(told, Hinted) and told.errors == {}


def test_the_error_of_advice_is_asked_for_like_the_advice_and_one_number_will_do() -> None:
    job = trained(16)
    assert set(job.speedup(4)) == {4} and job.speedup(4)[4] == job.speedup([2, 4])[4]
    errors = job.speedup_errors([1, 4, 17])
    assert 0 <= errors[1] < 0.5 <= errors[4] and errors[17] == 0.0


@pytest.mark.parametrize("given", [0, [0], -1, 1.5, ["a"], "4", None, True])
def test_numbers_of_replicas_that_cannot_be_are_refused(given: Any) -> None:
    job = swell.Job(batch=16, progress=False)
    job.loader(Points(512))
    with pytest.raises(ConfigError, match="replicas"):
        job.speedup(given)
