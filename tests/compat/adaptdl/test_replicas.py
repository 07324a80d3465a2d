"""Real processes: the tutorial's loop on 1, 2 and 3 replicas is one run, and so it is across restarts between them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import swell.compat.adaptdl as adaptdl
from swell.compat.adaptdl.session import current_session
from tests.compat.adaptdl.scenario import loader, mean_loss, open_run, weights
from tests.job.scenario import largest_relative_error
from tests.workers import run_processes

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "adaptdl" / "adaptdl.json").read_text())
EPOCHS = 2


def program(stop_at: tuple[int, str, int] | None, settings: dict[str, Any]) -> dict[str, Any]:
    """A user's script: train, evaluate, count; rank 0 is asked to stop at batch N of a loop."""
    torch.manual_seed(7)
    # A rule that asks for no moments: those of one replica and of three are not measured alike.
    model, optimizer, wrapped = open_run(scaling_rule=adaptdl.torch.scaling_rules.LinearScale())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    wrapped.lr_scheduler = scheduler
    data, judged = loader(41, shuffle=True), loader(13, batch_size=4)
    if settings:
        data.autoscale_batch_size(**settings)
    rows: list[tuple[int, str, list[int]]] = []
    batches: list[int] = []
    readings: list[tuple[float, float]] = []
    code = None
    try:
        for epoch in adaptdl.torch.remaining_epochs_until(EPOCHS):
            for name, source in (("train", data), ("test", judged)):
                stats = adaptdl.torch.Accumulator()
                wrapped.train(name == "train")
                for batch, (x, y, index) in enumerate(source):
                    rows.append((epoch, name, index.tolist()))
                    if (epoch, name, batch) == stop_at and current_session().collective.rank == 0:
                        os.kill(os.getpid(), signal.SIGTERM)
                    with torch.set_grad_enabled(name == "train"):
                        loss = mean_loss(wrapped, x, y)
                    if name == "train":
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
                        batches.append(data.current_batch_size)
                    stats["samples"] += len(y)
                    stats["sum"] += float(y.sum())
                with stats.synchronized():
                    readings.append((stats["samples"], stats["sum"]))
            scheduler.step()
    except SystemExit as ended:
        code = ended.code
    lr, result = optimizer.param_groups[0]["lr"], weights(model)
    adaptdl.close()
    return {"rows": rows, "code": code, "weights": result, "lr": lr, "readings": readings, "batches": batches}


def samples(parts: list[list[dict[str, Any]]]) -> dict[tuple[int, str], list[int]]:
    indices: dict[tuple[int, str], list[int]] = {}
    for part in parts:
        for replica in part:
            for epoch, name, index in replica["rows"]:
                indices.setdefault((epoch, name), []).extend(index)
    return {key: sorted(value) for key, value in indices.items()}


@pytest.mark.distributed
def test_one_run_goes_on_over_restarts_with_other_numbers_of_replicas_in_the_middle_of_loops(tmp_path: Path) -> None:
    (alone,) = run_processes(1, program, None, {})
    history: list[tuple[int, Any]] = [(2, (0, "train", 2)), (3, (0, "test", 1)), (1, (1, "train", 1)), (3, None)]
    environ = {"ADAPTDL_CHECKPOINT_PATH": str(tmp_path)}
    parts = [run_processes(n, program, stop, {}, environ=environ) for n, stop in history]
    assert [[replica["code"] for replica in part] for part in parts[:3]] == [[143] * 2, [143] * 3, [143]]
    assert samples(parts) == {
        (e, name): list(range(n)) for e in range(EPOCHS) for name, n in [("train", 41), ("test", 13)]
    }
    for replica in parts[-1]:
        assert replica["code"] is None and replica["lr"] == pytest.approx(alone["lr"], rel=1e-12)
        assert largest_relative_error(replica["weights"], alone["weights"]) < 1e-9
    blocks = {(n, round(total, 9)) for part in parts for n, total in part[0]["readings"]}
    assert blocks == {(n, round(total, 9)) for n, total in alone["readings"]}


@pytest.mark.distributed
@pytest.mark.parametrize("accumulation", [False, True])
def test_replicas_agree_on_a_batch_that_grows_within_hard_bounds(accumulation: bool) -> None:
    """AdaptDL C8: rounding exceeded the maximum, and local bounds were ignored before the first fit."""
    settings = {"max_batch_size": 35, "local_bsz_bounds": (3, 9), "gradient_accumulation": accumulation}
    results = run_processes(3, program, None, settings)
    sizes = {size for result in results for size in result["batches"]}
    assert max(sizes) <= (35 if accumulation else 27)
    assert all(len(index) <= 9 for result in results for _, name, index in result["rows"] if name == "train")
    first = results[0]["weights"]
    assert all(largest_relative_error(result["weights"], first) < 1e-12 for result in results)


def golden_data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 96, dtype=torch.float64).reshape(32, 3).sin()
    return x, (x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)) + 0.3 * (torch.arange(32) % 3)


def golden_run() -> dict[str, Any]:
    replicas = int(os.environ.get("WORLD_SIZE", "1"))
    x, y = golden_data()
    # The original deals samples out in turn, swell in runs: in this order, each replica gets the same samples as there.
    order = torch.arange(32).reshape(4, 8 // replicas, replicas).transpose(1, 2).flatten()
    model = torch.nn.Linear(3, 1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    adaptdl.torch.init_process_group("gloo")
    wrapped = adaptdl.torch.AdaptiveDataParallel(model, optimizer, scheduler)
    data = adaptdl.torch.AdaptiveDataLoader(TensorDataset(x[order], y[order]), batch_size=8, drop_last=True)
    for _ in adaptdl.torch.remaining_epochs_until(3):
        for inputs, targets in data:
            optimizer.zero_grad()
            ((wrapped(inputs).squeeze(-1) - targets) ** 2).mean().backward()
            optimizer.step()
        scheduler.step()
    figures = {
        "weights": [v for p in model.parameters() for v in p.detach().flatten().tolist()],
        "lr": optimizer.param_groups[0]["lr"],
        "gain": wrapped.gain,
        "progress": wrapped.gns.get_progress(),
        "sqr": wrapped.gns.sqr_avg(),
        "var": wrapped.gns.var_avg(),
    }
    adaptdl.close()
    return figures


def test_a_run_on_one_replica_gives_the_originals_numbers() -> None:
    ours, theirs = golden_run(), GOLDEN["runs"]["1"]
    assert ours["weights"] == pytest.approx(theirs["weights"], rel=1e-9)
    assert (ours["lr"], ours["gain"], ours["progress"]) == pytest.approx((theirs["lr"], 1.0, 12.0), rel=1e-12)


@pytest.mark.distributed
def test_on_two_replicas_it_gives_what_the_original_gave_on_one() -> None:
    """AdaptDL C21: the first step on several replicas was taken for a larger batch."""
    ours, theirs = run_processes(2, golden_run)[0], GOLDEN["runs"]
    # The original took its first step for one of twice the batch, with a learning rate to match.
    assert theirs["2"]["progress"] > 12 and theirs["2"]["weights"] != pytest.approx(theirs["1"]["weights"], rel=1e-6)
    assert ours["weights"] == pytest.approx(theirs["1"]["weights"], rel=1e-9) and ours["progress"] == 12
    signal, noise = moments_by_hand()
    assert ours["sqr"] == pytest.approx(sum(signal) / 12, rel=0.01)
    assert ours["var"] == pytest.approx(sum(noise) / 12, rel=0.05)
    assert theirs["2"]["sqr"] == pytest.approx((sum(signal) + signal[0]) / 13, rel=0.01)  # the first counted twice


def opposed_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, targets, and signs that differ between the halves of each batch of 8."""
    return *golden_data(), torch.tensor([1.0, -1.0]).double().repeat_interleave(4).repeat(4)


def opposed_loss(weight: Any, bias: Any, noisy: Any, x: Any, y: Any, sign: Any) -> torch.Tensor:
    """``noisy`` has opposite gradients on two replicas, so its signal is estimated as negative in every step."""
    return ((torch.nn.functional.linear(x, weight, bias).squeeze(-1) - y) ** 2).mean() + (noisy * sign).mean()


class Opposed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.noisy = (
            torch.nn.Parameter(torch.full(shape, 0.1).double()) for shape in ((1, 3), (1,), ())
        )

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return opposed_loss(self.weight, self.bias, self.noisy, *batch)


def grouped_run() -> tuple[float, float, float, float]:
    model = Opposed()
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.05)
    adaptdl.torch.init_process_group("gloo")
    wrapped = adaptdl.torch.AdaptiveDataParallel(model, optimizer)
    data = adaptdl.torch.AdaptiveDataLoader(TensorDataset(*opposed_data()), batch_size=8)
    for _ in adaptdl.torch.remaining_epochs_until(3):
        for batch in data:
            wrapped(*batch).backward()
            optimizer.step()
    figures = (wrapped.gns.sqr_avg(), wrapped.gns.var_avg(), wrapped.gns.gain(4.0), wrapped.gns.get_progress())
    adaptdl.close()
    return figures


def documented_averages() -> tuple[float, float]:
    """AdaptDL's averages of the same run as its documentation has them: smoothed by group, clipped by group, summed."""
    data, parameters = opposed_data(), [p.detach().requires_grad_() for p in Opposed().parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    sqr, var, unbias = torch.zeros(3).double(), torch.zeros(3).double(), 0.0
    for step in range(12):
        halves = [slice(start, start + 4) for start in (step % 4 * 8, step % 4 * 8 + 4)]
        small = [torch.autograd.grad(opposed_loss(*parameters, *(d[h] for d in data)), parameters) for h in halves]
        whole = [(a + b) / 2 for a, b in zip(*small, strict=True)]
        local = torch.stack([sum(g.square().sum() for g in pair) / 2 for pair in zip(*small, strict=True)])  # type: ignore[arg-type]
        total = torch.stack([g.square().sum() for g in whole])
        decay = 0.999  # to the power of the scale, which is 1
        sqr = decay * sqr + (1 - decay) * (2 * total - local)
        var = decay * var + (1 - decay) * (local - total)
        unbias = decay * unbias + (1 - decay)
        for parameter, gradient in zip(parameters, whole, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return float((sqr / unbias).clamp(min=0).sum()), float((var / unbias).clamp(min=1e-6).sum())


@pytest.mark.distributed
def test_figures_of_several_parameter_groups_are_clipped_by_group_and_summed() -> None:
    sqr, var = documented_averages()
    for figures in run_processes(2, grouped_run):
        assert figures == pytest.approx((sqr, var, (var + sqr) / (var / 4 + sqr), 12.0), rel=1e-5)


def moments_by_hand() -> tuple[list[float], list[float]]:
    """Signal and variance of each step of the golden run on two replicas, from their two gradients."""
    x, y = golden_data()
    parameters = [torch.full((1, 3), 0.1).double(), torch.full((1,), 0.1).double()]
    optimizer = torch.optim.SGD([p.requires_grad_() for p in parameters], lr=0.05, momentum=0.5)
    signal, noise = [], []
    for step in range(12):
        optimizer.param_groups[0]["lr"] = 0.05 * 0.7 ** (step // 4)
        parts = []
        for rank in range(2):
            rows = torch.arange(step % 4 * 8 + rank, step % 4 * 8 + 8, 2)
            loss = ((torch.nn.functional.linear(x[rows], *parameters).squeeze(-1) - y[rows]) ** 2).mean()
            parts.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
        whole = (parts[0] + parts[1]) / 2
        small, big = sum(float(part @ part) for part in parts) / 2, float(whole @ whole)
        signal.append(2 * big - small)
        noise.append(small - big)
        for parameter, gradient in zip(parameters, whole.split([3, 1]), strict=True):
            parameter.grad = gradient.reshape(parameter.shape).clone()
        optimizer.step()
    return signal, noise
