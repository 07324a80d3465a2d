"""Accumulation under DistributedDataParallel: one exchange a step, and the step of the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import swell.compat.runai as runai
from swell.errors import LoopError
from tests.workers import run_workers

pytestmark = pytest.mark.distributed

STEPS, SIZE = 4, 6


class Net(nn.Module):
    """With buffers that follow the data, and a layer that only some micro-batches use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last, self.rare = (
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1), nn.Linear(3, 1)
        )  # fmt: skip

    def forward(self, x: torch.Tensor, rare: bool = False) -> torch.Tensor:
        y = self.last(self.norm(self.first(x)))
        return y + self.rare(x) if rare else y


def data(replicas: int) -> torch.Tensor:
    return torch.randn(2, STEPS, replicas, SIZE, 3, generator=torch.Generator().manual_seed(1)).double()


def exchanges(profile: Any) -> int:
    return sum(event.name == "gloo:all_reduce" for event in profile.events() or ())


def accumulate(collective: Any) -> dict[str, Any]:
    net = Net().double()
    model = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = runai.ga.torch.optim.SGD(STEPS, net.parameters(), lr=0.1, momentum=0.9)
    counts = []
    for step in data(collective.size):
        for number, micro in enumerate(step):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
                optimizer.zero_grad()
                model(micro[collective.rank], rare=collective.rank == 1 and number == 0).square().mean().backward()
                optimizer.step()
            counts.append((exchanges(profile), optimizer.stepped))
            if number == 0:
                with pytest.raises(LoopError, match="1 of 4 gradients"):
                    optimizer.state_dict()
    model(data(collective.size)[0, 0, 0])  # copies rank 0's buffers
    return {
        "counts": counts,
        "weights": [p.tolist() for p in net.parameters()],
        "mean": net.norm.state_dict()["running_mean"].tolist(),
    }


def test_r11_replicas_exchange_gradients_once_a_step_and_not_with_every_micro_batch() -> None:
    """Run:AI R11: there was no ``no_sync``, so DDP exchanged all gradients with every micro-batch."""
    one, other = run_workers(2, accumulate)
    for exchanged, stepped in one["counts"]:
        assert (exchanged > 0) == stepped
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in data(2):
        optimizer.zero_grad()
        for number, micro in enumerate(step):
            for rank in range(2):  # batch norm sees what each replica saw
                (net(micro[rank], rare=rank == 1 and number == 0).square().mean() / (2 * STEPS)).backward()
        optimizer.step()
    for ours in (one, other):
        for weights, expected in zip(ours["weights"], net.parameters(), strict=True):
            torch.testing.assert_close(
                torch.tensor(weights, dtype=torch.float64), expected.detach(), rtol=1e-12, atol=1e-14
            )
    assert one["mean"] == pytest.approx(other["mean"])


def overflow(collective: Any) -> list[float]:
    net = nn.Linear(3, 1).double()
    torch.nn.init.constant_(net.weight, 0.5)
    torch.nn.init.constant_(net.bias, 0.0)
    model = DistributedDataParallel(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer = runai.ga.torch.optim.SGD(STEPS, net.parameters(), lr=0.1)
    for number, micro in enumerate(data(2)[0]):
        optimizer.zero_grad()
        loss = model(micro[collective.rank]).square().mean()
        scaler.scale(loss * torch.inf if (number, collective.rank) == (1, 0) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.stepped
    return net.weight.flatten().tolist()


def test_a_micro_batch_that_overflows_on_one_replica_is_left_out_of_the_mean_of_all() -> None:
    net = nn.Linear(3, 1).double()
    torch.nn.init.constant_(net.weight, 0.5)
    torch.nn.init.constant_(net.bias, 0.0)
    for number, micro in enumerate(data(2)[0]):
        for rank in range(2):
            if (number, rank) != (1, 0):
                (net(micro[rank]).square().mean() / (2 * STEPS - 1)).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    for weights in run_workers(2, overflow):
        assert weights == pytest.approx(net.weight.flatten().tolist(), rel=1e-9)


def left_alone(collective: Any) -> list[bool]:
    """DDP models that do more than average, or train with other optimizers too."""
    kinds = []
    for kind in ("hook", "static graph", "two optimizers", "evaluated first"):
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        model = DistributedDataParallel(net, static_graph=kind == "static graph")
        if kind == "hook":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            model.register_comm_hook(None, allreduce_hook)
        optimizer = runai.ga.torch.optim.SGD(2, (net[0] if kind == "two optimizers" else net).parameters(), lr=0.1)
        if kind == "evaluated first":
            with torch.no_grad():
                model(torch.ones(1, 3))
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        kinds.append(model.require_backward_grad_sync)
    return kinds


def test_models_that_do_more_than_average_keep_their_own_exchange() -> None:
    assert run_workers(2, left_alone) == [[True, True, True, False]] * 2
