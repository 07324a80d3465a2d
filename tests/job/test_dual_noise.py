"""A job measures the noise of Muon and of signs in their dual norms: the figures of a twin, on any workers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import swell
from swell.core.dual_noise import DualAverage, mean_of_pairs
from swell.core.moment_average import RECENT
from swell.core.types import NoiseEstimate
from swell.errors import ConfigError
from swell.gradients import buckets
from swell.gradients import overlap as overlapping
from swell.rules import AdamScale, KeepDecayTime
from swell.runtime.collective import TorchCollective
from tests.job.scenario import Points, Poison
from tests.reference.dual_norms import reach_and_spread
from tests.workers import run_workers

DUAL = AdamScale(metric="dual")
EVERY = swell.Statistics(every=1, split_every=1)
BATCH, FEATURES = 12, 6


class Signum(torch.optim.Optimizer):
    """Steps by the sign of the gradient."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                    parameter.sub_(grad.sign(), alpha=group["lr"])


def matrices(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A perceptron without biases, because torch's Muon takes matrices alone."""
    torch.manual_seed(3)
    layers = nn.Linear(FEATURES, 5, bias=False), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(4, 1, bias=False)).to(dtype)


def grouped(model: nn.Sequential) -> list[dict[str, Any]]:
    first, *rest = model.parameters()
    return [{"params": [first]}, {"params": rest, "lr": 0.005}]


def optimizer_of(name: str, model: nn.Sequential) -> torch.optim.Optimizer:
    return Signum(grouped(model)) if name == "Signum" else torch.optim.Muon(grouped(model), lr=0.01)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ((model(x).squeeze(-1) - y) ** 2).mean()


def dual(job: swell.Job, number: int = 0) -> NoiseEstimate | None:
    return job.engine.state.learners[number].noise.metric.estimate()


def measure(collective: Any, name: str, micro: int, overlaps: bool, steps: int = 5) -> list[tuple[Any, ...]]:
    """Train; after every step the estimates, this replica's micro-batches, and the weights before the step."""
    buckets.bucket_bytes = lambda number, total: 64  # several buckets, although the model is small
    overlapping.LARGE = 8  # some gradients are moved into their bucket before it is full, some with it
    buckets.SINGLE_BYTES, buckets.FEW_BYTES = 4 * 8 * 5, 0  # and the larger ones travel where they are
    TorchCollective.overlaps = property(lambda self: overlaps and self.size > 1)  # type: ignore[assignment,method-assign]
    job = swell.Job(batch=BATCH, micro=micro, rule=DUAL, statistics=EVERY, progress=False)
    model = matrices()
    job.wrap(model, optimizer_of(name, model))
    loader = job.loader(Points(BATCH * steps), shuffle=True)
    seen: list[tuple[Any, ...]] = []
    mine: list[list[int]] = []
    weights = [p.detach().clone() for p in model.parameters()]
    for _ in job.epochs(1):
        for x, y, index in loader:
            mine.append(index.tolist())
            job.backward(loss_of(model, x, y))
            if job.step():
                seen.append((dual(job), job.noise, mine, weights, job.engine.state.learners[0].noise.window))
                mine, weights = [], [p.detach().clone() for p in model.parameters()]
    job.close()
    return seen


def gradients_at(weights: list[Tensor], rows: list[int], points: Points) -> list[Tensor]:
    model = matrices()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    index = torch.tensor(rows)
    return list(torch.autograd.grad(loss_of(model, points.x[index], points.y[index]), list(model.parameters())))


def twin(replicas: list[list[tuple[Any, ...]]], norm: str, steps: int = 5) -> list[NoiseEstimate | None]:
    """The estimates after each step: the first two gradients of every replica, computed whole, and decompositions."""
    points, average = Points(BATCH * steps), DualAverage(base_batch=BATCH, window=replicas[0][0][4], share=RECENT)
    estimates = []
    for step in range(steps):
        sums: dict[str, Any] = {"reach": [0.0, 0.0], "spread": [0.0, 0.0], "root": 0.0, "count": 0}
        for seen in replicas:
            if len(seen[step][2]) < 2:
                continue
            one, two = (len(rows) for rows in seen[step][2][:2])
            first, second = (gradients_at(seen[step][3], rows, points) for rows in seen[step][2][:2])
            for group, part in enumerate((slice(0, 1), slice(1, 3))):
                reach, spread = reach_and_spread(first[part], second[part], norm)
                sums["reach"][group] += reach
                sums["spread"][group] += spread * math.sqrt(2 * one * two / (one + two))
            sums["root"] += (math.sqrt(one) + math.sqrt(two)) / 2
            sums["count"] += 1
        pair = mean_of_pairs(sums["reach"], sums["spread"], root=sums["root"], count=sums["count"])
        average.update(pair, batch=BATCH)
        estimates.append(average.estimate())
    return estimates


def assert_twins(replicas: list[list[tuple[Any, ...]]], norm: str) -> None:
    for seen in replicas:
        for (found, policies_see, *_), other in zip(seen, twin(replicas, norm), strict=True):
            assert found is not None and other is not None
            assert policies_see == found
            for mine, theirs in zip((found.total, *found.groups), (other.total, *other.groups), strict=True):
                assert mine.signal == pytest.approx(theirs.signal, rel=1e-3, abs=1e-3 * theirs.noise)
                assert mine.noise == pytest.approx(theirs.noise, rel=1e-3)
            assert found.observations == other.observations


@pytest.mark.parametrize(("name", "norm"), [("Signum", "absolute"), ("Muon", "nuclear")])
@pytest.mark.parametrize("micro", [2, 5, 6, 12])
def test_one_process_has_the_figures_of_the_twin(name: str, norm: str, micro: int) -> None:
    assert_twins([measure(None, name, micro, False)], norm)


@pytest.mark.distributed
@pytest.mark.parametrize(("name", "norm"), [("Signum", "absolute"), ("Muon", "nuclear")])
@pytest.mark.parametrize(
    ("world", "micro", "overlaps"), [(2, 12, True), (2, 3, False), (2, 2, True), (3, 12, True), (3, 2, False)]
)
def test_workers_have_the_figures_that_one_process_computes_of_their_samples(
    name: str, norm: str, world: int, micro: int, overlaps: bool
) -> None:
    """With one micro-batch each (12), every replica's share is cut in two."""
    replicas = run_workers(world, measure, name, micro, overlaps)
    assert all(len(step[2]) >= 2 for seen in replicas for step in seen)
    assert_twins(replicas, norm)


def run(
    *,
    folder: Path | None = None,
    rule: Any = DUAL,
    steps: int = 8,
    stop: int | None = None,
    batch: Any = BATCH,
    scaler: Any = None,
    dtype: torch.dtype = torch.float64,
    name: str = "Muon",
) -> swell.Job:
    """A job that has trained."""
    job = swell.Job(folder, batch=batch, micro=4, rule=rule, statistics=EVERY, progress=False)
    model = matrices(dtype)
    job.wrap(model, optimizer_of(name, model), scaler=scaler)
    loader = job.loader(Points(BATCH * steps), shuffle=True)
    for _ in job.epochs(1):
        for x, y, _ in loader:
            job.backward(loss_of(model, x.to(dtype), y.to(dtype)))
            if job.step() and job.steps == stop:
                job.save()
                job.close()
                return job
    job.close()
    return job


def test_a_resumed_run_goes_on_with_the_same_estimate(tmp_path: Path) -> None:
    whole = run()
    run(folder=tmp_path, stop=5)
    resumed = run(folder=tmp_path)
    assert resumed.noise == whole.noise
    assert resumed.noise is not None and resumed.noise.observations == 8


def train_part(collective: Any, folder: str, stop: int | None) -> NoiseEstimate | None:
    return run(folder=Path(folder), stop=stop).noise


@pytest.mark.distributed
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_other_workers_go_on_with_the_figures_of_those_before(tmp_path: Path, before: int, after: int) -> None:
    (first, *_) = run_workers(before, train_part, str(tmp_path), 5)
    found = run_workers(after, train_part, str(tmp_path), None)
    assert first.observations == 5 and all(one == found[0] for one in found) and found[0].observations == 8


@pytest.mark.parametrize("before", [AdamScale(metric="plain"), KeepDecayTime(DUAL)], ids=repr)
def test_a_run_may_go_on_with_another_metric(tmp_path: Path, before: Any) -> None:
    after = DUAL if before == AdamScale(metric="plain") else AdamScale(metric="plain")
    run(folder=tmp_path, rule=before, stop=5)
    resumed = run(folder=tmp_path, rule=after)
    assert resumed.noise is not None and resumed.noise.observations == (3 if after == DUAL else 8)


@pytest.mark.parametrize("name", ["Muon", "Signum"])
def test_a_gradient_scaler_changes_no_figure(name: str) -> None:
    plain = dual(run(name=name, dtype=torch.float32))
    scaled = dual(run(name=name, dtype=torch.float32, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**12)))
    assert plain is not None and scaled is not None
    assert scaled.total.signal == pytest.approx(plain.total.signal, rel=1e-3, abs=1e-4 * plain.total.noise)
    assert scaled.total.noise == pytest.approx(plain.total.noise, rel=1e-3)


def test_the_learning_rate_and_the_worth_follow_the_dual_noise() -> None:
    job = run(batch=swell.Schedule([(0, BATCH), (0.5, 4 * BATCH)], unit="epochs", base=BATCH), steps=16)
    state = job.engine.state.learners[0].states(scale=4.0, progress=0.0, samples=0)[1]
    found = dual(job)
    assert found is not None and state.dual == found.total and state.preconditioned is None
    assert job.gain == DUAL.gain(state) and 1 < job.gain <= 4
    (factors, *_), _ = job.engine.state.learners[0].factors(scale=4.0, progress=0.0, samples=0)
    groups, _ = job.engine.state.learners[0].states(scale=4.0, progress=0.0, samples=0)
    assert factors.lr == math.sqrt(DUAL.gain(groups[0]))


@pytest.mark.parametrize(
    "policy", [swell.NormTest, swell.NoiseScale, swell.Goodput], ids=lambda policy: policy.__name__
)
def test_policies_that_follow_the_noise_follow_the_dual_one(policy: Any) -> None:
    job = swell.Job(batch=policy(BATCH, max=8 * BATCH), rule=DUAL, statistics=EVERY, progress=False)
    model = matrices()
    job.wrap(model, optimizer_of("Signum", model))
    for x, y, _ in job.loader(Points(BATCH * 12), shuffle=True):
        job.backward(loss_of(model, x, y))
        job.step()
    assert job.noise is not None and job.engine.planner.observe().noise == dual(job) == job.noise


def test_muon_and_adamw_in_one_job_have_a_metric_each() -> None:
    job = swell.Job(batch=BATCH, micro=4, statistics=EVERY, progress=False)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    inside = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim == 1]
    job.wrap(model, torch.optim.Muon(inside, lr=0.01), rule="dualscale")
    job.wrap(model, torch.optim.AdamW(rest, lr=0.01))
    for x, y, _ in job.loader(Points(BATCH * 10), shuffle=True):
        job.backward(loss_of(model, x, y))
        job.step()
    learners = job.engine.state.learners
    first, second = dual(job), dual(job, 1)
    assert first is not None and second is not None
    assert job.noise == first and first.observations == 10
    assert learners[1].noise.estimate() is not None and second.observations == 5  # AdamW's second moment warms up
    assert "dual_noise" in learners[0].state_dict() and "dual_noise" not in learners[1].state_dict()


def test_sparse_gradients_are_compared_too() -> None:
    job = swell.Job(batch=8, micro=4, rule=DUAL, statistics=EVERY, progress=False)
    model = nn.Embedding(20, 3, sparse=True)
    job.wrap(model, Signum(model.parameters()))
    for index in job.loader(torch.arange(40) % 20):
        job.backward((model(index) - 1).square().mean())
        job.step()
    assert job.noise is not None and job.noise.observations == 5 and job.noise.total.noise > 0


def test_gradients_that_are_not_finite_are_dropped_and_counted() -> None:
    job = swell.Job(batch=8, micro=4, rule=DUAL, statistics=EVERY, progress=False)
    model = matrices()
    job.wrap(model, optimizer_of("Muon", model))
    for number, (x, y, _) in enumerate(job.loader(Points(32))):
        loss = loss_of(model, x, y)
        job.backward(Poison.apply(loss) if number == 2 else loss)
        job.step(clip=lambda parameters: [p.grad.nan_to_num_(0) for p in parameters if p.grad is not None])
    average = job.engine.state.learners[0].noise.metric
    assert (average.observations, average.dropped) == (3, 1)


# What cannot be measured is refused


@pytest.mark.parametrize("name", ["SGD", "AdamW", "LBFGS"])
def test_an_optimizer_without_a_dual_norm_is_refused(name: str) -> None:
    job = swell.Job(batch=BATCH, rule="dualscale", progress=False)
    model = matrices()
    with pytest.raises(ConfigError, match=rf"optimizer is {name}; expected .*'muon', 'lion'.*rule='auto'"):
        job.wrap(model, getattr(torch.optim, name)(model.parameters(), lr=0.1))


def test_differences_of_steps_are_refused() -> None:
    job = swell.Job(batch=BATCH, rule=DUAL, statistics=swell.Statistics(alone="differences"), progress=False)
    model = matrices()
    with pytest.raises(ConfigError, match=r'alone is "differences".*Leave out alone='):
        job.wrap(model, optimizer_of("Muon", model))


def shard_and_wrap(collective: Any) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = matrices(torch.float32)
    fully_shard(model, mesh=init_device_mesh("cpu", (collective.size,)))
    try:
        swell.Job(batch=BATCH, rule=DUAL, progress=False).wrap(model, Signum(model.parameters()))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.distributed
def test_a_sharded_model_is_refused() -> None:
    for message in run_workers(2, shard_and_wrap):
        assert "FSDP2" in message and "AdamScale(metric='plain')" in message
