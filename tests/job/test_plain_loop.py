"""At the base batch on one process a job is the plain loop: the same weights to the last bit, the same schedule."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import swell
from swell.core.events import EpochEnded
from swell.telemetry import read_events

N, BASE, EPOCHS = 70, 16, 2  # the last step of an epoch has 6 samples
STEPS = EPOCHS * -(-N // BASE)


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(N, 12, generator=generator), torch.randint(0, 3, (N,), generator=generator))


def make_model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


class Recipe:
    """A way to train; the two loops below follow it."""

    def __init__(
        self,
        make_optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        make_scheduler: Callable[[Any], Any] | None = None,
        clip: float | None = None,
        amp: bool = False,
        ema: float | None = None,
    ) -> None:
        self.make_optimizer, self.make_scheduler = make_optimizer, make_scheduler
        self.clip, self.amp, self.ema = clip, amp, ema

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.amp):
            return nn.functional.cross_entropy(model(x), y)

    def scaler(self) -> Any:
        return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3) if self.amp else None


def move_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    with torch.no_grad():
        for mean, now in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(now, 1 - decay)


def everything(model: nn.Module, average: nn.Module, rates: list[float]) -> list[Tensor]:
    states = [*model.state_dict().values(), *average.state_dict().values(), torch.tensor(rates)]
    return [state.clone() for state in states]


def plain(recipe: Recipe) -> list[Tensor]:
    model = make_model()
    average, optimizer, rates = copy.deepcopy(model), recipe.make_optimizer(model.parameters()), []
    scheduler = recipe.make_scheduler(optimizer) if recipe.make_scheduler else None
    scaler = recipe.scaler()
    for _ in range(EPOCHS):
        for x, y in DataLoader(make_data(), batch_size=BASE):
            optimizer.zero_grad()
            loss = recipe.loss(model, x, y)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if recipe.clip is not None:
                if scaler is not None:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            rates.append(optimizer.param_groups[0]["lr"])
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if scheduler is not None:
                scheduler.step()
            if recipe.ema is not None:
                move_average(average, model, recipe.ema)
    return everything(model, average, [*rates, optimizer.param_groups[0]["lr"]])


def in_a_job(recipe: Recipe, *, until: bool = False) -> list[Tensor]:
    model = make_model()
    average, optimizer, rates = copy.deepcopy(model), recipe.make_optimizer(model.parameters()), []
    scheduler = recipe.make_scheduler(optimizer) if recipe.make_scheduler else None
    job = swell.Job(batch=BASE)
    model, optimizer = job.wrap(model, optimizer, scheduler=scheduler, scaler=recipe.scaler())
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    loader = job.loader(make_data())
    for _ in job.until(epochs=EPOCHS) if until else job.epochs(EPOCHS):
        for x, y in loader:
            job.backward(recipe.loss(model, x, y))
            if job.step(clip=recipe.clip) and recipe.ema is not None:
                move_average(average, model, recipe.ema**job.ema_power)
            assert (job.gain, set(job.lr_factors), job.ema_power) == (1.0, {1.0}, 1.0)
    assert (job.steps, job.progress, job.samples) == (STEPS, float(STEPS), EPOCHS * N)
    job.close()
    return everything(model, average, [*rates, optimizer.param_groups[0]["lr"]])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


RECIPES = {
    "SGD": Recipe(sgd),
    "AdamW with a schedule": Recipe(adamw, make_scheduler=lambda o: CosineAnnealingLR(o, STEPS)),
    "a schedule with an end": Recipe(sgd, make_scheduler=lambda o: OneCycleLR(o, 0.2, total_steps=STEPS + 1)),
    "clipping": Recipe(sgd, clip=0.1),
    "mixed precision": Recipe(adamw, amp=True),
    "mixed precision with clipping": Recipe(sgd, amp=True, clip=0.1),
    "a model average": Recipe(adamw, ema=0.9),
    "all of it": Recipe(adamw, make_scheduler=lambda o: CosineAnnealingLR(o, STEPS), clip=0.5, amp=True, ema=0.95),
}


@pytest.mark.parametrize("until", [False, True], ids=["epochs", "until"])
@pytest.mark.parametrize("name", RECIPES)
def test_at_the_base_batch_a_job_is_the_plain_loop_bit_for_bit(name: str, until: bool) -> None:
    ours, theirs = in_a_job(RECIPES[name], until=until), plain(RECIPES[name])
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("batch", "micro"), [(16, 4), (32, 16), (64, 64), (5, 5), (24, 8)])
def test_a_schedule_of_whole_base_steps_comes_to_its_end_at_any_batch(batch: int, micro: int) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = swell.Job(batch=batch, base=BASE, micro=micro, rule="linear")
    job.wrap(model, optimizer, scheduler=CosineAnnealingLR(optimizer, STEPS))
    loader = job.loader(make_data(), shuffle=True)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            job.backward(nn.functional.cross_entropy(model(x), y))
            job.step()
    assert job.progress == pytest.approx(STEPS, rel=1e-12)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("batch", [16, 32, 5])
def test_until_epochs_reads_the_epochs_that_a_plain_loop_reads(batch: int) -> None:
    model = make_model()
    job = swell.Job(batch=batch, base=BASE, rule="linear")
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(make_data())
    for _ in job.until(epochs=3):
        for x, y in loader:
            job.backward(nn.functional.cross_entropy(model(x), y))
            job.step()
    assert (job.samples, job.progress) == (3 * N, pytest.approx(15))


def test_where_the_short_step_is_dropped_the_plain_loop_drops_it_too(tmp_path: Path) -> None:
    model = make_model()
    job = swell.Job(tmp_path, batch=BASE)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(make_data(), drop_last=True)
    assert len(loader) == len(DataLoader(make_data(), batch_size=BASE, drop_last=True)) == 4
    for _ in job.until(epochs=2):
        for x, y in loader:
            job.backward(nn.functional.cross_entropy(model(x), y))
            job.step()
    assert (job.steps, job.progress, job.samples) == (8, 8.0, 8 * BASE)
    job.close()
    first, _ = (event for event in read_events(tmp_path / "events.jsonl") if isinstance(event, EpochEnded))
    assert (first.complete, first.samples, first.dropped) == (True, 4 * BASE, N - 4 * BASE)


# What is measured


def trained_once(**settings: Any) -> swell.Job:
    model = make_model()
    job = swell.Job(**settings)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for x, y in job.loader(make_data()):
        job.backward(nn.functional.cross_entropy(model(x), y))
        job.step()
    return job


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        ({"batch": BASE}, False),
        ({"batch": BASE, "micro": 4}, False),
        ({"batch": BASE, "rule": lambda scale: scale}, False),
        ({"batch": BASE, "rule": lambda state: 1.0}, True),
        ({"batch": BASE, "statistics": True}, True),
        ({"batch": BASE, "statistics": swell.Statistics()}, True),
        ({"batch": BASE, "statistics": 1}, True),
        ({"batch": 2 * BASE, "base": BASE}, True),
        ({"batch": swell.Ramp(BASE, 2 * BASE, over=1, unit="epochs")}, True),
        ({"batch": 2 * BASE, "base": BASE, "statistics": False}, False),
    ],
)
def test_noise_is_measured_where_somebody_uses_it_or_asks_for_it(settings: dict[str, Any], measured: bool) -> None:
    job = trained_once(**settings)
    assert (job.engine.state.noise is not None) == measured


def test_reading_noise_that_nobody_asked_for_says_how_to_measure_it() -> None:
    job = trained_once(batch=BASE)
    with pytest.warns(UserWarning, match="statistics=True"):
        assert job.noise is None
    assert trained_once(batch=BASE, statistics=False).noise is None  # as the script says
