"""Every mistake a user can make gets an error that says how to fix it, and loses nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import swell
from swell.errors import ConfigError, DataError, DisagreementError, LoopError, LossError, PlanError, TraceError
from tests.job.scenario import Points, finish, make_model, mean_loss
from tests.workers import run_workers


def job_with_model(n: int = 16, **settings: Any) -> tuple[swell.Job, torch.nn.Module, Any]:
    job = swell.Job(**{"batch": 8, "micro": 4, **settings})
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return job, model, job.loader(Points(n))


@pytest.mark.parametrize("batch", [0, -4, 2.5, "many", True, None])
def test_a_batch_size_must_be_a_positive_whole_number(batch: Any) -> None:
    with pytest.raises((ConfigError, TraceError)):
        swell.Job(batch=batch)


@pytest.mark.parametrize("micro", [0, -1, 1.5, (8, 4), (0, 4)])
def test_micro_batch_bounds_must_be_positive_and_in_order(micro: Any) -> None:
    with pytest.raises((ConfigError, PlanError)):
        job, model, loader = job_with_model(micro=micro)
        finish(job, model, loader)


def test_bounds_that_exclude_every_layout_say_which_number_to_change() -> None:
    job, model, loader = job_with_model(batch=8, micro=(5, 7))
    with pytest.raises(PlanError):
        finish(job, model, loader)


def test_an_empty_data_set_is_refused() -> None:
    job = swell.Job(batch=8)
    with pytest.raises(DataError, match="empty"):
        job.loader([])


def test_a_batch_larger_than_the_data_set_is_refused() -> None:
    job, model, loader = job_with_model(n=5)
    with pytest.raises(DataError, match=r"batch is 8.*5 samples"):
        finish(job, model, loader)


def test_a_second_training_loader_is_refused() -> None:
    job, _, _ = job_with_model()
    with pytest.raises(LoopError, match="already has a training loader"):
        job.loader(Points(4))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, x: model(x), r"shape \(4, 1\)"),
        (lambda model, x: 1.0, "float"),
        (lambda model, x: torch.tensor(1.0), "no trainable parameter"),
    ],
)
def test_a_loss_that_cannot_be_differentiated_is_refused_and_no_sample_is_lost(loss: Any, message: str) -> None:
    job, model, loader = job_with_model()
    with pytest.raises(LossError, match=message):
        for x, _, _ in loader:
            job.backward(loss(model, x))
    assert job.samples == 0
    assert finish(job, model, loader) == list(range(16))


def test_a_loss_that_is_not_finite_raises_and_the_step_is_not_committed() -> None:
    job, model, loader = job_with_model()
    weights = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(LossError, match="nonfinite='skip'"):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y) * math.nan)
            job.step()
    assert job.samples == 0
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    assert finish(job, model, loader) == list(range(16))


def test_a_loss_that_is_not_finite_can_be_skipped_and_is_said() -> None:
    events: list[Any] = []

    class Listener:
        def emit(self, event: Any) -> None:
            events.append(event)

        def close(self) -> None: ...

    job, model, loader = job_with_model(nonfinite="skip", sinks=[Listener()])
    for number, (x, y, _) in enumerate(loader):
        job.backward(mean_loss(model, x, y) * (math.inf if number == 1 else 1.0))
        job.step()
    assert job.steps == 1 and job.samples == 16
    (skip,) = [event for event in events if event.kind == "skip"]
    assert (skip.samples, skip.redone) == (8, False) and "inf" in skip.reason
    assert all(p.isfinite().all() for p in model.parameters())


def test_step_without_backward_is_refused() -> None:
    job, model, loader = job_with_model()
    with pytest.raises(LoopError, match=r"without job\.backward"):
        for _ in loader:
            job.step()
    assert finish(job, model, loader) == list(range(16))


def test_going_on_without_step_is_refused_and_no_sample_is_lost() -> None:
    job, model, loader = job_with_model()
    with pytest.raises(LoopError, match="would lose them"):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
    assert finish(job, model, loader) == list(range(16))


@pytest.mark.parametrize("call", ["backward", "step"])
def test_calls_outside_the_loop_are_refused(call: str) -> None:
    job, model, _ = job_with_model()
    with pytest.raises(LoopError, match="outside the training loop"):
        job.step() if call == "step" else job.backward(mean_loss(model, torch.ones(1, 6).double(), torch.ones(1)))


def test_after_an_exception_in_backward_the_step_can_be_done_again() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            raise MemoryError("no room")

    job, model, loader = job_with_model()
    came, failures = [], 0
    for x, y, index in loader:
        came.append(index.tolist())
        loss = mean_loss(model, x, y)
        try:
            job.backward(Fails.apply(loss) if len(came) == 2 else loss)
        except MemoryError:
            failures += 1
            with pytest.raises(LoopError, match=r"job\.redo"):
                job.backward(loss)
            with pytest.raises(LoopError, match="incomplete"):
                job.step()
            job.redo()
            continue
        job.step()
    assert failures == 1
    assert came[2:4] == came[0:2]
    assert [row for rows in came[2:] for row in rows] == list(range(16))
    assert job.samples == 16 and job.steps == 2


def test_leaving_the_loop_in_the_middle_of_a_step_loses_no_sample() -> None:
    job, model, loader = job_with_model()
    for x, y, _ in loader:
        job.backward(mean_loss(model, x, y))
        job.step()
        break  # after the first micro-batch of two
    assert job.samples == 0
    assert finish(job, model, loader) == list(range(16))


def test_two_loops_at_once_over_the_loader_are_refused() -> None:
    _, _, loader = job_with_model()
    with pytest.raises(LoopError, match="iterated already"):
        for _ in loader:
            for _ in loader:
                pass


def test_wrapping_an_optimizer_twice_is_refused() -> None:
    job = swell.Job(batch=4)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.wrap(model, optimizer)
    with pytest.raises(ConfigError, match="wrapped already"):
        job.wrap(model, optimizer)


def test_a_loop_without_a_model_or_data_says_what_is_missing() -> None:
    job = swell.Job(batch=4)
    with pytest.raises(LoopError, match=r"job\.loader"):
        next(job.epochs(1))
    loader = job.loader(Points(8))
    with pytest.raises(LoopError, match=r"job\.wrap"):
        next(iter(loader))


def disagree(collective: Any, what: str) -> str:
    rank = collective.rank
    try:
        job = swell.Job(batch=8, seed=rank if what == "seed" else 0)
        model = make_model(features=6 + rank) if what == "model" else make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        job.loader(Points(16 + rank) if what == "length" else Points(16))
    except DisagreementError as error:
        return str(error)
    return "nobody noticed"


@pytest.mark.distributed
@pytest.mark.parametrize(("what", "words"), [("model", "(5, 6)"), ("length", "length 16"), ("seed", "seed=0")])
def test_replicas_that_disagree_are_told_about_what(what: str, words: str) -> None:
    for message in run_workers(3, disagree, what):
        assert "replicas disagree" in message and words in message


def choose_by_rank(collective: Any) -> str:
    job = swell.Job(batch=lambda seen: 4 + collective.rank, base=4)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        finish(job, model, job.loader(Points(16)))
    except DisagreementError as error:
        return str(error)
    return "nobody noticed"


@pytest.mark.distributed
def test_a_policy_that_answers_differently_on_replicas_is_noticed() -> None:
    for message in run_workers(2, choose_by_rank):
        assert "global batch" in message and "function of its observation" in message


def wrap_lazily(collective: Any, first: bool) -> str:
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyLinear(1))
    if first:
        model(torch.ones(2, 3))
    job = swell.Job(batch=4, micro=2, progress=False)
    try:
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    except swell.errors.ConfigError as error:
        return str(error)
    for x in job.loader(torch.ones(8, 3)):
        job.backward(model(x).mean())
        job.step()
    job.close()
    return f"{job.steps} steps"


@pytest.mark.distributed
@pytest.mark.parametrize(("first", "expected"), [(False, "has lazy layers"), (True, "2 steps")])
def test_a_model_that_its_first_batch_makes_is_refused_until_it_is_made(first: bool, expected: str) -> None:
    assert all(expected in said for said in run_workers(2, wrap_lazily, first))
