"""What both halves of the strategy know of this process: its run, its device and its place among the workers."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.accelerators import CPUAccelerator
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning_utilities.core.rank_zero import rank_zero_only as utilities_rank_zero_only
from torch.utils.data import DataLoader

from swell.errors import ConfigError
from swell.integrations.lightning.run import Run, device_of
from swell.job import Job
from swell.job.loader import TrainingLoader


class Replica:
    """The run's own side of a strategy; Lightning's side is added by a parent of each half.

    Lightning keeps a process's rank in globals, and loggers and checkpoints look there. They are set when the
    environment is set up, and again whenever a world was formed.
    """

    accelerator: Any  # Lightning's, set by its connectors

    def _prepare(self, run_dir: str | Path | None, schedule: str, options: dict[str, Any]) -> None:
        self._run, self._schedule = Run(run_dir, options), schedule

    # The run

    @property
    def job(self) -> Job:
        """The :class:`swell.Job` underneath: its steps, metrics, noise, samples."""
        return self._run.job

    def _begin_job(self, loader: DataLoader[Any]) -> TrainingLoader:
        training = self._run.make_job(self._wanted_device, loader)
        self.job.engine.hooks.after_choice = self._tell_rank
        self._tell_rank()
        return training

    def _tell_rank(self) -> None:
        rank_zero_only.rank = utilities_rank_zero_only.rank = self.global_rank

    # What Lightning asks

    @property
    def _wanted_device(self) -> str:
        return device_of(None, on_cpu=isinstance(self.accelerator, CPUAccelerator))

    @property
    def root_device(self) -> torch.device:
        """The device of this worker."""
        return self._run.world(self._wanted_device).device

    @property
    def global_rank(self) -> int:
        """This worker's rank now; it changes when workers leave."""
        return self._run.rank

    @property
    def local_rank(self) -> int:
        """The same as ``global_rank``, so that one worker prints; Lightning never chooses a device by it here."""
        return self._run.rank

    @property
    def node_rank(self) -> int:
        """Always 0: machines make no difference here."""
        return 0

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker logs, saves and prints."""
        return self._run.rank == 0

    @property
    def parallel_devices(self) -> list[Any]:
        """None: each worker has one device, ``root_device``."""
        return []

    @parallel_devices.setter
    def parallel_devices(self, devices: Iterable[Any]) -> None:
        devices = list(devices)
        asked_for = len(devices) > 1 and (devices[0].type == "cpu" or len(devices) < torch.cuda.device_count())
        if asked_for:
            raise ConfigError(
                f"devices is {len(devices)}; expected 1, because swell.lightning.Strategy is one worker and starts no "
                f"others. Leave devices out, and start it with swell run --workers {len(devices)}, or torchrun."
            )

    def setup_environment(self) -> None:
        """Open the world and tell Lightning this worker's rank."""
        self.accelerator.setup_device(self.root_device)
        self._tell_rank()
