"""Votes that travel with a small network's gradients still say what separate ones said, at every moment of a loop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import swell
from swell.errors import DisagreementError
from swell.gradients import buckets
from tests.job.elastic_history import lay_out
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers

pytestmark = pytest.mark.distributed


def carries(job: swell.Job) -> bool:
    overlap = job.engine.state.learners[0].early.overlap
    return overlap is not None and overlap.carrier is not None


def wrapped(folder: str | None = None, **options: Any) -> tuple[swell.Job, nn.Module]:
    job = swell.Job(folder, batch=8, progress=False, rule="constant", **options)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    return job, model


def separately(collective: Any, what: str, folder: str, votes: str) -> tuple[list[bool], str]:
    """Steps, after which the last rank does something by itself."""
    lay_out(votes)
    job, model = wrapped(folder)
    loader, carried = job.loader(Points(80)), []
    try:
        for x, y, _ in loader:
            carried.append(carries(job))
            job.backward(mean_loss(model, x, y))
            job.step()
            if job.steps == 3 and collective.rank == collective.size - 1:
                if what == "leaves":
                    break
                list(job.evaluation(Points(12), batch_size=4))
        job.close()
    except DisagreementError as error:
        return carried, str(error)
    return carried, ""


@pytest.mark.parametrize(("what", "words"), [("evaluates", "whether to train"), ("leaves", "left the training loop")])
@pytest.mark.parametrize(("world", "votes"), [(2, "last"), (3, "last"), (2, "only"), (3, "only")])
def test_a_replica_that_does_something_else_is_an_error_on_those_that_train(
    tmp_path: Path, world: int, votes: str, what: str, words: str
) -> None:
    *others, (last, _) = run_workers(world, separately, what, str(tmp_path), votes)
    assert last == [False, True, True]
    for carried, message in others:
        assert carried == [False, True, True, True]
        assert words in message


def leaves_in_a_step(collective: Any, votes: str, *, leaves: bool = True) -> tuple[int, int, list[list[float]]]:
    """All replicas leave the loop in the middle of a step, mostly evaluate, and begin the step again."""
    lay_out(votes)
    job, model = wrapped()
    loader = job.loader(Points(80))
    for _ in job.epochs(1):
        for turn in range(4):
            for number, (x, y, _) in enumerate(loader):
                if number == 2 and turn == 2 and leaves:
                    break  # before anything of the step is under way
                job.backward(mean_loss(model, x, y))
                if number == 2 and turn < 2 and leaves:
                    break
                job.step()
            if collective.size > 1:
                assert carries(job)
            if turn:  # the first time they begin again without having met
                for x, _, _ in job.evaluation(Points(13), batch_size=4):
                    job.metrics.sum("seen", len(x))
            if not leaves:
                break
    seen = job.metrics.results()["seen"] if leaves else 0
    steps = job.steps
    job.close()
    return steps, int(seen), [parameter.flatten().tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("votes", ["last", "only"])
@pytest.mark.parametrize("world", [2, 3])
def test_a_step_that_all_leave_is_made_again(world: int, votes: str) -> None:
    ((_, _, plain),) = run_workers(1, partial(leaves_in_a_step, leaves=False), votes)
    for steps, seen, weights in run_workers(world, leaves_in_a_step, votes):
        assert (steps, seen) == (10, 3 * 13)
        for mine, other in zip(weights, plain, strict=True):
            assert mine == pytest.approx(other, rel=1e-9, abs=1e-12)


def evaluates_and_shares(collective: Any, votes: str) -> tuple[list[bool], int, list[list[float]]]:
    lay_out(votes)
    job, model = wrapped()
    loader, carried, seen = job.loader(Points(43)), [], 0
    for _ in job.epochs(2):
        for x, y, _ in loader:
            carried.append(carries(job))
            job.backward(mean_loss(model, x, y))
            job.step()
            if job.steps % 4 == 3:  # not after the short step at the end, in which some have no part
                for part, _, _ in job.evaluation(Points(11), batch_size=4):
                    job.metrics.sum("seen", len(part))
                shared = job.share(lambda: 7 * job.steps)
                seen += int(job.metrics.results()["seen"]) + (shared != 7 * job.steps)
    weights = [parameter.flatten().tolist() for parameter in model.parameters()]
    job.close()
    return carried, seen, weights


@pytest.mark.parametrize(("world", "votes"), [(2, "last"), (3, "last"), (5, "last"), (2, "only"), (5, "only")])
def test_replicas_meet_between_steps_whose_votes_are_carried(world: int, votes: str) -> None:
    results = run_workers(world, evaluates_and_shares, votes)
    alone = run_workers(1, evaluates_and_shares, votes)[0]
    for carried, seen, weights in results:
        assert not carried[0] and all(carried[1:])
        assert seen == alone[1] > 0
        for mine, other in zip(weights, alone[2], strict=True):
            assert mine == pytest.approx(other, rel=1e-9, abs=1e-12)


class Branches(nn.Module):
    """A second branch, whose gradients are ready between those of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rare, self.last = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 1)
        self.double()
        for number, parameter in enumerate(self.parameters(), start=1):
            nn.init.constant_(parameter, number / 10)

    def forward(self, x: Tensor, *, rare: bool) -> Tensor:
        hidden = torch.tanh(self.first(x) + self.rare(x) if rare else self.first(x))
        return self.last(hidden)


def evaluates_in_a_step(collective: Any, votes: str, lacking: tuple[int, ...]) -> tuple[int, list[list[float]]]:
    """All replicas evaluate before a backward pass, and between one and its step, for which some lack gradients."""
    lay_out(votes)
    buckets.bucket_bytes = lambda number, total: 48
    job, model, seen = swell.Job(batch=8, progress=False, rule="constant"), Branches(), 0
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for x, y, _ in job.loader(Points(48)):
        if job.steps in (2, 4):
            seen += sum(len(part) for part, _, _ in job.evaluation(Points(11), batch_size=4))
        rare = job.steps != 3 or collective.rank not in lacking
        job.backward(((model(x, rare=rare).squeeze(-1) - y) ** 2).mean())
        if job.steps == 3:
            seen += sum(len(part) for part, _, _ in job.evaluation(Points(11), batch_size=4))
            assert carries(job) is (votes != "apart")
        job.step()
    weights = [parameter.flatten().tolist() for parameter in model.parameters()]
    job.close()
    return seen, weights


@pytest.mark.parametrize("lacking", [(), (0,), (1,)])
@pytest.mark.parametrize("votes", ["last", "only"])
def test_replicas_may_meet_in_the_middle_of_a_step(votes: str, lacking: tuple[int, ...]) -> None:
    ours, twins = (run_workers(2, evaluates_in_a_step, way, lacking) for way in (votes, "apart"))
    assert sum(seen for seen, _ in ours) == 3 * 11
    for (_, weights), (_, others) in zip(ours, twins, strict=True):
        for mine, other in zip(weights, others, strict=True):
            assert mine == pytest.approx(other, rel=1e-9, abs=1e-12)


def adds_parameters(collective: Any) -> list[list[float]]:
    """Parameters are added before the last step of the epoch, in which two of three replicas have no sample."""
    job, model = wrapped()
    optimizer, late = job.engine.state.learners[0].optimizer, nn.Linear(1, 1).double()
    nn.init.constant_(late.weight, 0.5)
    nn.init.constant_(late.bias, 0.1)
    loader = job.loader(Points(25))
    for _ in job.epochs(2):
        for x, y, _ in loader:
            loss = mean_loss(model, x, y)
            if job.steps >= 3:
                loss = loss + (late(y.double().view(-1, 1)) ** 2).mean()
            job.backward(loss)
            job.step()
            if job.steps == 3:
                optimizer.add_param_group({"params": late.parameters()})
    weights = [p.flatten().tolist() for module in (model, late) for p in module.parameters()]
    job.close()
    return weights


def test_parameters_may_be_added_before_a_step_in_which_some_have_no_sample() -> None:
    results, (alone,) = run_workers(3, adds_parameters), run_workers(1, adds_parameters)
    for weights in results:
        for mine, other in zip(weights, alone, strict=True):
            assert mine == pytest.approx(other, rel=1e-9, abs=1e-12)
