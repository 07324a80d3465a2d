"""Habits of plain scripts: what would train something else is refused or told, and what means the same is let be."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, ExponentialLR, SequentialLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, TensorDataset, default_collate

import swell
from swell.errors import ConfigError, LoopError
from swell.job.gradient_watch import THOROUGH, Change, GradientWatch
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers

Body = Callable[[swell.Job, Any, torch.optim.Optimizer, Tensor, Tensor], None]


def go(body: Body, *, n: int = 16, model: Any = None, loading: dict[str, Any] | None = None, **settings: Any) -> Any:
    """One epoch with this body; returns the job and the model."""
    job = swell.Job(**{"batch": 8, "progress": False, **settings})
    model = make_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    job.wrap(model, optimizer)
    for x, y, _ in job.loader(Points(n), **(loading or {})):
        body(job, model, optimizer, x, y)
    return job, model


# Gradients touched between job.backward and job.step


def clip_by_hand(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    job.backward(mean_loss(model, x, y))
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    job.step()


def clip_in_step(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    job.backward(mean_loss(model, x, y))
    job.step(clip=0.1)


def second_loss_by_hand(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    job.backward(mean_loss(model, x, y))
    model(x).square().mean().backward()
    job.step()


def replaced(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    job.backward(mean_loss(model, x, y))
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 2
    job.step()


def cleared(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    job.backward(mean_loss(model, x, y))
    optimizer.zero_grad()
    job.step()


@pytest.mark.parametrize("body", [clip_by_hand, second_loss_by_hand, replaced])
def test_a_gradient_of_a_part_of_the_step_that_was_changed_is_refused(body: Body) -> None:
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(LoopError, match=r"4 of the step's 8 samples.*job\.step\(clip="):
        go(body, model=model, micro=4)
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), before, strict=True))


def clip_on_a_replica(collective: Any) -> str:
    try:
        go(clip_by_hand)
    except LoopError as error:
        return str(error)
    return "nobody noticed"


@pytest.mark.distributed
def test_with_several_replicas_it_is_refused_on_each() -> None:
    assert all("4 of the step's 8 samples" in said for said in run_workers(2, clip_on_a_replica))


def test_where_a_step_is_one_micro_batch_clipping_by_hand_is_clipping_in_the_step() -> None:
    ours, theirs = go(clip_by_hand)[1], go(clip_in_step)[1]
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_where_the_batch_may_change_it_is_told_before_it_is_refused() -> None:
    policy = swell.Schedule([(0, 4), (16, 8)], unit="samples", base=4)
    with pytest.warns(UserWarning, match=r"single micro-batch.*job\.step\(clip="), pytest.raises(LoopError):
        go(clip_by_hand, n=40, batch=policy, micro=4, statistics=False)


@pytest.mark.parametrize("micro", [8, 4])
def test_gradients_that_are_gone_are_missed_at_once(micro: int) -> None:
    with pytest.raises(LoopError, match=rf"{micro} of the step's 8 samples are gone.*zero_grad"):
        go(cleared, micro=micro)


def test_gradients_of_a_large_model_are_watched_in_long_runs_too() -> None:
    """Between two thorough looks some gradients are watched: of those that are there, the first and the last."""
    watch, parameters = GradientWatch(), [nn.Parameter(torch.ones(2)) for _ in range(40)]
    for look in range(3 * THOROUGH):
        for place, parameter in enumerate(parameters):
            parameter.grad = None if place in (0, 39) else torch.ones(2)  # frozen, or not used
        watch.remember(parameters)
        if look % 2:
            assert watch.change() is Change.NONE
            continue
        for parameter in parameters[1:39]:
            if look % 4:
                assert parameter.grad is not None
                parameter.grad.mul_(2)
            else:
                parameter.grad = None
        assert watch.change() is (Change.WRITTEN if look % 4 else Change.GONE), look


def test_gradients_that_are_not_watched_closely_are_watched_now_and_then() -> None:
    watch, parameter = GradientWatch(), nn.Parameter(torch.ones(2))
    parameters, noticed = [parameter], []
    for _ in range(3 * THOROUGH):
        parameter.grad = torch.ones(2)
        watch.remember(parameters, closely=False)
        parameter.grad.mul_(2)
        noticed.append(watch.change() is Change.WRITTEN)
    assert noticed == [look < THOROUGH or look % THOROUGH == 0 for look in range(3 * THOROUGH)]


def with_scaler(body: Callable[[Any, Any, Any, Any, Tensor, Tensor], None], *, micro: int) -> int:
    job, model, scaler = swell.Job(batch=8, micro=micro), make_model(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    job.wrap(model, optimizer, scaler=scaler)
    for x, y, _ in job.loader(Points(32)):
        body(job, scaler, model, optimizer, x, y)
        job.step()
    return job.steps


def unscale_by_hand(job: Any, scaler: Any, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    job.backward(mean_loss(model, x, y))
    scaler.unscale_(optimizer)


def scale_by_hand(job: Any, scaler: Any, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    job.backward(scaler.scale(mean_loss(model, x, y)))


@pytest.mark.parametrize("micro", [8, 4])
def test_a_scaler_that_the_script_uses_too_is_refused(micro: int) -> None:
    with pytest.raises(LoopError, match=r"scaler\.unscale_\(\) was called.*twice.*job\.step\(clip="):
        with_scaler(unscale_by_hand, micro=micro)
    with pytest.raises(LoopError, match=r"was scaled by the script.*job\.backward\(loss\) without scaler\.scale"):
        with_scaler(scale_by_hand, micro=micro)
    plainly = lambda job, scaler, model, optimizer, x, y: job.backward(mean_loss(model, x, y))  # noqa: E731
    assert with_scaler(plainly, micro=micro) == 4


def test_gradients_cleared_in_one_micro_batch_of_many_are_missed_too() -> None:
    number = iter(range(99))

    def body(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        (cleared if next(number) == 2 else clip_in_step)(job, model, optimizer, x, y)

    with pytest.raises(LoopError, match="zero_grad"):
        go(body, n=32, batch=16, micro=4)


def test_gradients_of_some_layers_may_be_left_out() -> None:
    """As scripts do that freeze a layer for a while: it means the same for every part of a sum."""

    def body(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        job.backward(mean_loss(model, x, y))
        model[0].weight.grad = None
        job.step()

    model = make_model()
    first, last = model[0].weight.detach().clone(), model[2].weight.detach().clone()  # type: ignore[index]
    go(body, model=model, micro=4)
    assert torch.equal(model[0].weight, first) and not torch.equal(model[2].weight, last)  # type: ignore[index]


def test_gradients_of_the_first_and_the_last_layer_may_be_left_out_late_in_a_run() -> None:
    """Then only these are looked at; that they are gone says nothing of the others."""

    def body(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        job.backward(mean_loss(model, x, y))
        if job.steps > 70:
            model[0].weight.grad = model[2].bias.grad = None
        job.step()

    assert go(body, n=400, batch=4)[0].steps == 100


def test_what_is_right_is_let_be() -> None:
    def body(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        job.backward(mean_loss(model, x, y), retain_graph=True)
        job.backward(model(x).square().mean())
        job.step(clip=lambda parameters: nn.utils.clip_grad_value_(parameters, 1.0))
        optimizer.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert go(body, micro=4)[0].steps == 2


def test_gradients_of_the_loss_itself_may_be_given_whatever_the_micro_batch() -> None:
    def body(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        loss = mean_loss(model, x, y)
        job.backward(loss, grad_tensors=torch.full_like(loss, 2.0))
        job.step()

    def twice(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        job.backward(2 * mean_loss(model, x, y))
        job.step()

    for micro in (8, 4, 2):
        (_, given), (_, expected) = go(body, micro=micro), go(twice, micro=micro)
        for one, other in zip(given.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=0.0)


def test_a_habit_that_begins_late_is_noticed_in_a_model_of_many_parameters() -> None:
    model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(20)], nn.Linear(6, 1)).double()
    number = iter(range(9999))

    def body(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        (clip_by_hand if next(number) == 150 else clip_in_step)(job, model, optimizer, x, y)

    with pytest.raises(LoopError, match="was changed between"):
        go(body, n=400, model=model, batch=4, micro=2)


# Losses


def told(body: Body, **settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        go(body, **settings)
    assert all(Path(warning.filename).name == Path(__file__).name for warning in caught)
    return [str(warning.message) for warning in caught]


def with_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> Body:
    def body(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        job.backward(loss(model(x).squeeze(-1), y))
        job.step()

    return body


@pytest.mark.parametrize(
    ("loss", "micro"),
    [
        (lambda out, y: F.mse_loss(out, y) / 2, 4),
        (lambda out, y: F.mse_loss(out, y) * 0.25, 2),
        (lambda out, y: F.mse_loss(out, y) / 4, 8),  # the accumulation is gone, the division was left
        (lambda out, y: (out - y).square().mean() / 4, 2),
    ],
)
def test_a_mean_loss_divided_by_hand_is_told_once(loss: Any, micro: int) -> None:
    (message,) = told(with_loss(loss), micro=micro, n=64)
    assert "divided by" in message and "remove it" in message


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.mse_loss(out, y, reduction="sum"),
        lambda out, y: (out - y).square().sum(),
        lambda out, y: F.mse_loss(out, y, reduction="sum") - 0.5 * torch.sum(1 + out),  # a variational autoencoder's
        lambda out, y: F.binary_cross_entropy_with_logits(out, y.sigmoid(), reduction="sum"),
    ],
)
def test_a_loss_that_is_a_sum_is_told_where_steps_may_be_cut(loss: Any) -> None:
    (message,) = told(with_loss(loss), micro=4)
    assert "sum over the micro-batch's 4 samples" in message and "job.backward(loss * (8 / len(x)))" in message
    assert told(with_loss(loss), micro=8) == []  # there it is what the plain loop does


def test_the_remedy_for_sums_gives_the_step_of_the_plain_loop() -> None:
    def remedied(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        job.backward(F.mse_loss(model(x).squeeze(-1), y, reduction="sum") * (8 / len(x)))
        job.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = go(with_loss(lambda out, y: F.mse_loss(out, y, reduction="sum")), micro=8)[1]
        cut = go(remedied, micro=2)[1]
    for one, other in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.mse_loss(out, y),
        lambda out, y: 0.5 * F.mse_loss(out, y),
        lambda out, y: F.mse_loss(out, y, reduction="sum") / len(y),
        lambda out, y: (out - y).square().sum() * (1 / len(y)),
        lambda out, y: F.mse_loss(out, y) + 1e-3 * out.square().sum(),
        lambda out, y: (F.mse_loss(out, y) + F.l1_loss(out, y)) / 2,
        lambda out, y: torch.stack([F.mse_loss(out, y), F.l1_loss(out, y)]).sum(),
        lambda out, y: F.mse_loss(out, y, reduction="none").mean(),
    ],
)
def test_losses_that_are_means_are_let_be(loss: Any) -> None:
    assert told(with_loss(loss), micro=4, n=64) == []


# Evaluation mode


def plainly(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    job.backward(mean_loss(model, x, y))
    job.step()


def test_a_model_left_in_evaluation_mode_is_told_once() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double().eval()
    (message,) = told(plainly, model=model, n=64)
    assert "model.train()" in message


def test_evaluation_mode_is_let_be_where_it_means_nothing() -> None:
    assert told(plainly, model=make_model().eval()) == []
    frozen = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)).double()
    frozen[0].eval()  # the model itself is training: as who freezes batch norm does
    assert told(plainly, model=frozen) == []


# Schedulers


@pytest.mark.parametrize("kind", ["chained", "sequential", "chained, by its part"])
def test_a_scheduler_of_schedulers_that_the_script_steps_too_is_refused(kind: str) -> None:
    job, model = swell.Job(batch=8), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parts = [ConstantLR(optimizer, 0.5, total_iters=3), ExponentialLR(optimizer, 0.9)]
    scheduler: Any = SequentialLR(optimizer, parts, [2]) if kind == "sequential" else ChainedScheduler(parts)
    job.wrap(model, optimizer, scheduler=scheduler)
    with pytest.raises(LoopError, match=r"scheduler\.step\(\) was called by the script too"):
        for x, y, _ in job.loader(Points(64)):
            job.backward(mean_loss(model, x, y))
            job.step()
            (parts[1] if kind == "chained, by its part" else scheduler).step()
    assert job.steps <= 2


@pytest.mark.parametrize("kind", ["chained", "sequential"])
def test_a_scheduler_of_schedulers_moves_as_in_the_plain_loop(kind: str) -> None:
    def make() -> tuple[Any, Any, Any]:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        parts = [ConstantLR(optimizer, 0.5, total_iters=3), ExponentialLR(optimizer, 0.9)]
        made: Any = SequentialLR(optimizer, parts, [2]) if kind == "sequential" else ChainedScheduler(parts)
        return model, optimizer, made

    model, optimizer, scheduler = make()
    job = swell.Job(batch=8)
    job.wrap(model, optimizer, scheduler=scheduler)
    rates = []
    for x, y, _ in job.loader(Points(36)):
        job.backward(mean_loss(model, x, y))
        job.step()
        rates.append(optimizer.param_groups[0]["lr"])
    _, optimizer, scheduler = make()
    expected = []
    for _ in range(5):
        optimizer.step()
        scheduler.step()
        expected.append(optimizer.param_groups[0]["lr"])
    assert rates == expected


# Data


class Theirs(Sampler):
    """A distributed sampler that is none of torch's."""

    def __init__(self, n: int) -> None:
        self.n, self.num_replicas, self.rank = n, 2, 0

    def __iter__(self) -> Any:
        return iter(range(self.rank, self.n, self.num_replicas))

    def __len__(self) -> int:
        return self.n // 2


@pytest.mark.parametrize("make", [Theirs, lambda n: DistributedSampler(Points(n), num_replicas=2, rank=0)])
def test_a_sampler_that_splits_the_data_itself_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"[dD]istributed.*shuffle=True"):
        swell.Job(batch=8).loader(Points(16), sampler=make(16))


def test_a_data_loader_with_such_a_sampler_is_refused_with_what_to_do() -> None:
    points = Points(16)
    loader = DataLoader(points, batch_size=4, sampler=DistributedSampler(points, num_replicas=2, rank=0))
    with pytest.raises(ConfigError, match=r"DistributedSampler.*loader\.dataset.*without the sampler"):
        swell.Job(batch=8).loader(loader)


@pytest.mark.parametrize("data", [(torch.zeros(50, 6), torch.zeros(50)), [torch.zeros(50, 6), torch.zeros(49).long()]])
def test_tensors_that_are_no_samples_are_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match=r"TensorDataset\(x, y\)"):
        swell.Job(batch=1).loader(data)


def test_tensors_of_another_length_than_the_data_set_are_refused() -> None:
    data = TensorDataset(torch.zeros(50, 6), torch.zeros(50))
    data.tensors = (data.tensors[0], torch.zeros(49))
    with pytest.raises(ConfigError, match=r"\[50, 49\] rows"):
        swell.Job(batch=8).loader(data)


def without_some(samples: list[Any]) -> Any:
    """A ``collate_fn`` that leaves out damaged samples, as many do."""
    return default_collate([sample for sample in samples if sample[2] != 5])


def test_a_batch_that_lacks_samples_is_refused_unless_the_script_weighs_it() -> None:
    with pytest.raises(LoopError, match=r"has 7 rows; expected 8.*weight="):
        go(plainly, loading={"collate_fn": without_some})

    def weighed(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        job.backward(mean_loss(model, x, y), weight=len(y))
        job.step()

    ours = go(weighed, micro=4, loading={"collate_fn": without_some})[1]
    theirs, points = make_model(), Points(16)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05)
    for rows in ([0, 1, 2, 3, 4, 6, 7], list(range(8, 16))):
        optimizer.zero_grad()
        mean_loss(theirs, points.x[rows], points.y[rows]).backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


class Doubled(Points):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in [*indices, *indices]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_gives_more_than_was_asked_for_is_refused(workers: int) -> None:
    job, model = swell.Job(batch=8, progress=False), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    with pytest.raises(LoopError, match=r"has 16 rows; expected 8"):
        for x, y, _ in job.loader(Doubled(16), num_workers=workers):
            plainly(job, model, None, x, y)
    job.close()


class Views(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3, 6), float(index), dtype=torch.float64)


@pytest.mark.parametrize(
    "collate",
    [
        lambda samples: torch.cat(samples),  # several rows a sample
        lambda samples: torch.stack(samples, dim=1),  # time first
        lambda samples: torch.cat(samples).reshape(1, -1, 6),  # all in one row
        lambda samples: {"x": torch.stack(samples), "mean": torch.zeros(())},
    ],
)
def test_batches_of_other_shapes_are_let_be(collate: Any) -> None:
    job, model = swell.Job(batch=8), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for batch in job.loader(Views(), collate_fn=collate):
        job.backward(model(batch["x"] if isinstance(batch, dict) else batch).mean())
        job.step()
    assert job.samples == 16


# Means over samples


@pytest.mark.parametrize(("batch", "micro"), [(16, 16), (16, 3), (7, 4), (30, 11)])
def test_a_mean_counts_samples_whatever_the_layout(batch: int, micro: int) -> None:
    job, model = swell.Job(batch=batch, micro=micro, progress=False), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    points = Points(37)
    loader = job.loader(points, shuffle=True)
    for _ in job.epochs(1):
        for x, y, _ in loader:
            loss = mean_loss(model, x, y)
            job.metrics.mean("before", loss)
            job.backward(loss)
            job.step()
            job.metrics.mean("after", loss)
    whole = mean_loss(model, points.x, points.y).item()
    results = job.metrics.results()
    assert results == {"before": pytest.approx(whole), "after": pytest.approx(whole)}
    with torch.no_grad():
        for x, y, _ in job.evaluation(points, batch_size=8):
            job.metrics.mean("loss", mean_loss(model, x, y))
            job.metrics.mean("plain", 1.0, weight=2)
    assert job.metrics.results()["loss"] == pytest.approx(whole)


def mean_on_replicas(collective: Any) -> dict[str, float]:
    def body(job: swell.Job, model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        loss = mean_loss(model, x, y)
        job.metrics.mean("loss", loss)
        job.backward(loss * 0)
        job.step()

    job, model = go(body, n=19, micro=3)
    results = job.metrics.results()
    with torch.no_grad():
        for x, y, _ in job.evaluation(Points(19), batch_size=4):
            job.metrics.mean("evaluated", mean_loss(model, x, y))
    return {**results, **job.metrics.results()}


@pytest.mark.distributed
def test_a_mean_counts_samples_of_all_replicas() -> None:
    whole = mean_loss(make_model(), Points(19).x, Points(19).y).item()
    for found in run_workers(2, mean_on_replicas):
        assert found == {"loss": pytest.approx(whole), "evaluated": pytest.approx(whole)}


# Optimizers that rest


@pytest.mark.parametrize("by", ["steps", "micro-batches"])
def test_an_optimizer_that_gets_a_part_of_a_step_is_told_and_takes_nothing_of_it_along(by: str) -> None:
    critic, maker = make_model(seed=1), make_model(seed=2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in (critic, maker)]
    seen: list[Tensor] = []
    first = next(maker.parameters())
    optimizers[1].register_step_pre_hook(lambda *_: seen.append(torch.clone(first.grad)))  # type: ignore[arg-type]
    job, points = swell.Job(batch=8, micro=4, progress=False), Points(24)
    for model, optimizer in zip((critic, maker), optimizers, strict=True):
        job.wrap(model, optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, (x, y, _) in enumerate(job.loader(points)):
            job.backward(mean_loss(critic, x, y), optimizer=optimizers[0])
            job.step(optimizer=optimizers[0])
            if job.steps % 2 == 0 if by == "steps" else number in (0, 2, 3):
                job.backward(mean_loss(maker, x, y), optimizer=optimizers[1])
                job.step(optimizer=optimizers[1])
    told = [
        str(each.message) for each in caught if "named an optimizer in 1 of the step's 2 micro-batches" in str(each)
    ]
    assert len(told) == (by == "micro-batches")
    for gradient, start in zip(seen, (0, 16) if by == "steps" else (8,), strict=True):
        rows = slice(start, start + 8)
        (alone, *_) = torch.autograd.grad(mean_loss(maker, points.x[rows], points.y[rows]), list(maker.parameters()))
        torch.testing.assert_close(gradient, alone)


def critic_and_maker(collective: Any, first_count: str) -> list[Tensor]:
    """The critic learns in every step, the maker in every second one; the last step of each epoch is short."""
    critic, maker = make_model(seed=1), make_model(seed=2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (critic, maker)]
    job = swell.Job(batch=8, progress=False, statistics=False)
    for model, optimizer in zip((critic, maker), optimizers, strict=True):
        job.wrap(model, optimizer)
    loader, count = job.loader(Points(21)), job.rank if first_count == "rank" else 0
    for _ in job.epochs(3):
        for x, y, _ in loader:
            job.backward(mean_loss(critic, x, y), optimizer=optimizers[0])
            job.step(optimizer=optimizers[0])
            if (count if first_count == "rank" else job.steps) % 2 == 0:
                job.backward(mean_loss(maker, x, y), optimizer=optimizers[1])
                job.step(optimizer=optimizers[1], clip=0.5)
            count += 1
    assert (job.steps, job.samples) == (9, 63)
    return [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (critic, maker)]


@pytest.mark.distributed
@pytest.mark.parametrize("replicas", [2, 3, 7])
def test_replicas_without_samples_let_an_optimizer_rest_as_the_others_do(replicas: int) -> None:
    alone = critic_and_maker(None, "steps")
    for found in run_workers(replicas, critic_and_maker, "steps"):
        torch.testing.assert_close(found, alone)


@pytest.mark.distributed
def test_replicas_that_let_an_optimizer_rest_by_counts_of_their_own_are_told() -> None:
    with pytest.raises(Exception, match=r"which optimizer steps \(rank 0: 1, rank 1: none.*job\.steps; a count"):
        run_workers(2, critic_and_maker, "rank")
