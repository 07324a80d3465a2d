"""AdaScale in real worker processes: DDP in its varieties, uneven inputs, other groups, other numbers of workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from swell.compat.fairscale.optim import AdaScale
from swell.errors import ConfigError
from tests.compat.fairscale.loop import loss_of, problem, train
from tests.workers import run_workers

pytestmark = pytest.mark.distributed


class Spare(nn.Module):
    """A model with a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = problem(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def make(net: nn.Module, **arguments: Any) -> AdaScale:
    return AdaScale(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), **arguments)


def varieties(collective: Any) -> dict[str, list[float]]:
    """Gains of the same run under several settings of DDP, on one rank."""
    gains: dict[str, list[float]] = {}
    settings: dict[str, dict[str, Any]] = {
        "plain": {},
        "static graph": {"static_graph": True},
        "bucket views": {"gradient_as_bucket_view": True},
        "unused parameters": {"find_unused_parameters": True},
    }
    for name, arguments in settings.items():
        net: nn.Module = Spare() if name == "unused parameters" else problem()
        optimizer = make(net)
        torch.manual_seed(collective.rank)
        gains[name] = train(DistributedDataParallel(net, **arguments), optimizer, 3, count=1)
    for name in ("accumulating", "without synchronising"):
        net = problem()
        parallel = DistributedDataParallel(net)
        optimizer = make(net, num_gradients_to_accumulate=2)
        torch.manual_seed(collective.rank)
        gains[name] = []
        for _ in range(3):
            if name == "accumulating":
                (loss_of(parallel) / 2).backward()
            else:
                with parallel.no_sync():
                    (loss_of(parallel) / 2).backward()
            (loss_of(parallel) / 2).backward()
            gains[name].append(optimizer.gain())
            optimizer.step()
            optimizer.zero_grad()
    return gains


def test_every_variety_of_ddp_gives_the_same_gains_on_every_rank() -> None:
    """FairScale F4: unused parameters failed under ``find_unused_parameters=True`` too."""
    results = run_workers(2, varieties)
    for name in ("static graph", "bucket views", "unused parameters"):
        assert results[0][name] == pytest.approx(results[0]["plain"], rel=1e-5)
    assert results[0]["without synchronising"] == pytest.approx(results[0]["accumulating"], rel=1e-5)
    assert results[0] == results[1]


def uneven(collective: Any, accumulation: int, over_all: bool) -> tuple[list[float], dict[str, Any], list[float]]:
    net = problem()
    parallel = DistributedDataParallel(net)
    optimizer = make(net, num_gradients_to_accumulate=accumulation)
    torch.manual_seed(collective.rank)
    gains = []
    with Join([parallel, optimizer], divide_by_initial_world_size=over_all):
        for _ in range(2 + 2 * collective.rank):
            for _ in range(accumulation):
                (loss_of(parallel) / accumulation).backward()
            gains.append(optimizer.gain())
            optimizer.step()
            optimizer.zero_grad()
    return gains, optimizer.state_dict()["state"]["adascale"], net.weight.flatten().tolist()


def all_uneven(collective: Any) -> list[tuple[list[float], dict[str, Any], list[float]]]:
    return [uneven(collective, *how) for how in ((1, True), (2, True), (2, False))]


def test_replicas_may_run_out_of_batches_and_all_end_with_the_same_averages() -> None:
    """FairScale F14: its own exchange met another one inside ``join()``, and the run crashed."""
    for (short, averages, weights), *others in zip(*run_workers(3, all_uneven), strict=True):
        assert [len(gains) for gains, *_ in others] == [4, 6]
        for gains, other_averages, other_weights in others:
            assert gains[:2] == pytest.approx(short) and other_weights == pytest.approx(weights)
            assert other_averages["signal"] == pytest.approx(averages["signal"])
            assert other_averages["noise"] == pytest.approx(averages["noise"])


def halves(collective: Any) -> tuple[float, float]:
    """Two groups of two, each training a model of its own, and one group of all four."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[collective.rank // 2]
    gains = []
    for group, seed in ((mine, collective.rank % 2), (None, collective.rank % 2)):
        net = problem()
        optimizer = make(net, process_group=group)
        torch.manual_seed(seed)
        gains.append(train(DistributedDataParallel(net, process_group=group), optimizer, 2, count=1)[-1])
        assert optimizer.scale == (2 if group else 4)
    return gains[0], gains[1]


def test_a_process_group_of_ones_own_is_measured_alone() -> None:
    """FairScale F16: there was no argument for a process group."""
    results = run_workers(4, halves)
    assert len(set(results)) == 1 and results[0][0] != results[0][1]


def checkpoint_of_two(collective: Any) -> dict[str, Any]:
    net = problem()
    optimizer = make(net)
    train(DistributedDataParallel(net), optimizer, 4, count=1)
    return optimizer.state_dict()


def test_a_checkpoint_of_two_workers_goes_on_alone_with_the_same_estimate() -> None:
    """FairScale F16: the number of workers could not change."""
    state = run_workers(2, checkpoint_of_two)[0]
    alone = make(problem(), num_gradients_to_accumulate=4)
    alone.load_state_dict(state)
    assert (alone.scale, alone.smoothing) == (4, 0.996)  # its own: the layout is another
    alone.set_scale(2, update_estimate=False)
    saved = state["state"]["adascale"]
    noise, signal = saved["noise"][0], saved["signal"][0]
    assert alone.gain() == pytest.approx((noise + signal) / (noise / 2 + signal))
    assert alone.progress == saved["progress"]


def sharded(collective: Any) -> str:
    from torch.distributed.fsdp import fully_shard

    net = problem()
    fully_shard(net, mesh=dist.device_mesh.init_device_mesh("cpu", (collective.size,)))
    try:
        make(net)
    except ConfigError as error:
        return str(error)
    return "accepted"


def test_sharded_parameters_are_refused_instead_of_never_being_measured() -> None:
    """FairScale F5: hooks never fired on FSDP2's parameters, and the gain stayed 1 silently."""
    for answer in run_workers(2, sharded):
        assert "DistributedDataParallel" in answer
