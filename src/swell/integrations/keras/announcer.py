"""Who tells what happens in a Keras run: one process, to the log in the run's directory and the user's own sinks."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from swell.core.events import BatchChanged, EpochEnded, EpochStarted, Event, RunEnded, RunStarted, Saved, Stepped
from swell.core.protocols import Sink
from swell.integrations.keras.conductor import Conductor
from swell.integrations.keras.step import Step
from swell.policies import observation_to_dict
from swell.telemetry import Fanout, open_sinks
from swell.version import __version__


class Announcer:
    """Emits a run's events; opens the sinks when the first one is due. Without a directory or sinks it does nothing."""

    def __init__(self, directory: str | os.PathLike[str] | None, sinks: Sequence[Sink]) -> None:
        self._directory, self._extra = directory, tuple(sinks)
        self._sinks: Fanout | None = None
        self._rate: Any = 0.0
        self.quiet = directory is None and not self._extra  # also where another process speaks for all

    def _emit(self, event: Event) -> None:
        if self._sinks is None:
            self._sinks = open_sinks(self._directory, progress=False, extra=self._extra)
        self._sinks.emit(event)

    def run_started(self, conductor: Conductor, *, seed: int) -> None:
        """Training begins, from its start or from a checkpoint."""
        if not self.quiet:
            self._emit(
                RunStarted(
                    time=time.time(),
                    version=__version__,
                    replicas=conductor.replicas * conductor.devices,
                    base_batch=conductor.base,
                    policy=repr(conductor.policy),
                    rule=repr(conductor.rule),
                    seed=seed,
                    samples=conductor.ledger.samples,
                )
            )

    def run_ended(self, conductor: Conductor) -> None:
        """Training is over; a later ``fit`` opens the log again."""
        if not self.quiet:
            samples = conductor.ledger.samples
            self._emit(RunEnded(time=time.time(), step=conductor.step, samples=samples, reason="finished"))
        if self._sinks is not None:
            self._sinks.close()
            self._sinks = None

    def epoch_started(self, conductor: Conductor, *, epoch: int, epochs: int | None, optimizer: Any) -> None:
        """An epoch begins or goes on; the learning rate is read here, since callbacks set it here."""
        if self.quiet:
            return
        rate = optimizer.inner._learning_rate
        schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        self._rate = rate if schedule else float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        self._emit(
            EpochStarted(
                time=time.time(),
                epoch=epoch,
                samples=conductor.ledger.samples,
                epoch_size=conductor.ledger.length,
                epochs=epochs,
                total_samples=conductor.total_samples,
            )
        )

    def epoch_ended(self, conductor: Conductor, *, epoch: int, metrics: dict[str, Any]) -> None:
        """An epoch is over, or was left."""
        if not self.quiet:
            ledger = conductor.ledger
            known = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
            self._emit(
                EpochEnded(
                    time=time.time(),
                    epoch=epoch,
                    samples=ledger.cursor,
                    complete=ledger.remaining == 0,
                    metrics=known,
                )
            )

    def stepped(self, conductor: Conductor, step: Step, *, before: int, step_s: float) -> None:
        """A step was committed; and if its batch is another than ``before``, what the policy chose it by."""
        if self.quiet:
            return
        if step.seen is not None:
            self._emit(
                BatchChanged(
                    time=time.time(),
                    step=step.index,
                    before=before,
                    after=step.batch,
                    policy=repr(conductor.policy),
                    seen=observation_to_dict(step.seen),
                )
            )
        noise = conductor.noise
        self._emit(
            Stepped(
                time=time.time(),
                step=conductor.step,
                epoch=step.epoch,
                samples=conductor.ledger.samples,
                global_batch=step.stop - step.start,
                replicas=conductor.replicas * conductor.devices,
                micro_batch=-(-step.plan.micro_batch // conductor.devices),
                accumulation=step.plan.accumulation,
                lr=(self._base_rate(conductor.iterations + step.index),),
                lr_factor=(step.factors.lr,),
                gain=step.gain,
                progress=conductor.progress,
                step_s=step_s,
                signal=None if noise is None else noise.total.signal,
                noise=None if noise is None else noise.total.noise,
                noise_scale=None if noise is None else noise.total.noise_scale,
            )
        )

    def saved(self, conductor: Conductor, path: Path, *, held_s: float) -> None:
        """A checkpoint is complete on disk."""
        if not self.quiet:
            size = sum(file.stat().st_size for file in path.iterdir())
            self._emit(
                Saved(
                    time=time.time(),
                    step=conductor.step,
                    samples=conductor.ledger.samples,
                    path=str(path),
                    held_s=held_s,
                    bytes=size,
                )
            )

    def _base_rate(self, updates: int) -> float:
        if isinstance(self._rate, float):
            return self._rate
        with keras.device("cpu"):  # an accelerator would first finish what it has been given
            return float(keras.ops.convert_to_numpy(self._rate(updates)))
