"""An FSDP2 model's gradients are summed by the model itself, and each replica's own is measured on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from swell.gradients.gradient_sum import GradientSum
from swell.gradients.norms import squares_of
from swell.gradients.preconditioner import WARM_UP_STEPS
from swell.gradients.sharded import ShardedGradients, sharded_modules
from tests.reference import gradient_sum as slow
from tests.reference.adaptive_metric import divided
from tests.workers import run_workers

pytestmark = pytest.mark.distributed
SIZES = (2, 2)


def make() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1)).double()


def optimizer_of(model: nn.Sequential) -> torch.optim.Optimizer:
    return torch.optim.Adam([{"params": list(layer.parameters())} for layer in model], lr=0.01)


def micro_batch(rank: int, index: int) -> tuple[float, Tensor]:
    """A weight and a row of data."""
    generator = torch.Generator().manual_seed(10 * rank + index)
    return 0.1 * (1 + rank + index), torch.randn(1, 3, generator=generator, dtype=torch.float64)


def weighted_loss(model: nn.Module, rank: int, index: int) -> Tensor:
    weight, row = micro_batch(rank, index)
    return weight * model(row).square().sum()


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[attr-defined]


def measure(collective: Any) -> list[dict[str, Any]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = make()
    mesh = init_device_mesh("cpu", (collective.size,))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    optimizer = optimizer_of(model)
    sums = GradientSum(optimizer)
    sums.shards = shards = ShardedGradients(sharded_modules(model), optimizer, sums.preconditioner)
    results = []
    for step in range(WARM_UP_STEPS + 1):
        warm = sums.preconditioner.warm
        for index in range(2):
            shards.expect(micro_batch(collective.rank, index)[0], measure=True, preconditioned=warm)
            weighted_loss(model, collective.rank, index).backward()
            sums.take(multiplier=micro_batch(collective.rank, index)[0], measure=True, preconditioned=warm)
        whole = sums.tensors_to_sum(sums.codes())
        figures = [sums.small_squares(), sums.sharded_squares()]
        if warm:
            figures += [sums.small_squares(preconditioned=True), sums.sharded_squares(preconditioned=True)]
        figures = [figure.double() for figure in figures if figure is not None]
        collective.sum_tensors(figures)
        sums.release(sums.codes())
        results.append(
            {
                "whole": len(whole),
                "figures": [figure.tolist() for figure in figures],
                "gradients": [full(p.grad).clone() for p in sums.parameters if p.grad is not None],
                "replicated": squares_of(sums.whole_norms()).tolist(),
            }
        )
        if step < WARM_UP_STEPS:
            optimizer.step()
            sums.preconditioner.stepped()
            sums.clear()
    return results


def measure_alone(world: int) -> list[dict[str, Any]]:
    """The twin: one process that keeps every micro-gradient of all replicas."""
    model = make()
    optimizer = optimizer_of(model)
    groups = [(group, p) for group in optimizer.param_groups for p in group["params"]]
    parameters = [p for _, p in groups]
    results = []
    for step in range(WARM_UP_STEPS + 1):
        calls = [(rank, index) for rank in range(world) for index in range(2)]
        micro = [list(torch.autograd.grad(weighted_loss(model, *call), parameters)) for call in calls]
        weights = [micro_batch(*call)[0] for call in calls]
        total = [torch.stack(each).sum(0) for each in zip(*micro, strict=True)]
        figures = [slow.small_squares(micro, weights, SIZES), squares(total)]
        if step == WARM_UP_STEPS:
            metric = [
                [divided(g, optimizer.state[p], group) for g, (group, p) in zip(each, groups, strict=True)]
                for each in (*micro, total)
            ]
            figures += [slow.small_squares(metric[:-1], weights, SIZES), squares(metric[-1])]
        results.append({"figures": figures, "gradients": total})
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return results


def squares(gradients: list[Tensor]) -> list[float]:
    return [slow.squared_norm(gradients[:2]), slow.squared_norm(gradients[2:])]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_sums_and_squares_of_a_sharded_model_are_those_of_all_replicas_together(world: int) -> None:
    expected = measure_alone(world)
    for replica in run_workers(world, measure):
        for step, twin in zip(replica, expected, strict=True):
            torch.testing.assert_close(step["gradients"], twin["gradients"])
            for figure, other in zip(step["figures"], twin["figures"], strict=True):
                assert figure == pytest.approx(other, rel=1e-5)
            assert step["whole"] == 0  # nothing is left to be exchanged
            assert step["replicated"] == [0, 0]


def test_an_ordinary_model_has_no_sharded_modules() -> None:
    assert sharded_modules(make()) == []
