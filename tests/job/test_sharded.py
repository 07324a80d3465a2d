"""FSDP2 and HSDP: one gradient, the same statistics, checkpoints on any number of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import swell
from swell.core.moments import estimate
from tests.job.scenario import Points, mean_loss
from tests.workers import run_workers

pytestmark = pytest.mark.distributed


def make(seed: int = 3) -> nn.Sequential:
    """Layers of odd widths, so that shards are uneven and some replicas have none of the last one."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def shard(model: nn.Sequential, *, mesh_shape: tuple[int, ...] | None, **options: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape = mesh_shape or (dist.get_world_size(),)
    names = ("replicate", "shard") if len(shape) == 2 else ("shard",)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    fully_shard(model[0], mesh=mesh, **options)
    fully_shard(model[2], mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore


def parameter_groups(model: nn.Sequential) -> list[dict[str, Any]]:
    return [{"params": list(model[0].parameters())}, {"params": [*model[2].parameters(), *model[4].parameters()]}]


def optimizer_of(kind: str, model: nn.Sequential, *, groups: bool) -> torch.optim.Optimizer:
    given: Any = parameter_groups(model) if groups else model.parameters()
    if kind == "adamw":
        return torch.optim.AdamW(given, lr=0.01, betas=(0.8, 0.9), eps=1e-6)
    return torch.optim.SGD(given, lr=0.05, momentum=0.9)


def train(
    collective: Any,
    *,
    sharded: bool,
    batch: Any = 24,
    micro: int = 3,
    n: int = 101,
    epochs: int = 2,
    kind: str = "sgd",
    groups: bool = False,
    mesh_shape: tuple[int, ...] | None = None,
    run_dir: Path | None = None,
    stop_after: int | None = None,
    shard_options: dict[str, Any] | None = None,
    clip: float | None = None,
    rule: str = "auto",
) -> dict[str, Any]:
    job = swell.Job(
        run_dir,
        rule=rule,
        batch=batch,
        base=8,
        micro=micro,
        seed=4,
        progress=False,
        save=None,
        statistics=swell.Statistics(every=1),
    )
    model = make()
    if sharded:
        shard(model, mesh_shape=mesh_shape, **(shard_options or {}))
    optimizer = optimizer_of(kind, model, groups=groups)
    job.wrap(model, optimizer)
    loader = job.loader(Points(n), shuffle=True)
    seen: list[int] = []
    for _ in job.epochs(epochs):
        for x, y, index in loader:
            loss = mean_loss(model, x, y)
            job.metrics.mean("loss", loss.detach(), weight=len(y))
            job.metrics.sum("samples", len(y))
            job.backward(loss)
            if not job.metrics.muted:
                seen += index.tolist()
            if job.step(clip=clip) and job.steps == stop_after:
                break
        if job.steps == stop_after:
            break
    if run_dir is not None:
        job.save()
    measured = job.engine.state.learners[0].noise
    noise, metric = measured.plain.estimate(), measured.metric.estimate()
    result = {
        "weights": torch.cat([full(p.detach()).flatten() for p in model.parameters()]),
        "noise": None if noise is None else [(g.signal, g.noise) for g in noise.groups],
        "metric": None if metric is None else [(g.signal, g.noise) for g in metric.groups],
        "observations": 0 if noise is None else noise.observations,
        "dropped": measured.plain.dropped,
        "seen": seen,
        "metrics": job.metrics.results(),
        "steps": job.steps,
        "progress": job.progress,
    }
    job.close()
    return result


def on_workers(collective: Any, settings: dict[str, Any]) -> dict[str, Any]:
    return train(collective, **settings)


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_sharded_run_is_the_run_of_replicas_that_hold_the_whole_model(replicas: int, kind: str) -> None:
    settings: dict[str, Any] = {"kind": kind, "groups": kind == "adamw", "clip": 5.0}
    if kind == "adamw":  # its second moments are carried over to another batch
        settings["batch"] = swell.Schedule([(0, 8), (60, 24)])
    whole = run_workers(replicas, on_workers, {**settings, "sharded": False})[0]
    pieces = run_workers(replicas, on_workers, {**settings, "sharded": True})
    assert sorted(i for one in pieces for i in one["seen"]) == sorted(list(range(101)) * 2)
    for one in pieces:
        assert one["steps"] == whole["steps"] and one["dropped"] == 0
        assert one["metrics"] == pytest.approx(whole["metrics"], rel=1e-9)
        torch.testing.assert_close(one["weights"], whole["weights"], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("micro", [3, 64], ids=["accumulation", "one micro-batch"])
def test_statistics_are_those_of_whole_replicas(replicas: int, micro: int) -> None:
    # The same micro-batches, so the same figures: 24 samples in rounds that all replicas share evenly.
    settings = {"kind": "adamw", "groups": True, "micro": micro, "n": 96, "batch": 24}
    whole = run_workers(replicas, on_workers, {**settings, "sharded": False})[0]
    pieces = run_workers(replicas, on_workers, {**settings, "sharded": True})
    for one in pieces:
        assert one["observations"] == whole["observations"] > 0
        for channel in ("noise", "metric"):
            for mine, other in zip(one[channel], whole[channel], strict=True):
                assert mine == pytest.approx(other, rel=1e-8, abs=1e-14), channel


def test_replicas_of_shards_measure_and_train_alike() -> None:
    settings = {"kind": "adamw", "groups": True, "n": 96, "batch": 24}
    whole = run_workers(4, on_workers, {**settings, "sharded": False})[0]
    pieces = run_workers(4, on_workers, {**settings, "sharded": True, "mesh_shape": (2, 2)})
    for one in pieces:
        torch.testing.assert_close(one["weights"], whole["weights"], atol=1e-9, rtol=1e-9)
        for channel in ("noise", "metric"):
            for mine, other in zip(one[channel], whole[channel], strict=True):
                assert mine == pytest.approx(other, rel=1e-8, abs=1e-14), channel


@pytest.mark.parametrize("reshard", [True, False])
def test_mixed_precision_and_either_way_of_resharding(reshard: bool) -> None:
    found = run_workers(2, mixed, reshard)
    assert found[0]["steps"] == found[1]["steps"] > 0
    assert found[0]["dropped"] == 0
    for mine, other in zip(found[0]["noise"], found[0]["twin"], strict=True):
        assert mine == pytest.approx(other, rel=0.1)  # the twin computes in float32, the model in bfloat16


def mixed(collective: Any, reshard: bool) -> dict[str, Any]:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    job = swell.Job(batch=16, base=8, micro=4, seed=4, progress=False, statistics=swell.Statistics(every=1))
    model, twin = make().float(), make().float()
    shard(model, mesh_shape=None, mp_policy=policy, reshard_after_forward=reshard)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0), rule="constant")
    loader = job.loader(Points(64))
    small: list[tuple[Tensor, int]] = []
    for _ in job.epochs(1):
        for x, y, _index in loader:
            job.backward(((model(x.bfloat16()).squeeze(-1) - y.bfloat16()) ** 2).mean())
            loss = ((twin(x.float()).squeeze(-1) - y.float()) ** 2).mean()
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(twin.parameters()))])
            small.append((gradient, len(y)))
            job.step()
    noise = job.engine.state.learners[0].noise.plain
    found = noise.estimate()
    assert found is not None
    return {
        "steps": job.steps,
        "dropped": noise.dropped,
        "noise": [(found.total.noise,)],
        "twin": [(_slow_noise(collective, small),)],
    }


def _slow_noise(collective: Any, small: list[tuple[Tensor, int]]) -> float:
    """The mean noise of all steps, from every micro-gradient of every replica (two rounds a step)."""
    import torch.distributed as dist

    everybody: list[Any] = [None] * collective.size
    dist.all_gather_object(everybody, small)
    noises = []
    for first in range(0, len(small), 2):
        parts = [part for one in everybody for part in one[first : first + 2]]
        total = sum(size for _, size in parts)
        mean = torch.stack([gradient * (size / total) for gradient, size in parts]).sum(0)
        a = sum(float(gradient.square().sum()) * size / total for gradient, size in parts)
        noises.append(estimate(a, float(mean.square().sum()), count=len(parts), batch=total).noise)
    return sum(noises) / len(noises)


def test_what_was_saved_on_two_replicas_goes_on_on_three_and_on_one(tmp_path: Path) -> None:
    settings = {"kind": "adamw", "n": 96, "batch": 24, "epochs": 3, "rule": "root"}
    straight = run_workers(2, on_workers, {**settings, "sharded": True})[0]
    for folder, second in (("three", 3), ("one", 1)):
        first = run_workers(2, on_workers, {**settings, "sharded": True, "run_dir": tmp_path / folder, "stop_after": 5})
        rest = run_workers(second, on_workers, {**settings, "sharded": True, "run_dir": tmp_path / folder})
        assert sorted(i for one in [*first, *rest] for i in one["seen"]) == sorted(list(range(96)) * 3)
        torch.testing.assert_close(rest[0]["weights"], straight["weights"], atol=1e-9, rtol=1e-9)
        assert rest[0]["progress"] == pytest.approx(straight["progress"])


def test_a_model_that_hides_its_gradients_is_measured_by_rounds() -> None:
    found = run_workers(2, by_rounds)
    for one in found:
        assert "rounds of accumulation" in one["warned"]
        assert one["noise"] == pytest.approx(one["twin"], rel=1e-8)


def by_rounds(collective: Any) -> dict[str, Any]:
    import warnings

    from torch.distributed.fsdp import FSDPModule

    def refuse(self: Any, comm: Any) -> None:
        raise ValueError("not supported with multiple param groups")

    FSDPModule.set_custom_reduce_scatter = refuse  # as per-parameter meshes do
    job = swell.Job(batch=16, base=8, micro=4, seed=4, progress=False, statistics=swell.Statistics(every=1))
    model, twin = make(), make()
    shard(model, mesh_shape=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0), rule="constant")
    loader = job.loader(Points(64))
    rounds: list[tuple[Tensor, int]] = []
    for _ in job.epochs(1):
        for x, y, _index in loader:
            job.backward(mean_loss(model, x, y))
            gradient = torch.cat(
                [g.flatten() for g in torch.autograd.grad(mean_loss(twin, x, y), list(twin.parameters()))]
            )
            collective.sum_tensors([gradient])
            rounds.append((gradient / collective.size, len(y) * collective.size))
            job.step()
    noises = []
    for first in range(0, len(rounds), 2):
        (a, size), (b, _) = rounds[first : first + 2]
        squares = (float(a.square().sum()) + float(b.square().sum())) / 2
        big = float(((a + b) / 2).square().sum())
        noises.append(estimate(squares, big, count=2, batch=2 * size).noise)
    found = job.noise
    assert found is not None
    return {
        "warned": " ".join(str(w.message) for w in caught),
        "noise": found.total.noise,
        "twin": _averaged(noises, batch=16),
    }


def _averaged(noises: list[float], *, batch: int) -> float:
    from swell.core.moment_average import RECENT, MomentAverage, window_of
    from swell.core.types import Moments

    average = MomentAverage(base_batch=8, share=RECENT, window=window_of(64, base_batch=8))
    for noise in noises:
        average.update_moments([Moments(1.0, noise)], batch=batch)
    found = average.estimate()
    assert found is not None
    return found.total.noise


def evaluated(collective: Any, n: int) -> dict[str, float]:
    job = swell.Job(batch=8, seed=4, progress=False)
    model = make()
    shard(model, mesh_shape=None)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    job.loader(Points(32))
    for x, y, index in job.evaluation(Points(n), batch_size=4):
        with torch.no_grad():
            job.metrics.mean("loss", mean_loss(model, x, y), weight=len(y))
        job.metrics.sum("samples", len(y))
        job.metrics.sum("indices", int(index.sum()))
    return job.metrics.results()


@pytest.mark.parametrize("n", [1, 2, 23])
def test_evaluation_counts_every_sample_once_and_nobody_waits(n: int) -> None:
    found = run_workers(3, evaluated, n)
    assert found[0]["samples"] == n and found[0]["indices"] == sum(range(n))
    assert found[0] == found[1] == found[2]
