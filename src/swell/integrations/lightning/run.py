"""One run inside Lightning: a world from the start, and a job as soon as the training data is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from swell.core.protocols import Collective
from swell.errors import ConfigError, LoopError
from swell.integrations.lightning.training_loader import loader_arguments
from swell.job import Job
from swell.job.loader import TrainingLoader
from swell.runtime.environment import read_environment
from swell.runtime.world import World, open_world


class Run:
    """Opens the world when Lightning sets up its environment, and makes the job for the training loader.

    ``options`` are those of :class:`swell.Job`. The largest micro-batch is the loader's ``batch_size`` unless they say
    otherwise, because that is what is known to fit.
    """

    def __init__(self, run_dir: str | Path | None, options: dict[str, Any]) -> None:
        self._run_dir, self._options = run_dir, options
        self._world: World | None = None
        self._job: Job | None = None

    @property
    def job(self) -> Job:
        """The job; there is none before the training loader is set up."""
        if self._job is None:
            raise LoopError(
                "the strategy has no job yet; expected the training data first. In Fabric call "
                "fabric.setup_dataloaders(train_loader) before; in a Trainer it is there from the start of fit."
            )
        return self._job

    @property
    def begun(self) -> bool:
        """Whether there is a job."""
        return self._job is not None

    def world(self, device: str) -> World:
        """The world of this process, opened by the first call."""
        if self._world is None:
            self._world = open_world(self._options.get("device", device))
        return self._world

    def make_job(self, device: str, loader: DataLoader[Any]) -> TrainingLoader:
        """Make the job and give it the training data; returns what Lightning goes through in place of ``loader``."""
        if self._job is not None:
            raise ConfigError(
                "a second training loader was given to one swell.lightning.Strategy; expected one, because one run "
                "counts one set of samples. Make another strategy, in another run folder, for another run."
            )
        options = {"micro": loader.batch_size, **self._options, "device": self.world(device).device}
        arguments = loader_arguments(loader)
        self._job = Job(self._run_dir, world=self.world(device), **options)
        return self._job.loader(loader.dataset, **arguments)

    @property
    def rank(self) -> int:
        """This worker's place; where it has not joined a run yet, a number that is 0 for the run's first worker only.

        A worker that joins later must not take itself for the first while it sets up: it would open a log of its own.
        """
        if self._job is not None and self._job.engine.recovery.joined:
            return self._job.rank  # also after the job was closed and the world was left
        if self._world is not None and self._world.joined:
            return self._world.collective.rank
        return (read_environment().swell_member or 1) - 1  # workers are named from 1

    @property
    def replicas(self) -> int:
        """How many workers there are now."""
        if self._job is not None:
            return self._job.replicas
        return self._world.collective.size if self._world is not None and self._world.joined else 1

    @property
    def in_step(self) -> bool:
        """Whether a step is under way, in which workers may have different numbers of micro-batches."""
        step = None if self._job is None else self._job.engine.steps.current
        return step is not None and not step.ended

    @property
    def collective(self) -> Collective:
        """What the present workers talk over."""
        assert self._world is not None
        return self._world.collective

    def close(self) -> None:
        """End the run: save what was not saved and leave the world."""
        if self._job is not None:
            self._job.close()
        elif self._world is not None:
            self._world.close()


def device_of(device: torch.device | str | None, *, on_cpu: bool) -> str:
    """The device to ask for: the given one, the CPU where Lightning was told to use it, or the best there is."""
    if device is not None:
        return str(device)
    return "cpu" if on_cpu else "auto"
