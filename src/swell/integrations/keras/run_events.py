"""A Keras run's events, from the figures of its steps to its log and the user's sinks."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from swell.checkpoint.manifest import Manifest
from swell.core.events import BatchChanged, EpochEnded, EpochStarted, RunEnded, RunStarted, Saved, Stepped
from swell.core.protocols import Sink
from swell.integrations.keras.step import Step
from swell.integrations.keras.step_sequence import StepSequence
from swell.policies import observation_to_dict
from swell.telemetry import Reporter, open_sinks
from swell.version import __version__


class RunEvents:
    """Builds each event and reports it; does nothing without a directory or sinks, or if another process reports."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        sinks: Sequence[Sink],
        *,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._reporter = Reporter(lambda: open_sinks(directory, progress=False, extra=sinks, may_write=may_write))
        self._silent = directory is None and not sinks
        self._rate: Any = 0.0  # the base learning rate, or a schedule of it

    def leave_to_another(self) -> None:
        """Report nothing from here on: another process does."""
        self._silent = True

    def run_started(self, steps: StepSequence) -> None:
        """Training starts, from the beginning or from a checkpoint."""
        if self._silent:
            return
        pace = steps.trained.pace
        self._reporter.emit(
            RunStarted(
                time=time.time(),
                version=__version__,
                replicas=steps.planner.grid.total,
                base_batch=pace.base,
                policy=repr(pace.policy),
                rule=repr(steps.planner.rule),
                seed=steps.trained.ledger.seed,
                samples=steps.trained.ledger.samples,
            )
        )

    def run_ended(self, steps: StepSequence) -> None:
        """Training is over; a later ``fit`` opens the log again."""
        if not self._silent:
            step, samples = steps.trained.pace.step, steps.trained.ledger.samples
            self._reporter.emit(RunEnded(time=time.time(), step=step, samples=samples, reason="finished"))
        self._reporter.close()

    def flush(self) -> None:
        """Write the steps that the log holds."""
        self._reporter.flush()

    def epoch_started(self, steps: StepSequence, *, epoch: int, epochs: int | None, optimizer: Any) -> None:
        """An epoch starts or continues; the learning rate is read here, because callbacks set it here."""
        if self._silent:
            return
        rate = optimizer.inner._learning_rate
        schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        self._rate = rate if schedule else float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        self._reporter.emit(
            EpochStarted(
                time=time.time(),
                epoch=epoch,
                samples=steps.trained.ledger.samples,
                epoch_size=steps.trained.ledger.length,
                epochs=epochs,
                total_samples=steps.planner.total_samples,
            )
        )

    def epoch_ended(self, steps: StepSequence, *, epoch: int, metrics: Mapping[str, Any]) -> None:
        """An epoch is over, or was left."""
        if self._silent:
            return
        ledger = steps.trained.ledger
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
        self._reporter.emit(
            EpochEnded(
                time=time.time(),
                epoch=epoch,
                samples=ledger.cursor,
                complete=ledger.remaining == 0,
                metrics=numbers,
            )
        )

    def stepped(self, steps: StepSequence, step: Step, *, batch_before: int, step_s: float) -> None:
        """A step was committed; if the policy chose another batch or micro-batch for it, this is reported first."""
        if self._silent:
            return
        if step.seen is not None:
            self._reporter.emit(
                BatchChanged(
                    time=time.time(),
                    step=step.index,
                    before=batch_before,
                    after=step.batch,
                    policy=repr(steps.trained.pace.policy),
                    seen=observation_to_dict(step.seen),
                    micro_before=None if step.layout is None else step.seen.micro_batch,
                    micro_after=None if step.layout is None else step.layout.micro_batch,
                )
            )
        noise, grid = steps.noise, steps.planner.grid
        self._reporter.emit(
            Stepped(
                time=time.time(),
                step=steps.trained.pace.step,
                epoch=step.epoch,
                samples=steps.trained.ledger.samples,
                global_batch=step.count,
                replicas=grid.total,
                micro_batch=-(-step.plan.micro_batch // grid.devices),
                accumulation=step.plan.accumulation,
                lr=(self._base_rate(steps.planner.iterations + step.index),),
                lr_factor=(step.factors.lr,),
                gain=step.gain,
                progress=steps.trained.pace.progress,
                step_s=step_s,
                signal=None if noise is None else noise.total.signal,
                noise=None if noise is None else noise.total.noise,
                noise_scale=None if noise is None else noise.total.noise_scale,
                noise_low=None if noise is None else noise.interval[0],
                noise_high=None if noise is None else noise.interval[1],
            )
        )

    def saved(self, manifest: Manifest, path: Path, *, held_s: float) -> None:
        """A checkpoint is complete on the disk."""
        if not self._silent:
            self._reporter.emit(
                Saved(
                    time=time.time(),
                    step=manifest.step,
                    samples=manifest.samples,
                    path=str(path),
                    held_s=held_s,
                    bytes=manifest.num_bytes,
                )
            )

    def _base_rate(self, updates: int) -> float:
        if isinstance(self._rate, float):
            return self._rate
        with keras.device("cpu"):  # an accelerator would first finish the work in its queue
            return float(keras.ops.convert_to_numpy(self._rate(updates)))
