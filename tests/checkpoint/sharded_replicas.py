"""What replicas with sharded models do in the tests; imports no test tools, so that a worker starts quickly."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from swell.checkpoint import AsyncSaver, Store
from swell.checkpoint.disk import sync_file
from swell.checkpoint.sharded import ShardedStore
from swell.core.protocols import Collective
from swell.errors import CheckpointError
from swell.runtime.collective import TorchCollective


def run_in_turn(collective: Collective, calls: dict[str, tuple[str, tuple[Any, ...]]]) -> dict[str, Any]:
    """The result of each call (a function of this module and its arguments): starting processes for each is slow."""
    results = {}
    for name, (function, args) in calls.items():
        results[name] = globals()[function](collective, *args)
        collective.barrier()
    return results


class Training:
    """A small model under FSDP2 (or whole), its optimizer and a scheduler; its data depend on the step alone."""

    def __init__(self, *, seed: int, sharded: bool = True) -> None:
        torch.manual_seed(seed)
        # 5 and 7 do not divide by 2 or 3: shards are uneven, and some replicas have none of the last layer.
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 7), torch.nn.Tanh(), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1)
        ).double()
        self.model[2].eval()  # its buffers are not sharded; its statistics must not depend on the world
        if sharded:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            fully_shard(self.model[0], mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05, betas=(0.8, 0.9))
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def steps(self, first: int, last: int) -> list[float]:
        """The loss of each step; every replica sees the whole batch, so the world does not change it."""
        losses = []
        for step in range(first, last):
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return losses

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }

    def load(self, store: ShardedStore, checkpoint: Any) -> None:
        state = store.load(checkpoint, self.state(), optimizers={"optimizer": self.optimizer})
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])


def opened(collective: Collective, folder: Path, **options: Any) -> ShardedStore:
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    store = Store(folder, run_id="run", **options)
    return ShardedStore(store, collective=collective, background=TorchCollective(group), group=group)


def save(collective: Collective, folder: Path) -> list[float]:
    """Train, save, and go on: the losses after the save."""
    training = Training(seed=0)
    training.steps(0, 3)
    opened(collective, folder).save(training.state(), samples=18, step=3)
    return training.steps(3, 7)


def save_whole(collective: Collective, folder: Path) -> list[float]:
    training = Training(seed=0, sharded=False)
    training.steps(0, 3)
    if collective.rank == 0:
        Store(folder, run_id="run").save(training.state(), samples=18, step=3)
    collective.barrier()
    return training.steps(3, 7)


def resume(collective: Collective, folder: Path, stepped: bool = False, sharded: bool = True) -> Any:
    """The losses after loading into another model, whether it is sharded, and its base hyper-parameters."""
    training = Training(seed=1, sharded=sharded)
    if stepped:
        training.steps(90, 92)
    store = opened(collective, folder)
    checkpoint = store.newest()
    assert checkpoint is not None
    training.load(store, checkpoint)
    moments = training.optimizer.state_dict()["state"][0]["exp_avg"]
    group = {key: value for key, value in training.optimizer.param_groups[0].items() if key != "params"}
    return training.steps(3, 7), isinstance(moments, DTensor), group


def save_beside_training(collective: Collective, folder: Path) -> Any:
    """Save in the background while training uses its own collectives; the losses, reports and warnings."""
    training = Training(seed=0)
    reports: list[int] = []
    messages: list[str] = []
    store = opened(collective, folder, keep=99)
    saver = AsyncSaver(
        store, on_saved=lambda report: reports.append(report.checkpoint.step), on_warning=messages.append
    )
    training.steps(0, 3)
    saver.prepare(training.state())
    started = [saver.save_async(training.state(), samples=18, step=3)]
    losses = training.steps(3, 7)
    for step in range(7, 17):
        training.steps(step, step + 1)
        started.append(saver.save_async(training.state(), samples=6 * step, step=step))
    saver.close()
    collective.barrier()
    return losses, started, reports, messages


def save_on_a_failing_disk(collective: Collective, folder: Path, rank: int, point: str) -> Any:
    """The error of a save that fails on one replica, and the complete steps and the folders after one more save."""
    training = Training(seed=0)
    training.steps(0, 1)
    broken = [True]

    def fail(reached: str) -> None:
        if reached == point and broken[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing_sync(path: Path) -> None:
        if collective.rank == rank:
            fail("shards")
        sync_file(path)

    store = opened(collective, folder, on_point=fail)
    try:
        with mock.patch("swell.checkpoint.sharded.sync_file", failing_sync):
            store.save(training.state(), samples=1, step=1)
        message = "saved"
    except CheckpointError as error:
        message = str(error)
    broken[0] = False
    collective.barrier()
    store = opened(collective, folder)
    store.save(training.state(), samples=2, step=2)
    return message, [checkpoint.step for checkpoint in store.store.all()], sorted(os.listdir(store.store.root))


def load_damaged(collective: Collective, folder: Path, file: str) -> str:
    """The error of loading a checkpoint with a flipped byte in one of its files."""
    copy = folder.with_name(f"{folder.name} {file}")
    if collective.rank == 0:
        shutil.copytree(folder, copy)
        (path,) = copy.rglob(file)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    collective.barrier()
    training = Training(seed=1)
    store = opened(collective, copy)
    checkpoint = store.store.all()[-1]
    try:
        training.load(store, checkpoint)
    except CheckpointError as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def load_into_another_model(collective: Collective, folder: Path) -> str:
    store = opened(collective, folder)
    checkpoint = store.newest()
    assert checkpoint is not None
    try:
        store.load(checkpoint, {"model": torch.nn.Linear(4, 7).double().state_dict()})
    except CheckpointError as error:
        return str(error)
    return "loaded"


def save_learners(collective: Collective, folder: Path) -> dict[str, torch.Tensor]:
    """Save two models as a job does; the weights of the second one, put together."""
    trainings = [Training(seed=seed) for seed in range(2)]
    for training in trainings:
        training.steps(0, 1)
    learners = [
        {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()} for training in trainings
    ]
    opened(collective, folder).save({"learners": learners}, samples=6, step=1, name="best")
    weights = trainings[1].model.state_dict()
    return {name: weight.full_tensor() if isinstance(weight, DTensor) else weight for name, weight in weights.items()}


def load_without_naming_the_optimizer(collective: Collective, folder: Path) -> str:
    training = Training(seed=1)
    store = opened(collective, folder)
    checkpoint = store.newest()
    assert checkpoint is not None
    try:
        store.load(checkpoint, training.state())
    except CheckpointError as error:
        return str(error)
    return "loaded"
