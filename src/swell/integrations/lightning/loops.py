"""Every private name of Lightning's Trainer that swell touches, and the versions that were tried.

Lightning decides in its loops after which batch the optimizer has stepped, which batch is an epoch's last, and when to
validate. It counts batches of one fixed size; here the job knows. Nothing else in swell reads an underscore of
Lightning.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from swell.errors import DependencyError

TRIED = ("2.6",)  # versions whose loops were read and whose tests pass
_EPOCH_LOOP = (
    "_accumulated_batches_reached",
    "_num_ready_batches_reached",
    "_should_check_val_fx",
    "_should_check_val_epoch",
    "_batches_that_stepped",
    "batch_progress",
    "automatic_optimization",
)
_FIT_LOOP = ("_data_fetcher", "_can_stop_early", "epoch_progress", "epoch_loop", "max_epochs")


def missing_names(trainer: Trainer) -> list[str]:
    """The names that this release of Lightning no longer has."""
    of_epoch = [f"epoch_loop.{name}" for name in _EPOCH_LOOP if not hasattr(trainer.fit_loop.epoch_loop, name)]
    of_fit = [f"fit_loop.{name}" for name in _FIT_LOOP if not hasattr(trainer.fit_loop, name)]
    of_trainer = [] if hasattr(trainer, "_val_check_time_interval") else ["trainer._val_check_time_interval"]
    of_precision = [] if hasattr(trainer.precision_plugin, "_after_closure") else ["precision_plugin._after_closure"]
    of_validation = [] if hasattr(trainer.fit_loop.epoch_loop.val_loop, "_results") else ["val_loop._results"]
    return of_epoch + of_fit + of_trainer + of_precision + of_validation


class Loops:
    """The Trainer's loops, told by the job what they would otherwise count themselves."""

    def __init__(self, trainer: Trainer) -> None:
        missing = missing_names(trainer)
        if missing:
            raise DependencyError(
                f"lightning {lightning.__version__} has no {', '.join(missing)}; expected the loops of lightning "
                f"{' or '.join(TRIED)}. Run pip install 'lightning~={TRIED[-1]}.0' until swell follows."
            )
        self._trainer, self._fit, self._epoch = trainer, trainer.fit_loop, trainer.fit_loop.epoch_loop
        self.stepped = False  # whether the batch in hand has completed a step

    def take_over(self, validates: Callable[[], bool]) -> None:
        """Answer for the job from here on; ``validates`` says whether it is time to, after a step that is not last."""

        def should_validate(data_fetcher: Any) -> bool:
            if not self._epoch._should_check_val_epoch():
                return False
            stops = self._trainer.should_stop and self._fit._can_stop_early
            return self._epoch.batch_progress.is_last_batch or stops or (self.stepped and validates())

        self._epoch._accumulated_batches_reached = lambda: self.stepped
        self._epoch._num_ready_batches_reached = lambda: self._epoch.batch_progress.is_last_batch
        self._epoch._should_check_val_fx = should_validate

    def hand_out(self) -> None:
        """A batch is about to be given to the loops; Lightning must not count it against the loader's length."""
        self.stepped = False
        fetcher = self._fit._data_fetcher
        if fetcher is not None:
            fetcher.length = float("inf")

    def finish_batch(self, *, stepped: bool, last: bool, steps: int) -> None:
        """The job has done with a batch."""
        self.stepped = stepped
        self._epoch.batch_progress.is_last_batch = last
        self._count(steps)
        if stepped:
            self._epoch._batches_that_stepped = steps - 1  # the loop adds one when the batch is over

    def _count(self, steps: int) -> None:
        progress = self._epoch.automatic_optimization.optim_progress.optimizer.step
        progress.total.ready = progress.total.completed = steps

    def enter(self, *, epoch: int, steps: int) -> None:
        """Begin where the run is: a worker that resumes or joins comes in the middle."""
        progress = self._fit.epoch_progress
        for tracker in (progress.total, progress.current):
            tracker.ready = tracker.started = tracker.processed = tracker.completed = epoch
        self._count(steps)
        self._epoch._batches_that_stepped = steps

    def stop(self) -> None:
        """The run is over, whatever Lightning counts."""
        self._trainer.should_stop = True

    @property
    def validation_s(self) -> float | None:
        """The time between validations; None where they are not timed."""
        return self._trainer._val_check_time_interval

    @property
    def max_epochs(self) -> int | None:
        """How many epochs are asked for; None for any number."""
        return None if self._fit.max_epochs in (None, -1) else int(self._fit.max_epochs)


class LoggedFigures:
    """The figures that ``self.log`` has added up for the end of a validation, which is under way or just over."""

    def __init__(self, trainer: Trainer) -> None:
        self._results: dict[str, Any] = trainer.fit_loop.epoch_loop.val_loop._results

    def _live(self) -> dict[str, Any]:
        live = {name: each for name, each in self._results.items() if not each.has_reset and each.meta.on_epoch}
        return {name: each for name, each in live.items() if not each.meta.sync.rank_zero_only}

    def names(self) -> set[str]:
        """Which figures there are."""
        return set(self._live())

    def captured(self) -> dict[str, list[Tensor]]:
        """The sums of this worker; a mean has its weight too. Metrics of torchmetrics keep their own."""
        sums = {name: each for name, each in self._live().items() if each.is_tensor}
        return {
            name: [each.value, each.cumulated_batch_size] if each.meta.is_mean_reduction else [each.value]
            for name, each in sums.items()
        }

    def join(self, parts: list[dict[str, list[Tensor]]]) -> None:
        """Put all workers' sums in the place of this worker's own."""
        for name in parts[0]:
            each = self._results[name]
            reduce = (
                torch.amax if each.meta.is_max_reduction else torch.amin if each.meta.is_min_reduction else torch.sum
            )
            columns = zip(*(part[name] for part in parts), strict=True)
            value, *weight = (reduce(torch.stack(column), 0).to(each.value.device) for column in columns)
            each.value, each._computed = value, None  # a progress bar may have asked for the figure so far
            if weight:
                each.cumulated_batch_size = weight[0]

    def values(self) -> dict[str, float]:
        """The figures themselves, at the end of a validation."""
        return {each.meta.name: float(each.compute()) for each in self._live().values()}


def run_before_step(trainer: Trainer, module: LightningModule, optimizer: Any) -> None:
    """Lightning's hooks and clipping, when the gradient of the whole step is there."""
    trainer.precision_plugin._after_closure(module, optimizer)
