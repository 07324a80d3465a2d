"""The supervisor knows from the job on how many workers its batch can be laid out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import swell
from swell.errors import ConfigError
from swell.supervisor.control import ask
from tests.job.elastic_history import PATIENCE
from tests.job.scenario import Points, make_model, mean_loss
from tests.supervisor.forked import ForkedRun


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"batch": 6}, 6),
        ({"batch": 12, "micro": (4, 8)}, 3),
        ({"batch": 12, "base": 6, "micro": 3}, 12),
        ({"batch": swell.Goodput(128, max=1000, micro=(100, 500))}, 10),
        ({"batch": swell.Clamp(swell.Goodput(128, max=1000, micro=(100, 500)), low=128, high=900)}, 10),
        ({"batch": swell.Goodput(4, max=64)}, 64),
        ({"batch": swell.Goodput(33, max=40, micro=30, shrink=True)}, 1),
    ],
)
def test_a_job_whose_batches_are_known_says_which_worlds_can_be_fed(settings: dict[str, Any], most: int) -> None:
    job = swell.Job(device="cpu", **settings)
    assert job.engine.state.pace.possible_replicas() == list(range(1, most + 1))


def test_shares_in_proportion_to_speeds_fit_one_world_only() -> None:
    job = swell.Job(batch=12, capacity=[2.0, 1.0, 1.0], device="cpu")
    assert job.engine.state.pace.possible_replicas() == [3]


def test_a_policy_that_may_choose_anything_rules_nothing_out() -> None:
    for batch in (swell.Schedule([(0, 8), (1, 64)], unit="epochs", base=8), swell.Goodput(8, micro=(4, 16))):
        assert swell.Job(batch=batch, device="cpu").engine.state.pace.possible_replicas() is None


def train(batch: int) -> None:
    """What each worker runs, until it is stopped."""
    job = swell.Job(batch=batch, rule="constant", device="cpu")
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(60))
    for _ in job.epochs(100_000):
        for x, y, _ in loader:
            time.sleep(0.01)
            job.backward(mean_loss(model, x, y))
            job.step()


@pytest.mark.slow
@pytest.mark.distributed
def test_a_world_that_the_batch_cannot_feed_is_refused_and_the_run_begins_with_fewer(tmp_path: Path) -> None:
    settings = {"workers": "1:8", "start": 5, "patience": PATIENCE, "beat_s": 0.2}
    with ForkedRun(tmp_path, "tests.job.test_elastic_sizes:train", 3, **settings) as run:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                status = ask(run.run_dir, "status")
            except ConfigError:
                status = {}
            if status.get("state") == "training":
                break
            time.sleep(0.05)
        assert status["allowed"] == [1, 2, 3] and status["target"] == 3, run.terminal()
        assert "is ended: the job's batch (batch=3) can be laid out on 1 to 3 workers only, not 5" in run.terminal()
        with pytest.raises(ConfigError, match=r"workers is 4.*1 to 3"):
            ask(run.run_dir, "resize", workers=4)
        ask(run.run_dir, "resize", workers=2)
        ask(run.run_dir, "stop")
        assert run.end() == 143, run.terminal()


@pytest.mark.slow
@pytest.mark.distributed
def test_a_run_on_too_many_workers_and_no_others_is_refused(tmp_path: Path) -> None:
    settings = {"workers": "4:8", "start": 4, "patience": PATIENCE, "beat_s": 0.2}
    with ForkedRun(tmp_path, "tests.job.test_elastic_sizes:train", 3, **settings) as run:
        assert run.end() == 2
        assert "the run allows 4 to 8 workers and the job can be laid out on 1 to 3" in run.terminal()
        assert "The job was made with batch=3." in run.terminal()
