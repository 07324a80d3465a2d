"""What a scheduler can ask a run: how much faster it would be on other numbers of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import swell
from swell.core.events import Hinted, from_json
from swell.errors import ConfigError
from swell.job import hints
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers


def run(collective: Any, batch: Any, replicas: list[int], **settings: Any) -> dict[int, float]:
    job = swell.Job(batch=batch, progress=False, **settings)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Points(512))
    assert job.speedup(replicas) == {}  # nothing was timed yet
    for _ in job.epochs(1):
        for x, y, _index in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    return job.speedup(replicas)


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


def test_numbers_of_replicas_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="replicas=0"):
        run(None, 16, [0])
