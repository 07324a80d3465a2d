"""A run has come to its end when all its workers have; one that ends alone leaves the others behind, and is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from swell.supervisor.actions import Action, Log
from swell.supervisor.membership import Membership
from swell.supervisor.patience import Patience
from swell.supervisor.sizes import parse_sizes
from tests.supervisor.simulated_run import SimulatedRun
from tests.supervisor.supervised import SupervisedRun

SCRIPT = """
import sys, time
import torch
import swell

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
model = torch.nn.Linear(3, 1)
job = swell.Job(None, batch=8, device="cpu", progress=False)
job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.loader(data)
for epoch in job.epochs(3):
    for x, y in loader:
        job.backward(((model(x) - y) ** 2).mean())
        job.step()
    if epoch == 1 and (sys.argv[1] == "all" or job.rank == 1):
        break
time.sleep(job.rank)  # each takes the time it needs
print("through")
"""


def settled(workers: int) -> SimulatedRun:
    patience = Patience(hang_s=10.0, grace_s=30.0)
    run = SimulatedRun(Membership(parse_sizes(str(workers)), target=workers, patience=patience))
    run.settle()
    return run


def said(actions: list[Action]) -> str:
    return " ".join(action.text for action in actions if isinstance(action, Log))


def test_a_worker_that_loses_one_that_ended_well_was_still_training_and_is_told_why_it_cannot_go_on() -> None:
    run = settled(3)
    run.exit(2, 0)
    first = run.members.left(1, 1, run.now)
    assert "worker 2 ended its script while others were still training" in said(first)
    run.do(first)
    second = run.members.left(3, 1, run.now)
    assert not said(second), "it is said once"
    run.do(second)
    for member in (1, 3):
        assert run.workers[member].released
        run.exit(member, 0)
    assert run.ended == 1


def test_it_makes_no_difference_whether_the_loss_or_the_end_is_heard_of_first() -> None:
    run = settled(2)
    run.do(run.members.done(2, run.now))
    run.do(run.members.left(1, 1, run.now))
    run.exit(2, 0)
    assert run.workers[1].released
    run.exit(1, 0)
    assert run.ended == 1


def test_workers_may_end_one_long_after_the_other() -> None:
    run = settled(2)
    run.exit(1, 0)
    run.tick(5.0)
    run.tick(5.0)
    run.exit(2, 0)
    assert run.ended == 0


def test_a_worker_that_is_stuck_when_another_has_ended_makes_the_run_fail() -> None:
    run = settled(2)
    run.workers[2].hung = True
    run.exit(1, 0)
    for _ in range(12):
        if run.ended is None:
            run.tick(1.0)
    assert run.ended == 1


def test_where_a_worker_was_killed_on_the_way_those_who_wait_for_it_are_not_to_blame() -> None:
    run = settled(3)
    run.exit(1, 0)  # got through the last save, in which worker 3 was struck and worker 2 is stuck
    run.exit(3, -9)
    run.do(run.members.left(2, 1, run.now))
    assert run.workers[2].released
    run.exit(2, 0)
    assert run.ended == 0


@pytest.mark.distributed
@pytest.mark.parametrize(("who", "status"), [("one", 1), ("all", 0)])
def test_a_loop_left_on_one_worker_alone_is_no_end_of_training(who: str, status: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with SupervisedRun.of(tmp_path, "--workers", "2", str(script), who) as run:
        assert run.end(timeout_s=120) == status, run.terminal()
        told = "worker 2 ended its script while others were still training" in run.terminal()
        assert told == (who == "one") and ("job.metrics.results()" in run.terminal()) == told
        assert run.terminal().count("through") == (2 if who == "all" else 1)
