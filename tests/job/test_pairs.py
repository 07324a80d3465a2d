"""Two consecutive steps compared instead of one split in two: the figures of a twin that keeps both gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import swell
from swell.core.moment_average import RECENT, MomentAverage
from swell.core.moments import consecutive_differences
from swell.core.types import Moments, NoiseEstimate
from swell.errors import ConfigError
from swell.gradients.preconditioner import PIECE, Preconditioner
from tests.job.scenario import Points, make_model, mean_loss
from tests.job.test_statistics import SGD, Odd, gradients_at, make_optimizer, second_moments
from tests.reference.gradient_statistics import flat
from tests.workers import run_workers


def pairs_measured(name: str, steps: int, **settings: Any) -> tuple[list[tuple[Any, ...]], Points]:
    """Train with whole batches of 8; after every step what the job says, its samples, and the weights before it."""
    statistics = swell.Statistics(alone="differences", **settings)
    job = swell.Job(batch=8, statistics=statistics, rule="adascale" if name == SGD else "adamscale")
    model = make_model()
    optimizer = make_optimizer(name, model)
    job.wrap(model, optimizer)
    points = Points(8 * steps)
    seen: list[tuple[Any, ...]] = []
    weights, seconds = [p.detach().clone() for p in model.parameters()], []
    loader = job.loader(points, shuffle=True)
    for _ in job.epochs(1):
        for x, y, index in loader:
            job.backward(mean_loss(model, x, y))
            assert job.step(clip=0.01)  # what is compared are gradients before clipping
            trainee = job._trainees[0]
            found = trainee.noise.estimate(), trainee.preconditioned_noise.estimate()
            seen.append((*found, index.tolist(), weights, seconds))
            weights, seconds = [p.detach().clone() for p in model.parameters()], second_moments(optimizer, model)
    return seen, points


def of_pair(seen: list[tuple[Any, ...]], second: int, points: Points, part: slice, *, metric: bool) -> Moments:
    """The twin: both gradients of a pair whole, in the metric of the second step, and the formula applied to them."""
    vectors = []
    for step in (second - 1, second):
        gradients = gradients_at(seen[step][3], points, seen[step][2])
        if metric:
            gradients = [g / s for g, s in zip(gradients, seen[second][4], strict=True)]
        vectors.append(flat(gradients[part]))
    a, b = vectors
    return consecutive_differences(float(a @ a), float(b @ b), float(a @ b), batch=8)


def averaged(observations: list[list[Moments]]) -> NoiseEstimate:
    average = MomentAverage(base_batch=8, share=RECENT, window=50)
    for groups in observations:
        average.update_moments(groups, batch=16)
    found = average.estimate()
    assert found is not None
    return found


def test_consecutive_steps_can_be_compared_instead_of_split_and_agree_with_the_twin() -> None:
    seen, points = pairs_measured(SGD, 6)
    assert [len(rows) for _, _, rows, _, _ in seen] == [8] * 6  # no step is split
    assert seen[0][0] is None
    observations = []
    for second in (1, 3, 5):  # each gradient is in one pair
        observations.append([of_pair(seen, second, points, part, metric=False) for part in (slice(0, 2), slice(2, 4))])
        estimate: NoiseEstimate = seen[second][0]
        assert estimate.observations == len(observations)
        twin = averaged(observations)
        for mine, other in zip((estimate.total, *estimate.groups), (twin.total, *twin.groups), strict=True):
            assert (mine.signal, mine.noise) == pytest.approx((other.signal, other.noise), rel=1e-10)


def test_both_gradients_of_a_pair_are_measured_in_one_metric() -> None:
    seen, points = pairs_measured("Adam", 8)
    assert seen[4][1] is None  # step 6 is the first of a pair that is compared once the second moment is warm
    twin = of_pair(seen, 5, points, slice(0, 4), metric=True)
    found = seen[5][1].total
    assert (found.signal, found.noise) == pytest.approx((twin.signal, twin.noise), rel=1e-8)


def test_pairs_are_thinned_like_measured_steps() -> None:
    seen, _ = pairs_measured(SGD, 14, warm_up=4, every=5)
    counts = [0 if found is None else found.observations for found, *_ in seen]
    assert counts == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4]  # steps 0 1, 2 3, 5 6, 10 11


def test_steps_of_different_batches_are_never_compared() -> None:
    statistics = swell.Statistics(alone="differences")
    job = swell.Job(batch=lambda seen: 4 + seen.step, base=4, micro=64, statistics=statistics)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Points(30))
    for _ in job.epochs(1):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    assert job.steps > 2 and job.noise is None


def test_an_unknown_way_to_measure_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected 'split' or 'differences'"):
        swell.Statistics(alone="halves")  # type: ignore[arg-type]


def test_tied_unused_and_sparse_parameters_are_compared_right() -> None:
    torch.manual_seed(11)
    job = swell.Job(batch=6, micro=6, rule="constant", statistics=swell.Statistics(alone="differences"))
    model = Odd()
    job.wrap(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0))
    vectors: list[Tensor] = []
    loader = job.loader(torch.arange(12), shuffle=True)
    for _ in job.epochs(1):
        for index in loader:
            used = [model.embed.weight, model.first.weight, model.first.bias, model.second.bias]
            grads = torch.autograd.grad(model(index).mean(), used)
            vectors.append(flat([g.to_dense() if g.is_sparse else g for g in grads]))
            job.backward(model(index).mean())
            job.step()
    a, b = vectors
    twin = consecutive_differences(float(a @ a), float(b @ b), float(a @ b), batch=6)
    assert job.noise is not None
    assert (job.noise.total.signal, job.noise.total.noise) == pytest.approx((twin.signal, twin.noise), rel=1e-10)


def test_a_gradient_that_is_not_finite_spoils_its_pair_alone() -> None:
    job = swell.Job(batch=4, micro=4, rule="constant", statistics=swell.Statistics(alone="differences"))
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Points(32))
    for _ in job.epochs(1):
        for number, (x, y, _) in enumerate(loader):
            loss = mean_loss(model, x, y)
            if number == 2:
                loss.register_hook(lambda gradient: gradient * float("inf"))
            job.backward(loss)
            job.step(clip=lambda parameters: [p.grad.nan_to_num_(0, 0, 0) for p in parameters if p.grad is not None])
    noise = job._trainees[0].noise
    assert (noise.observations, noise.dropped) == (3, 1)


def test_a_sharded_model_refuses_to_keep_a_gradient() -> None:
    with pytest.raises(ConfigError, match="only pieces of it"):
        run_workers(1, shard_and_wrap)


def shard_and_wrap(collective: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 1)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    job = swell.Job(batch=4, statistics=swell.Statistics(alone="differences"))
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_large_gradient_has_the_norm_of_its_quotient_though_it_is_measured_in_pieces() -> None:
    parameters = [nn.Parameter(torch.ones(n, dtype=torch.float64)) for n in (3, PIECE, 2 * PIECE + 5)]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)
    torch.manual_seed(0)
    for _ in range(6):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    metric, gradients = Preconditioner(optimizer), [torch.randn_like(p) for p in parameters]
    whole = metric.divide(parameters, gradients)
    for quotient, standing in zip(whole, metric.norm_proxies(parameters, gradients), strict=True):
        assert quotient is not None and standing is not None
        assert float(standing.norm()) == pytest.approx(float(quotient.norm()), rel=1e-12)
