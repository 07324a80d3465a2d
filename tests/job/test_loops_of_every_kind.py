"""Loops beyond the plain one: token weights, several losses or optimizers, closures, mixed precision, clipping."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import swell
from tests.job.scenario import Points, largest_relative_error, make_model, mean_loss
from tests.workers import run_workers

WORLDS = [1, 2, 3]


def gradients_of(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """A list that receives every gradient the optimizer is stepped with."""
    seen: list[list[Tensor]] = []

    def note(inner: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        grads = [p.grad for group in inner.param_groups for p in group["params"]]
        seen.append([g.clone() for g in grads if g is not None])

    optimizer.register_step_pre_hook(note)
    return seen


def data_of(points: Points, rows: slice) -> tuple[Tensor, Tensor]:
    return points.x[rows], points.y[rows]


# Weights other than samples


def token_loss(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    """A mean over tokens: row i counts for lengths[i] of them."""
    per_row = model(x).squeeze(-1) ** 2
    return (per_row * lengths).sum() / lengths.sum()


def train_by_tokens(collective: Any) -> list[list[Tensor]]:
    points, lengths = Points(23), torch.arange(1, 24, dtype=torch.float64)
    job = swell.Job(batch=8, micro=2, rule="constant")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    job.wrap(model, optimizer)
    seen = gradients_of(optimizer)
    loader = job.loader(TensorDataset(points.x, lengths))
    for _ in job.epochs(1):
        for x, tokens in loader:
            job.backward(token_loss(model, x, tokens), weight=tokens.sum())
            job.step()
    return seen


@pytest.mark.distributed
@pytest.mark.parametrize("world", WORLDS)
def test_token_weights_give_the_mean_over_all_tokens_not_a_mean_of_means(world: int) -> None:
    points, lengths = Points(23), torch.arange(1, 24, dtype=torch.float64)
    for seen in run_workers(world, train_by_tokens):
        for step, mine in enumerate(seen):
            model = make_model()
            rows = slice(8 * step, min(8 * step + 8, 23))
            token_loss(model, points.x[rows], lengths[rows]).backward()
            alone = [p.grad for p in model.parameters() if p.grad is not None]
            assert largest_relative_error(mine, alone) < 1e-12


def test_weights_on_some_micro_batches_only_are_refused() -> None:
    job = swell.Job(batch=4, micro=2)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(swell.errors.ConfigError, match=r"to every job\.backward call"):
        for number, (x, y, _) in enumerate(job.loader(Points(8))):
            job.backward(mean_loss(model, x, y), weight=3.0 if number == 0 else None)
            job.step()


# Several losses, several optimizers


def train_two_losses(collective: Any) -> list[list[Tensor]]:
    job = swell.Job(batch=8, micro=3, rule="constant")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    job.wrap(model, optimizer)
    seen = gradients_of(optimizer)
    loader = job.loader(Points(20))
    for _ in job.epochs(1):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.backward((model(x) ** 4).mean())
            job.step()
    return seen


@pytest.mark.distributed
@pytest.mark.parametrize("world", WORLDS)
def test_two_backward_passes_add_their_gradients_and_halve_nothing(world: int) -> None:
    points = Points(20)
    for seen in run_workers(world, train_two_losses):
        for step, mine in enumerate(seen):
            model = make_model()
            x, y = data_of(points, slice(8 * step, min(8 * step + 8, 20)))
            (mean_loss(model, x, y) + (model(x) ** 4).mean()).backward()
            assert largest_relative_error(mine, [p.grad for p in model.parameters() if p.grad is not None]) < 1e-12


def train_gan(collective: Any, micro: int, first: str) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    points = Points(16)
    job = swell.Job(batch=8, micro=micro, rule="constant")
    critic, maker = make_model(seed=1), nn.Linear(6, 6, dtype=torch.float64)
    with torch.no_grad():
        maker.weight.copy_(torch.eye(6, dtype=torch.float64))
        maker.bias.fill_(0.1)
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.0)
    maker_optimizer = torch.optim.SGD(maker.parameters(), lr=0.0)
    pairs = {"critic": (critic, critic_optimizer), "maker": (maker, maker_optimizer)}
    for name in sorted(pairs, key=lambda name: name != first):
        job.wrap(*pairs[name])
    seen = gradients_of(critic_optimizer), gradients_of(maker_optimizer)
    loader = job.loader(points)
    for _ in job.epochs(1):
        for x, _, _ in loader:
            fake = maker(x)
            job.backward((1 - critic(x)).square().mean(), optimizer=critic_optimizer)
            job.backward(critic(fake.detach()).square().mean(), optimizer=critic_optimizer)
            job.step(optimizer=critic_optimizer)
            job.backward((1 - critic(fake)).square().mean(), optimizer=maker_optimizer)
            job.step(optimizer=maker_optimizer)
    assert job.samples == 16
    return seen


@pytest.mark.distributed
@pytest.mark.parametrize("first", ["critic", "maker"])
@pytest.mark.parametrize(("world", "micro"), [(1, 8), (1, 3), (2, 2), (2, 4), (3, 8)])
def test_a_gan_gets_both_gradients_whole_whichever_optimizer_is_wrapped_first(
    world: int, micro: int, first: str
) -> None:
    points = Points(16)
    for critic_seen, maker_seen in run_workers(world, train_gan, micro, first):
        assert len(critic_seen) == len(maker_seen) == 2
        for step in range(2):
            x, _ = data_of(points, slice(8 * step, 8 * step + 8))
            critic = make_model(seed=1)
            maker = nn.Linear(6, 6, dtype=torch.float64)
            with torch.no_grad():
                maker.weight.copy_(torch.eye(6, dtype=torch.float64))
                maker.bias.fill_(0.1)
            fake = maker(x)
            loss = (1 - critic(x)).square().mean() + critic(fake.detach()).square().mean()
            alone = torch.autograd.grad(loss, list(critic.parameters()))
            assert largest_relative_error(critic_seen[step], alone) < 1e-12
            alone = torch.autograd.grad((1 - critic(fake)).square().mean(), list(maker.parameters()))
            assert largest_relative_error(maker_seen[step], alone) < 1e-12


@pytest.mark.parametrize(("order", "progress", "factor"), [((0, 1), 4.0, 2.0), ((1, 0), 4.0, 2.0), ((1,), 2.0, 1.0)])
def test_a_step_of_several_optimizers_is_worth_what_it_is_for_the_first_that_moves(
    order: tuple[int, ...], progress: float, factor: float
) -> None:
    job = swell.Job(batch=8, base=4, micro=8, statistics=False)
    models = [make_model(seed=1), make_model(seed=2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    for model, optimizer, rule in zip(models, optimizers, ("linear", "constant"), strict=True):
        job.wrap(model, optimizer, rule=rule)
    for x, y, _ in job.loader(Points(16)):
        for number in order:
            job.backward(mean_loss(models[number], x, y), optimizer=optimizers[number])
            job.step(optimizer=optimizers[number])
    assert (job.steps, job.progress, job.lr_factors) == (2, progress, (factor,))


# Closures


def train_lbfgs(collective: Any, micro: int) -> list[Tensor]:
    job = swell.Job(batch=12, micro=micro, rule="constant")
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    job.wrap(model, optimizer)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        loss = mean_loss(model, x, y)
        job.backward(loss)
        return loss

    loader = job.loader(Points(24))
    for _ in job.epochs(1):
        for x, y, _ in loader:
            job.step(closure, x, y)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "micro"), [(1, 12), (1, 5), (2, 4), (3, 4)])
def test_lbfgs_by_closure_is_what_one_process_computes(world: int, micro: int) -> None:
    points, model = Points(24), make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    for step in range(2):
        x, y = data_of(points, slice(12 * step, 12 * step + 12))

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = mean_loss(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
    for weights in run_workers(world, train_lbfgs, micro):
        assert largest_relative_error(weights, [p.detach() for p in model.parameters()]) < 1e-8


class SharpnessAware(torch.optim.SGD):
    """SAM in few lines: climb to the worst neighbour, take the gradient there, step from where it was."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        assert closure is not None
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
        climbs = [0.05 * p.grad / norm for p in parameters if p.grad is not None]
        with torch.no_grad():
            torch._foreach_add_(parameters, climbs)
        loss = closure()
        with torch.no_grad():
            torch._foreach_sub_(parameters, climbs)
        super().step()
        return loss


def train_sam(collective: Any, micro: int) -> list[Tensor]:
    job = swell.Job(batch=12, micro=micro, rule="constant")
    model = make_model()
    optimizer = SharpnessAware(model.parameters(), lr=0.1)
    job.wrap(model, optimizer)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        loss = mean_loss(model, x, y)
        job.backward(loss)
        return loss

    loader = job.loader(Points(24))
    for _ in job.epochs(1):
        for x, y, _ in loader:
            closure(x, y)
            job.step(closure, x, y)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "micro"), [(1, 12), (1, 5), (3, 4)])
def test_sam_by_closure_is_what_one_process_computes(world: int, micro: int) -> None:
    points, model = Points(24), make_model()
    optimizer = SharpnessAware(model.parameters(), lr=0.1)
    for step in range(2):
        x, y = data_of(points, slice(12 * step, 12 * step + 12))

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = mean_loss(model, x, y)
            loss.backward()
            return loss

        closure()
        optimizer.step(closure)
    for weights in run_workers(world, train_sam, micro):
        assert largest_relative_error(weights, [p.detach() for p in model.parameters()]) < 1e-10


# Mixed precision


class Overflowing(nn.Module):
    """A model whose gradient overflows in float16 while the loss scale is above a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(-1)


def test_an_overflow_commits_nothing_moves_no_schedule_and_brings_the_samples_back() -> None:
    job = swell.Job(batch=4, micro=2, rule="constant", seed=1)
    model = Overflowing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=10**6)
    job.wrap(model, optimizer, scheduler=scheduler, scaler=scaler)
    loader = job.loader(TensorDataset(torch.arange(8.0).reshape(8, 1).expand(8, 4)))
    handed_out: list[list[float]] = []
    updates: list[bool] = []
    poisoned = iter([True, True, False] + [False] * 20)
    for _ in job.epochs(1):
        for (x,) in loader:
            handed_out.append(x[:, 0].tolist())
            loss = model(x).mean()
            if next(poisoned):
                loss = loss * 1e36  # finite itself, not so once it is scaled
            job.backward(loss)
            updates.append(job.step())
    assert handed_out[:2] == handed_out[2:4] == [[0.0, 1.0], [2.0, 3.0]]
    assert updates == [False, False, False, True, False, True]
    assert job.steps == 2 and job.samples == 8
    assert scaler.get_scale() == 2.0**7
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)


def test_statistics_under_a_gradient_scaler_are_those_without_it() -> None:
    def noise(scaler: Any) -> tuple[float, float]:
        job = swell.Job(batch=8, micro=2, rule="adascale", statistics=True)
        model = make_model().float()
        job.wrap(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.01), scaler=scaler)
        loader = job.loader(Points(32))
        for _ in job.epochs(1):
            for x, y, _ in loader:
                job.backward(mean_loss(model, x.float(), y.float()))
                job.step()
        assert job.noise is not None and optimizer is not None
        return job.noise.total.signal, job.noise.total.noise

    plain = noise(None)
    assert noise(torch.amp.GradScaler("cpu", init_scale=2.0**12)) == pytest.approx(plain, rel=1e-4)


def test_bfloat16_autocast_trains() -> None:
    job = swell.Job(batch=8, micro=4)
    model = make_model().float()
    job.wrap(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = job.loader(Points(64), shuffle=True)
    losses = []
    for _ in job.epochs(6):
        for x, y, _ in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                prediction = model(x.float()).squeeze(-1)
            loss = F.mse_loss(prediction.float(), y.float())
            job.metrics.mean("loss", loss, weight=len(y))
            job.backward(loss)
            job.step()
        losses.append(job.metrics.results()["loss"])
    assert losses[-1] < losses[0]


# Clipping


def test_statistics_are_taken_before_clipping_and_the_optimizer_sees_the_clipped_gradient() -> None:
    def run(clip: float | None) -> tuple[list[list[Tensor]], float]:
        job = swell.Job(batch=8, micro=2, rule="constant", statistics=True)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        job.wrap(model, optimizer)
        seen = gradients_of(optimizer)
        loader = job.loader(Points(24))
        for _ in job.epochs(1):
            for x, y, _ in loader:
                job.backward(mean_loss(model, x, y))
                job.step(clip=clip)
        assert job.noise is not None
        return seen, job.noise.total.noise_scale

    whole, noise = run(None)
    clipped, noise_clipped = run(1e-3)
    assert noise == noise_clipped
    for a, b in zip(whole, clipped, strict=True):
        assert torch.cat([g.flatten() for g in b]).norm() == pytest.approx(1e-3, rel=1e-4)
        assert (
            largest_relative_error([g / 1e-3 for g in b], [g / torch.cat([h.flatten() for h in a]).norm() for g in a])
            < 1e-3
        )
