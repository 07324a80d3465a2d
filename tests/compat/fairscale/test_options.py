"""What FairScale's AdaScale lacked and ours has as options: weights of uneven micro-batches, rules for Adam."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from swell import rules
from swell.compat.fairscale.optim import AdaScale, AdaScaleWrapper
from swell.core.moments import estimate, gain
from swell.core.types import Moments
from swell.errors import ConfigError
from swell.rules import AdamScale
from tests.compat.fairscale.loop import accumulate, loss_of, problem, train
from tests.workers import run_workers

WHOLE, SIZES = 8, [[8, 3], [5, 8]]  # samples of each micro-batch, by replica


def data(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator).double(), torch.randn(size, 3, generator=generator).double()


def batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [data(size, seed=10 * rank + number) for number, size in enumerate(SIZES[rank])]


def mean_loss(net: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (net(batch[0]) - batch[1]).square().mean()


def by_hand(all_batches: list[tuple[torch.Tensor, torch.Tensor]], scale: float) -> tuple[float, list[float]]:
    """Gain and weights of one step, from each micro-batch's own gradient."""
    net = problem().double()
    total = sum(len(x) for x, _ in all_batches)
    gradients = []
    for batch in all_batches:
        parts = torch.autograd.grad(mean_loss(net, batch), list(net.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    shares = [len(x) / total for x, _ in all_batches]
    whole = sum(share * gradient for share, gradient in zip(shares, gradients, strict=True))
    small = sum(share * float(gradient @ gradient) for share, gradient in zip(shares, gradients, strict=True))
    moments = estimate(small, float(whole @ whole), count=len(gradients), batch=scale)  # type: ignore[operator, union-attr]
    factor = gain(scale, Moments(signal=max(moments.signal, 0), noise=max(moments.noise, 1e-6)), base_batch=1)
    weights = nn.utils.parameters_to_vector(net.parameters()).detach() - 0.1 * factor * whole
    return factor, weights.tolist()


def uneven_step(net: Any, optimizer: AdaScale, rank: int, *, divide: bool = True, peek: bool = False) -> float:
    for batch in batches(rank):
        if len(batch[0]) != WHOLE:  # whole ones need no announcement
            optimizer.samples(len(batch[0]))
        loss = mean_loss(net, batch) / (2 if divide else 1)
        if peek:  # gradients that autograd returns without accumulating have no weight
            free = copy.deepcopy(net)
            ours, plain = (torch.autograd.grad(mean_loss(each, batch), list(each.parameters())) for each in (net, free))
            assert all(a.equal(b) for a, b in zip(ours, plain, strict=True))
        loss.backward()
    if not divide:
        optimizer.scale_grad_by_num_grads_to_accum()
    gained = optimizer.gain()
    optimizer.step()
    optimizer.zero_grad()
    return gained


def make(net: nn.Module, **arguments: Any) -> AdaScale:
    settings: dict[str, Any] = {"num_gradients_to_accumulate": 2, "micro_batch": WHOLE} | arguments
    return AdaScale(torch.optim.SGD(net.parameters(), lr=0.1), **settings)


@pytest.mark.parametrize("divide", [True, False])
def test_f15_micro_batches_weigh_by_their_samples(divide: bool) -> None:
    """FairScale F15: micro-batches of unequal size were treated as equal."""
    net = problem().double()
    optimizer = make(net, is_scaled_loss=divide)
    gained, weights = by_hand(batches(0), scale=2 * 11 / 16)  # 11 samples of the 16 that make a scale of 2
    assert uneven_step(net, optimizer, 0, divide=divide, peek=divide) == pytest.approx(gained, rel=1e-9)
    assert nn.utils.parameters_to_vector(net.parameters()).tolist() == pytest.approx(weights, rel=1e-9)
    assert optimizer.scale == 2


def uneven_replica(collective: Any) -> tuple[float, list[float]]:
    net = problem().double()
    optimizer = make(net)
    gained = uneven_step(DistributedDataParallel(net), optimizer, collective.rank)
    return gained, nn.utils.parameters_to_vector(net.parameters()).tolist()


@pytest.mark.distributed
def test_f15_uneven_micro_batches_of_two_replicas_make_the_step_of_one_process() -> None:
    """FairScale F15 under DDP, whose mean over replicas also counts them as equal."""
    gained, weights = by_hand([*batches(0), *batches(1)], scale=4 * 24 / 32)
    for result in run_workers(2, uneven_replica):
        assert result[0] == pytest.approx(gained, rel=1e-9) and result[1] == pytest.approx(weights, rel=1e-9)


def test_a_short_accumulation_of_uneven_micro_batches_is_their_weighted_mean() -> None:
    net = problem().double()
    optimizer = make(net, num_gradients_to_accumulate=4)
    gained, weights = by_hand(batches(0), scale=4 * 11 / 32)
    for batch in batches(0):
        optimizer.samples(len(batch[0]))
        (mean_loss(net, batch) / 4).backward()
    optimizer.step()
    assert nn.utils.parameters_to_vector(net.parameters()).tolist() == pytest.approx(weights, rel=1e-9)
    assert optimizer.progress == pytest.approx(gained, rel=1e-9)


def test_one_worker_measured_by_differences_may_have_uneven_batches() -> None:
    results = []
    for whole, scale in ((8, 2.0), (4, 1.0)):  # the same base batch of 4, whatever size is whole
        net = problem().double()
        alone: dict[str, Any] = {"num_gradients_to_accumulate": 1, "single_worker": "differences", "scale": scale}
        optimizer = make(net, micro_batch=whole, **alone)
        for batch in batches(0):
            optimizer.samples(len(batch[0]))
            mean_loss(net, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([optimizer.progress, *nn.utils.parameters_to_vector(net.parameters()).tolist()])
    assert results[0] == pytest.approx(results[1], rel=1e-9)


def test_where_all_are_whole_nothing_changes() -> None:
    results = []
    for more in ({}, {"micro_batch": None}):
        net = problem()
        optimizer = make(net, **more)
        torch.manual_seed(1)
        results.append((train(net, optimizer, 3), net.weight.tolist()))
    assert results[0] == results[1]
    with pytest.raises(ConfigError, match="micro_batch"):
        make(problem(), micro_batch=None).samples(3)


def test_f19_adam_gets_the_root_of_the_gain_in_its_own_metric_where_that_is_asked_for() -> None:
    """FairScale F19: only the learning rate was scaled, by SGD's gain, whatever the optimizer."""
    net = problem().double()
    optimizer = AdaScale(torch.optim.Adam(net.parameters(), lr=0.01), num_gradients_to_accumulate=4, rule="auto")
    used: list[float] = []
    optimizer._optimizer.register_step_pre_hook(lambda o, *_: used.append(o.param_groups[0]["lr"]))
    for step in range(12):
        for number in range(4):
            (mean_loss(net, data(8, seed=4 * step + number)) / 4).backward()
        worth = optimizer.gain()
        optimizer.step()
        optimizer.zero_grad()
        assert used[-1] == pytest.approx(0.01 * worth**0.5) and 1 <= worth <= 4
    assert used[:5] == [0.01] * 5 and used[-1] > 0.01  # Adam's metric is warm after five steps
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_f19_adams_metric_is_that_of_the_gradients_divided_by_its_second_moment() -> None:
    net = problem().double()
    inner = torch.optim.Adam(net.parameters(), lr=0.01)
    optimizer = AdaScale(inner, num_gradients_to_accumulate=2, smoothing=0.0, rule=AdamScale())
    for step in range(6):
        for number in range(2):
            (mean_loss(net, data(8, seed=2 * step + number)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    root = [(inner.state[p]["exp_avg_sq"] / (1 - 0.999**6)).sqrt() + 1e-8 for p in net.parameters()]
    divided, plain = [], []
    for number in range(2):
        parts = torch.autograd.grad(mean_loss(net, data(8, seed=100 + number)), list(net.parameters()))
        divided.append(torch.cat([(part / d).flatten() for part, d in zip(parts, root, strict=True)]))
        plain.append(torch.cat([part.flatten() for part in parts]))
        (mean_loss(net, data(8, seed=100 + number)) / 2).backward()
    expected = []
    for one, other in (divided, plain):
        mean, small = (one + other) / 2, float(one @ one + other @ other) / 2
        moments = estimate(small, float(mean @ mean), count=2, batch=2.0)
        clamped = Moments(signal=max(moments.signal, 0), noise=max(moments.noise, 1e-6))
        expected.append(gain(2.0, clamped, base_batch=1))
    assert optimizer.gain() == pytest.approx(min(expected), rel=1e-9)


def test_f19_weight_decay_keeps_its_time_scale_where_the_rule_says_so() -> None:
    net = problem()
    optimizer = AdaScaleWrapper(
        net.parameters(), num_gradients_to_accumulate=2, optim_cls=torch.optim.AdamW, rule="auto", weight_decay=0.1
    )
    used: list[tuple[float, float]] = []
    optimizer._optimizer.register_step_pre_hook(
        lambda o, *_: used.append((o.param_groups[0]["lr"], o.param_groups[0]["weight_decay"]))
    )
    train(net, optimizer, 10)
    assert all(lr * decay == pytest.approx(2 * 1e-3 * 0.1) for lr, decay in used)  # twice the samples, twice the decay
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize("rule", ["auto", rules.AdamSDE()])
def test_adams_averages_and_clock_survive_checkpoints_and_copies(rule: Any) -> None:
    net = problem()
    optimizer = AdaScale(torch.optim.Adam(net.parameters(), lr=0.01), num_gradients_to_accumulate=2, rule=rule)
    train(net, optimizer, 8)
    other_net = copy.deepcopy(net)
    other = AdaScale(torch.optim.Adam(other_net.parameters(), lr=0.5), num_gradients_to_accumulate=2, rule=rule)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    pairs = [(net, optimizer), (other_net, other), copy.deepcopy((net, optimizer))]
    results = []
    for each, its in pairs:
        torch.manual_seed(3)
        results.append((train(each, its, 3), each.weight.tolist()))
    assert results[0] == results[1] == results[2]


def test_a_rule_and_a_scaler_work_together() -> None:
    net = problem()
    plain_net = copy.deepcopy(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    one, other = (
        AdaScale(torch.optim.Adam(each.parameters(), lr=0.01), num_gradients_to_accumulate=2, rule="auto")
        for each in (net, plain_net)
    )
    for step in range(8):
        torch.manual_seed(step)
        accumulate(plain_net, 2)
        other.step()
        other.zero_grad()
        torch.manual_seed(step)
        for _ in range(2):
            scaler.scale(loss_of(net) / 2).backward()
        scaler.step(one)
        scaler.update()
        one.zero_grad()
    assert one.gain() == pytest.approx(other.gain(), rel=1e-3)
    torch.testing.assert_close(net.weight, plain_net.weight, rtol=1e-3, atol=1e-5)


def leaving(collective: Any) -> list[float]:
    net = problem().double()
    parallel = DistributedDataParallel(net)
    optimizer = AdaScale(torch.optim.Adam(net.parameters(), lr=0.01), rule="auto", micro_batch=8)
    with Join([parallel, optimizer]):
        for step in range(7 + 2 * collective.rank):
            optimizer.samples(8 - step % 3)
            mean_loss(parallel, data(8 - step % 3, seed=10 * step + collective.rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [*net.weight.flatten().tolist(), optimizer.gain()]


@pytest.mark.distributed
def test_both_options_work_where_replicas_run_out_of_batches() -> None:
    one, other = run_workers(2, leaving)
    assert one == pytest.approx(other)


def test_a_rule_by_a_dual_norm_is_refused_because_nothing_is_measured_there() -> None:
    net = torch.nn.Linear(3, 2, bias=False)
    with pytest.raises(ConfigError, match="FairScale's AdaScale does not measure gradients in a dual norm"):
        AdaScale(torch.optim.Muon(net.parameters()), num_gradients_to_accumulate=2, rule="dualscale")
