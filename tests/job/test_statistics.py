"""Gradient statistics equal those of a twin that keeps every micro-gradient, on every kind of loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import swell
from swell.core.types import NoiseEstimate, Observation
from swell.policies import Dwell
from tests.job.scenario import Points, Poison, make_model, mean_loss
from tests.reference.gradient_statistics import flat, signal_and_noise
from tests.workers import run_workers

SGD = "SGD"


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    first, *_, last = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return [{"params": list(first.parameters())}, {"params": list(last.parameters()), "lr": 0.02}]


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    groups = two_groups(model)
    return torch.optim.SGD(groups, lr=0.01) if name == SGD else torch.optim.Adam(groups, lr=0.01)


def measure(collective: Any, name: str, steps: int, settings: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Train; after every step what the job says, which micro-batches there were, and the weights before the step."""
    job = swell.Job(batch=13, rule="adascale" if name == SGD else "adamscale", **{"statistics": True, **settings})
    model = make_model()
    optimizer = make_optimizer(name, model)
    job.wrap(model, optimizer)
    loader = job.loader(Points(13 * steps), shuffle=True)
    seen: list[tuple[Any, ...]] = []
    mine: list[list[int]] = []
    weights = [p.detach().clone() for p in model.parameters()]
    seconds: list[Tensor] = []
    for _ in job.epochs(1):
        for x, y, index in loader:
            mine.append(index.tolist())
            job.backward(mean_loss(model, x, y))
            if job.step():
                noise = job.engine.state.learners[0].noise
                seen.append((noise.plain.estimate(), noise.metric.estimate(), mine, weights, seconds))
                mine, weights = [], [p.detach().clone() for p in model.parameters()]
                seconds = second_moments(optimizer, model)
    return seen


def second_moments(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[Tensor]:
    """sqrt(v) + eps with v bias-corrected, where the optimizer keeps one."""
    result = []
    for p in model.parameters():
        state = optimizer.state[p]
        if "exp_avg_sq" in state:
            corrected = state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))
            result.append(corrected.sqrt() + 1e-8)
    return result


def gradients_at(weights: list[Tensor], points: Points, rows: list[int]) -> list[Tensor]:
    model = make_model()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    index = torch.tensor(rows)
    return list(torch.autograd.grad(mean_loss(model, points.x[index], points.y[index]), list(model.parameters())))


def expected(
    replicas: list[list[tuple[Any, ...]]], step: int, points: Points, part: slice, *, metric: bool
) -> tuple[float, float]:
    micro_batches = [rows for seen in replicas for rows in seen[step][2]]
    weights, seconds = replicas[0][step][3], replicas[0][step][4]
    vectors = []
    for rows in micro_batches:
        gradients = gradients_at(weights, points, rows)
        if metric:
            gradients = [g / s for g, s in zip(gradients, seconds, strict=True)]
        vectors.append(flat(gradients[part]))
    return signal_and_noise(vectors, [len(rows) for rows in micro_batches], batch=13)


def check_first(replicas: list[list[tuple[Any, ...]]], steps: int) -> None:
    """The estimate after the first measured step is that step's raw figure."""
    points = Points(13 * steps)
    for seen in replicas:
        estimate: NoiseEstimate = seen[0][0]
        for group, part in enumerate((slice(0, 2), slice(2, 4))):
            signal, noise = expected(replicas, 0, points, part, metric=False)
            assert estimate.groups[group].signal == pytest.approx(signal, rel=1e-10)
            assert estimate.groups[group].noise == pytest.approx(noise, rel=1e-10)
        signal, noise = expected(replicas, 0, points, slice(0, 4), metric=False)
        assert (estimate.total.signal, estimate.total.noise) == pytest.approx((signal, noise), rel=1e-10)


@pytest.mark.parametrize("micro", [2, 3, 5, 12])
def test_accumulation_with_uneven_micro_batches_agrees_with_the_twin(micro: int) -> None:
    check_first([measure(None, SGD, 3, {"micro": micro})], 3)


def test_one_replica_with_one_micro_batch_splits_its_step_in_two() -> None:
    seen = measure(None, SGD, 3, {"micro": 13})
    assert [len(rows) for rows in seen[0][2]] == [7, 6]
    assert [len(rows) for rows in seen[1][2]] == [13]
    check_first([seen], 3)


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "micro"), [(2, 13), (2, 3), (3, 4), (5, 2)])
def test_replicas_with_and_without_accumulation_agree_with_the_twin(world: int, micro: int) -> None:
    check_first(run_workers(world, measure, SGD, 3, {"micro": micro}), 3)


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "micro"), [(1, 3), (2, 4)])
def test_moments_in_adams_metric_use_the_second_moment_of_the_step_before(world: int, micro: int) -> None:
    steps = 8
    settings = {"micro": micro, "statistics": swell.Statistics(budget=None)}
    replicas = run_workers(world, measure, "Adam", steps, settings)
    points = Points(13 * steps)
    first = next(i for i, seen in enumerate(replicas[0]) if seen[1] is not None)
    assert first == 5  # the second moment needs a few steps before it says anything
    for seen in replicas:
        signal, noise = expected(replicas, first, points, slice(0, 4), metric=True)
        assert (seen[first][1].total.signal, seen[first][1].total.noise) == pytest.approx((signal, noise), rel=1e-8)


class Waiting:
    """A policy that would act on the noise if it were sure."""

    base = 4

    def __init__(self, *, follows_noise: bool) -> None:
        self.follows_noise = follows_noise

    def batch(self, seen: Observation) -> int:
        return 4


@pytest.mark.parametrize(("micro", "often", "seldom"), [(4, 10, 2), (2, 20, 5)])
def test_more_steps_are_measured_while_a_policy_waits_for_a_sure_estimate(micro: int, often: int, seldom: int) -> None:
    points, model = Points(4 * 480), make_model()
    with torch.no_grad():  # nothing is left to learn: all that is seen is noise
        points.y = model(points.x).squeeze(-1) + points.y
    waits, heedless = Waiting(follows_noise=True), Waiting(follows_noise=False)
    for policy, expected in ((waits, often), (Dwell(waits, samples=9), often), (heedless, seldom)):
        measured: list[int] = []
        job = swell.Job(batch=policy, micro=micro, rule="constant", statistics=swell.Statistics(budget=None))
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
        for x, y, _ in job.loader(points):
            job.backward(mean_loss(model, x, y))
            before = 0 if job.noise is None else job.noise.observations
            if job.step() and job.noise is not None and job.noise.observations > before:
                measured.append(job.steps - 1)
        assert job.noise is not None and not job.noise.sure
        assert len([step for step in measured if 400 <= step < 480]) == expected
        job.close()


def test_thinned_statistics_cover_the_samples_in_between() -> None:
    job = swell.Job(batch=2, micro=1, statistics=swell.Statistics(every=3, budget=None), rule="adascale")
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Points(2 * 109))
    for _ in job.epochs(1):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    assert job.noise is not None and job.noise.observations == 103  # all of the first hundred, then 102, 105 and 108


def test_measuring_that_costs_too_much_thins_itself() -> None:
    """One step of a tiny model takes far longer where it is split in two, so few of the first hundred are."""
    observations = []
    for budget in (0.02, None):
        job = swell.Job(batch=4, rule="constant", statistics=swell.Statistics(split_every=2, budget=budget))
        model = make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
        for x, y, _ in job.loader(Points(400)):
            job.backward(mean_loss(model, x, y))
            job.step()
        assert job.noise is not None
        observations.append(job.noise.observations)
        job.close()
    assert observations[1] == 50 and 1 <= observations[0] < 40


def test_statistics_can_be_switched_off() -> None:
    job = swell.Job(batch=12, micro=4, statistics=False, rule="linear")
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Points(24))
    for _ in job.epochs(1):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    assert job.noise is None


class Odd(nn.Module):
    """Tied weights, a frozen layer, a layer that is never used, an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 6, sparse=True, dtype=torch.float64)
        self.first = nn.Linear(6, 6, dtype=torch.float64)
        self.second = nn.Linear(6, 6, dtype=torch.float64)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(6, 6, dtype=torch.float64)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(6, 6, dtype=torch.float64)

    def forward(self, index: Tensor) -> Tensor:
        return self.frozen(torch.tanh(self.second(torch.tanh(self.first(self.embed(index)))))).square().mean(-1)


def measure_odd(collective: Any) -> tuple[float, float, list[list[int]], list[Tensor], bool]:
    torch.manual_seed(11)
    job = swell.Job(batch=11, micro=3, rule="adascale", statistics=True)
    model = Odd()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    job.wrap(model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    loader = job.loader(torch.arange(11), shuffle=True)
    mine = []
    for _ in job.epochs(1):
        for index in loader:
            mine.append(index.tolist())
            loss = model(index).mean()
            job.backward(loss)
            job.step()
    assert job.noise is not None
    untouched = torch.equal(model.unused.weight, before[list(dict(model.named_parameters())).index("unused.weight")])
    return job.noise.total.signal, job.noise.total.noise, mine, before, untouched


@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2, 3])
def test_tied_frozen_unused_and_sparse_parameters_are_measured_right(world: int) -> None:
    replicas = run_workers(world, measure_odd)
    torch.manual_seed(11)
    model = Odd()
    used = [model.embed.weight, model.first.weight, model.first.bias, model.second.bias]
    vectors, sizes = [], []
    for _, _, mine, _, _ in replicas:
        for rows in mine:
            grads = torch.autograd.grad(model(torch.tensor(rows)).mean(), used)
            vectors.append(flat([g.to_dense() if g.is_sparse else g for g in grads]))
            sizes.append(len(rows))
    signal, noise = signal_and_noise(vectors, sizes, batch=11)
    for got_signal, got_noise, _, _, untouched in replicas:
        assert (got_signal, got_noise) == pytest.approx((signal, noise), rel=1e-10)
        assert untouched


def statistics_with(change: Callable[[nn.Module], nn.Module]) -> tuple[float, float]:
    job = swell.Job(batch=12, micro=4, rule="adascale", statistics=True)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    run = change(model)
    loader = job.loader(Points(24))
    for _ in job.epochs(1):
        for x, y, _ in loader:
            job.backward(mean_loss(run, x, y))
            job.step()
    assert job.noise is not None
    return job.noise.total.signal, job.noise.total.noise


class Checkpointed(nn.Module):
    """A model run through activation checkpointing."""

    def __init__(self, model: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.model, self.reentrant = model, reentrant

    def forward(self, x: Tensor) -> Any:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.model, x.requires_grad_(self.reentrant), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_no_figure(reentrant: bool) -> None:
    plain = statistics_with(lambda model: model)
    assert statistics_with(lambda model: Checkpointed(model, reentrant)) == pytest.approx(plain, rel=1e-10)


def test_a_compiled_model_changes_no_figure() -> None:
    plain = statistics_with(lambda model: model)
    compiled = statistics_with(lambda model: torch.compile(model, backend="aot_eager"))  # type: ignore[return-value]
    assert compiled == pytest.approx(plain, rel=1e-8)


def test_bfloat16_gradients_are_added_up_in_float32() -> None:
    job = swell.Job(batch=64, micro=1, rule="adascale", statistics=True)
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    job.wrap(model, optimizer)
    gradients: list[float] = []
    optimizer.register_step_pre_hook(lambda inner, args, kwargs: gradients.append(float(model.weight.grad)))  # type: ignore[arg-type]
    x = torch.full((64, 1), 1.0)
    x[0] = 256.0
    loader = job.loader(x)
    for _ in job.epochs(1):
        for rows in loader:
            job.backward(model(rows.bfloat16()).float().mean())
            job.step()
    assert gradients == [pytest.approx((256 + 63) / 64, rel=4e-3)]


def test_gradients_that_are_not_finite_are_dropped_and_counted() -> None:
    job = swell.Job(batch=4, micro=2, rule="adascale", statistics=swell.Statistics(budget=None))
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Points(16))

    for _ in job.epochs(1):
        for number, (x, y, _) in enumerate(loader):
            loss = mean_loss(model, x, y)
            job.backward(Poison.apply(loss) if number == 2 else loss)
            job.step(clip=lambda parameters: [p.grad.nan_to_num_(0) for p in parameters if p.grad is not None])
    noise = job.engine.state.learners[0].noise.plain
    assert (noise.observations, noise.dropped) == (3, 1)
    assert job.noise is not None and job.noise.total.signal == job.noise.total.signal


def test_gradients_that_overflow_under_a_scaler_are_dropped_and_counted() -> None:
    job = swell.Job(batch=4, micro=2, rule="constant", statistics=swell.Statistics(budget=None))
    model = nn.Linear(4, 1)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0), scaler=torch.amp.GradScaler("cpu", init_scale=2.0**20))
    torch.manual_seed(0)
    loader = job.loader(torch.randn(16, 4))
    for _ in job.epochs(1):
        for x in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                predicted = model(x)
            assert predicted.dtype == torch.float16
            job.backward(predicted.float().square().mean())
            job.step()
    noise = job.engine.state.learners[0].noise.plain
    assert job.steps == noise.observations == 4 and noise.dropped > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_figures_of_half_precision_gradients_are_those_of_their_float32_copies(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    job = swell.Job(batch=12, micro=3, rule="constant", statistics=True)
    model = nn.Linear(50, 30, dtype=dtype)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    data, small = torch.randn(12, 50), []
    loader = job.loader(data)
    for _ in job.epochs(1):
        for x in loader:
            loss = model(x.to(dtype)).float().square().mean()
            gradients = torch.autograd.grad(loss * 0.25, list(model.parameters()), retain_graph=True)
            small.append(flat([4 * g.double() for g in gradients]))
            job.backward(loss)
            job.step()
    signal, noise = signal_and_noise(small, [3] * 4, batch=12)
    assert job.noise is not None
    # What the optimizer gets is rounded to the parameters' type, so the sum's norm is known to its precision.
    assert (job.noise.total.signal, job.noise.total.noise) == pytest.approx((signal, noise), rel=0.02)


def test_parameters_added_later_are_measured_from_the_next_step_on() -> None:
    job = swell.Job(batch=8, micro=4, rule="constant", statistics=True)
    model = make_model()
    first, last = model[0], model[2]  # type: ignore[index]
    optimizer = torch.optim.SGD(first.parameters(), lr=0.0)
    job.wrap(model, optimizer)
    points, small = Points(16), []
    loader = job.loader(points)
    for _ in job.epochs(1):
        for x, y, index in loader:
            small.append(gradients_at(list(model.parameters()), points, index.tolist()))
            job.backward(mean_loss(model, x, y))
            if job.step() and job.steps == 1:
                assert job.noise is not None and len(job.noise.groups) == 1
                optimizer.add_param_group({"params": list(last.parameters())})
    assert job.noise is not None and job.noise.observations == 1  # one group and two do not mix
    for group, part in zip(job.noise.groups, (slice(0, 2), slice(2, 4)), strict=True):
        twin = signal_and_noise([flat(gradients[part]) for gradients in small[2:]], [4, 4], batch=8)
        assert (group.signal, group.noise) == pytest.approx(twin, rel=1e-10)


ADDED_AT, STEPS = 5, 12


def unfrozen_in_the_body(place: tuple[str, int], *, scale: int) -> list[Tensor]:
    """Train the first layer, and both from a step on in whose body, at some place, the last one is added."""
    job = swell.Job(batch=swell.Fixed(8 * scale, base=8), micro=4 * scale, rule="linear", statistics=scale == 1)
    model = make_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.05)  # type: ignore[index]
    job.wrap(model, optimizer)
    loader, micro = job.loader(Points(8 * scale * STEPS), shuffle=False), 0

    def add(where: str) -> None:
        if place == (where, micro) and job.steps == ADDED_AT and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": list(model[2].parameters())})  # type: ignore[index]

    for x, y, index in loader:
        micro = int(index[0]) // (4 * scale) % 2
        add("before backward")
        job.backward(mean_loss(model, x, y))
        add("after backward")
        job.step()
    assert job.steps == STEPS
    job.close()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("place", [("before backward", 0), ("after backward", 0), ("before backward", 1)])
def test_parameters_added_in_the_body_are_trained_from_that_step_on(place: tuple[str, int], scale: int) -> None:
    points, model = Points(8 * scale * STEPS), make_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.05 * scale)  # type: ignore[index]
    for step, rows in enumerate(torch.arange(len(points)).split(8 * scale)):
        if step == ADDED_AT:
            optimizer.add_param_group({"params": list(model[2].parameters())})  # type: ignore[index]
        model.zero_grad()
        mean_loss(model, points.x[rows], points.y[rows]).backward()
        optimizer.step()
    for ours, theirs in zip(unfrozen_in_the_body(place, scale=scale), model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("micro", [8, 4])
def test_parameters_added_to_the_second_of_two_optimizers_do_not_hold_the_step(micro: int) -> None:
    job, model, other = swell.Job(batch=8, micro=micro, statistics=True), make_model(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    second = torch.optim.SGD(other[0].parameters(), lr=0.05)  # type: ignore[index]
    job.wrap(model, optimizer)
    job.wrap(other, second)
    before = other[2].weight.detach().clone()  # type: ignore[index]
    for x, y, _ in job.loader(Points(64)):
        if job.steps == 3 and len(second.param_groups) == 1:
            second.add_param_group({"params": list(other[2].parameters())})  # type: ignore[index]
        job.backward(mean_loss(model, x, y), optimizer=optimizer)
        job.step(optimizer=optimizer)
        job.backward(mean_loss(other, x, y), optimizer=second)
        job.step(optimizer=second)
    assert job.steps == 8 and not torch.equal(other[2].weight, before)  # type: ignore[index]
    job.close()
