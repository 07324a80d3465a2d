"""Faults of AdaptDL that no other file of this folder covers; ``grep -rn "AdaptDL C" tests/compat`` finds them all."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.utils.data import TensorDataset

import swell.compat.adaptdl as adaptdl
from swell.checkpoint.store import Store
from swell.compat.adaptdl.goodput import GoodputFunction, GradParams, fit_perf_params
from swell.compat.adaptdl.session import current_session
from swell.core.moments import consecutive_differences, gain
from swell.core.types import Moments
from swell.errors import WorldError
from tests.compat.adaptdl.scenario import loader, open_run, train
from tests.job.scenario import largest_relative_error
from tests.workers import Died, run_processes


def test_it_imports_and_trains_without_the_packages_the_original_needed() -> None:
    """AdaptDL A1, A2, A6 and A7: pkg_resources, requests, semver, torchtext and others, gone or not declared."""
    gone = ["pkg_resources", "requests", "semver", "portpicker", "autograd", "torchtext", "aiohttp", "pymoo", "ray"]
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({gone}))\n"
        "import torch, swell.compat.adaptdl as adaptdl\n"
        "adaptdl.torch, adaptdl.goodput, adaptdl.checkpoint, adaptdl.collective, adaptdl.env\n"
        "adaptdl.torch.init_process_group('gloo')\n"
        "net = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "net = adaptdl.torch.AdaptiveDataParallel(net, optimizer)\n"
        "for (x,) in adaptdl.torch.AdaptiveDataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), 2):\n"
        "    net(x).sum().backward()\n    optimizer.step()\n"
    )
    supervised = {"ADAPTDL_SUPERVISOR_URL": "http://localhost:1", "ADAPTDL_SCHED_VERSION": "no version"}
    for more in ({}, supervised):
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **more})


def test_an_explicit_adam_scale_survives_every_change_of_the_batch() -> None:
    """AdaptDL A5 and C10: the first change of the batch crashed on torch 2, and wiped Adam's moments before that."""
    rule = adaptdl.torch.scaling_rules.AdamScale()
    _, optimizer, wrapped = open_run(lambda m: Adam(m.parameters(), lr=0.01), scaling_rule=rule)
    train(wrapped, optimizer, loader(60))  # the last batch is a half one: another scale
    steps = {float(state["step"]) for state in optimizer.state.values()}
    assert steps == {8.0} and all(state["exp_avg_sq"].any() for state in optimizer.state.values())


def shuffled_outside_epochs() -> list[int]:
    _, optimizer, wrapped = open_run()
    indices = train(wrapped, optimizer, loader(41, shuffle=True))
    adaptdl.close()
    return indices


@pytest.mark.distributed
def test_replicas_shuffle_alike_outside_a_loop_over_epochs() -> None:
    """AdaptDL C7: there each process had an order of its own, so samples were missed and repeated."""
    parts = run_processes(2, shuffled_outside_epochs)
    assert sorted(itertools.chain(*parts)) == list(range(41)) and parts[0] != sorted(parts[0])


class Centre(nn.Module):
    """Half the squared distance to a point: the gradient of a batch is the point less the batch's mean."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(dimensions, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((self.point - x) ** 2).sum(1).mean()


def test_one_replica_measures_the_gain_without_the_bias_of_differenced_steps() -> None:
    """AdaptDL C11: one replica took steps for samples of one gradient, and saw nearly nothing but noise."""
    dimensions, rate = 200, 0.3
    data = torch.randn(2400, dimensions, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    adaptdl.torch.init_process_group("gloo")
    net = Centre(dimensions)
    optimizer = SGD(net.parameters(), lr=rate)
    wrapped = adaptdl.torch.AdaptiveDataParallel(net, optimizer)
    batches = adaptdl.torch.AdaptiveDataLoader(TensorDataset(data), batch_size=8, shuffle=True)
    batches.autoscale_batch_size(64)
    signals, pairs, gradients = [], [], []
    for (x,) in batches:
        signals.append(float(net.point.detach().square().sum()))  # the mean of all data is as good as 0
        wrapped(x).backward()
        if len(x) == 8:
            assert net.point.grad is not None
            gradients = [*gradients, net.point.grad.clone()][-2:]
            if len(gradients) == 2:
                a, b = gradients
                pairs.append(consecutive_differences(float(a @ a), float(b @ b), float(a @ b), batch=8))
        optimizer.step()
    truth = gain(8.0, Moments(signal=float(np.mean(signals[20:])), noise=float(dimensions)), base_batch=8)
    differenced = Moments(signal=float(np.mean([p.signal for p in pairs[20:]])), noise=float(dimensions))
    assert gain(8.0, differenced, base_batch=8) > 1.5 * truth  # the original's result
    assert wrapped.gns.gain(8.0) == pytest.approx(truth, rel=0.15)


def test_a_clock_that_stands_still_or_runs_backwards_does_not_end_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdaptDL C18: a step that seemed shorter than its exchange was an ``AssertionError``."""
    backwards: Iterator[float] = itertools.count(1e9, -1.0)
    monkeypatch.setattr(time, "time", lambda: next(backwards))
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    _, optimizer, wrapped = open_run()
    assert sorted(train(wrapped, optimizer, loader(autoscale=48))) == list(range(48))
    fitted = fit_perf_params([1, 1, 1], [1, 2, 2], [32, 32, 64], [0.2, 0.2, 0.4], [0.1, 0.1, 0.5])
    assert all(np.isfinite(value) and value >= 0 for value in fitted)


def test_fits_run_in_any_thread_at_the_same_time_and_fail_by_themselves() -> None:
    """AdaptDL C19: a fit replaced numpy for the whole process, and forgot to put it back where it failed."""
    columns = ([1, 1, 1, 2], [1, 1, 2, 4], [32, 64, 64, 64])
    alone = [
        fit_perf_params(*columns, [0.1 * k, 0.2 * k, 0.2 * k, 0.2 * k], [0.1 * k, 0.2 * k, 0.3 * k, 0.5 * k])
        for k in (1, 2)
    ]

    def fit(k: int) -> Any:
        if k == 0:
            return fit_perf_params(*columns, ["no"] * 4, [1.0] * 4)
        return fit_perf_params(*columns, [0.1 * k, 0.2 * k, 0.2 * k, 0.2 * k], [0.1 * k, 0.2 * k, 0.3 * k, 0.5 * k])

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(fit, k) for k in (1, 0, 2) * 3]
    for number, future in enumerate(futures):
        if number % 3 == 1:
            with pytest.raises(ValueError):
                future.result()
        else:
            assert future.result() == alone[number % 3 // 2]
    assert GoodputFunction(alone[0], GradParams(0.1, 1.0), 32).throughput(1, 1, 32, 0) == pytest.approx(320, rel=0.1)


def test_checkpoints_know_no_device_and_are_loaded_onto_each_replicas_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdaptDL C22: every replica loaded onto the device of the first."""
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(tmp_path))
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def run() -> list[torch.Tensor]:
        adaptdl.torch.init_process_group("gloo")
        net = Centre(3).to(device)
        optimizer = Adam(net.parameters(), lr=0.1)
        wrapped = adaptdl.torch.AdaptiveDataParallel(net, optimizer)
        data = adaptdl.torch.AdaptiveDataLoader(TensorDataset(torch.ones(8, 3, dtype=torch.float64)), batch_size=4)
        for _ in adaptdl.torch.remaining_epochs_until(1):
            for (x,) in data:
                wrapped(x.to(device)).backward()
                optimizer.step()
        tensors = [net.point.detach(), *(v for v in optimizer.state[net.point].values() if v.dim())]
        assert len(tensors) == 3 and all(tensor.device.type == device for tensor in tensors)
        adaptdl.close()
        return tensors

    first = run()
    newest = Store(tmp_path).load_newest()
    assert newest is not None
    saved = newest[1]["trainees"][0]
    assert all(t.device.type == "cpu" for t in [saved["model"]["point"], *saved["optimizer"]["state"][0].values()])
    assert largest_relative_error(run(), first) == 0


def lose_a_peer() -> str:
    adaptdl.torch.init_process_group("gloo")
    assert adaptdl.collective.allreduce(1) == 2
    if adaptdl.env.replica_rank() == 1:
        os._exit(3)
    try:
        adaptdl.collective.allreduce(1)
    except WorldError as error:
        return str(error)
    return "nothing was noticed"


@pytest.mark.distributed
def test_a_lost_replica_is_an_error_on_the_others_and_not_a_silence() -> None:
    """AdaptDL C23: the reducer ended its thread and not its process, and the others read the end of a file."""
    message, death = run_processes(2, lose_a_peer, may_die=[1])
    assert isinstance(death, Died) and "lost" in message


def test_a_first_replica_that_never_comes_is_an_error_that_names_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AdaptDL C23: after 26 tries the original wrote to a socket that was not connected; names were tried once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    from swell.compat.adaptdl import opening

    quick = opening.open_direct_world
    monkeypatch.setattr(opening, "open_direct_world", lambda **settings: quick(**settings, timeout_s=0.5))
    for host in ("127.0.0.1", "nowhere.invalid"):
        with pytest.raises(WorldError, match=host):
            adaptdl.torch.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=1, world_size=2)
    assert not current_session().opened
