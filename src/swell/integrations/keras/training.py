"""The fits of one run, driven by Keras's callbacks: a step is set up before its first pass and committed at its end."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import contextlib
import time
import warnings
from typing import Any

import keras

from swell.core.protocols import Rule
from swell.errors import LoopError
from swell.integrations.keras import live_variables
from swell.integrations.keras.devices import grid_of
from swell.integrations.keras.noise_meter import Readings, Squares
from swell.integrations.keras.optimizer import ElasticOptimizer
from swell.integrations.keras.processes import Processes
from swell.integrations.keras.refusals import refuse_fixed_batch, refuse_sums
from swell.integrations.keras.run_events import RunEvents
from swell.integrations.keras.run_saving import RunSaving
from swell.integrations.keras.sources import Source
from swell.integrations.keras.step import Step
from swell.integrations.keras.step_control import PLAIN, StepControl, step_control
from swell.integrations.keras.step_sequence import StepSequence


class Training:
    """One run's steps on one model; a later ``fit`` continues where the last one ended."""

    def __init__(
        self,
        steps: StepSequence,
        source: Source,
        optimizer: ElasticOptimizer,
        processes: Processes,
        *,
        saving: RunSaving,
        events: RunEvents,
    ) -> None:
        self.steps, self.source = steps, source
        self._optimizer, self._processes = optimizer, processes
        self._saving, self._events = saving, events
        self._model: Any = None
        self._step: Step | None = None  # under way
        self._passes_left, self._pass_started = 0, False
        self._started_s = 0.0
        self._warning_filter: Any = None
        self._has_own_function = False  # whether the model trains by a function that is not Keras's

    def follow(self, optimizer: ElasticOptimizer, processes: Processes, rule: Rule) -> None:
        """Train with another optimizer from here on."""
        self._optimizer, self._processes = optimizer, processes
        self.steps.planner.rule = rule

    def prepare(self) -> None:
        """Look where steps are computed now; Keras may change that between two fits."""
        self.steps.place(grid_of(self._optimizer, self._processes))

    def start(self, model: Any, *, epochs: int | None) -> None:
        """A fit starts; ``epochs`` counts from the run's first."""
        steps, optimizer, processes = self.steps, self._optimizer, self._processes
        self._model = model
        refuse_sums(getattr(model, "loss", None))
        refuse_fixed_batch(model)
        self._build()
        self._saving.restore(model, steps, processes)
        steps.planner.iterations = int(keras.ops.convert_to_numpy(optimizer.iterations)) - steps.trained.pace.step
        self.prepare()
        processes.broadcast([*model.variables, *optimizer.inner.variables])
        self._forget_step()
        self._set_control(PLAIN)
        if epochs:
            ledger = steps.trained.ledger
            before = ledger.samples - ledger.cursor % ledger.length
            steps.planner.expect(before + (epochs - (model._initial_epoch or 0)) * ledger.length)
        train_function = processes.train_function(model)
        self._has_own_function = train_function is not None
        if self._has_own_function:
            model.train_function = train_function
        if not processes.chief:
            self._events.leave_to_another()
        self._events.run_started(steps)
        steps.is_training = True
        self._warning_filter = warnings.catch_warnings()
        self._warning_filter.__enter__()
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        self._started_s = time.perf_counter()

    def start_epoch(self, epoch: int, *, epochs: int | None) -> None:
        """An epoch starts, or continues after a resume; the one before may have been left halfway through a step."""
        self.steps.restart()
        self._forget_step()
        self._started_s = time.perf_counter()
        self._events.epoch_started(self.steps, epoch=epoch, epochs=epochs, optimizer=self._optimizer)

    def start_pass(self) -> None:
        """A pass starts; the first of a step sets the optimizer up for it."""
        self.settle()
        if self._step is None:
            step = self.steps.step_to_train()
            if step is None:
                return  # the epoch is over, as Keras is about to see
            self._step, self._passes_left = step, len(step.passes)
            weights = [one.weight for one in step.passes]
            self._set_control(step_control(weights, step.factors, effective_step=step.effective_step))
        self._pass_started = True

    def settle(self) -> None:
        """Count the pass that was started last, now that it is trained, and its step if it was the last of it.

        Not in ``on_train_batch_end``: if a callback has that method, Keras waits for the device in every pass to show
        it the metrics.
        """
        step = self._step
        if not self._pass_started or step is None:
            return
        self._pass_started = False
        if self.steps.is_unread(step):
            raise LoopError(
                "fit trains on data that is not from elastic.data; expected elastic.data(x, y). Call "
                "model.fit(elastic.data(x, y), callbacks=[elastic])."
            )
        self._passes_left -= 1
        if self._passes_left == 0:
            self._step = None
            self._commit(step)

    def end_epoch(self, epoch: int, logs: dict[str, Any] | None) -> None:
        """An epoch is over, or was left; its logs get the run's figures."""
        self.settle()
        if logs is not None:
            logs.update(self._figures())
        if self.steps.planner.finished:
            self._model.stop_training = True
        self._events.epoch_ended(self.steps, epoch=epoch, metrics=logs or {})
        self._saving.save(self._model, self.steps, self._processes)

    def end(self) -> None:
        """A fit is over."""
        self.steps.is_training = False
        self.steps.drain()
        self._set_control(PLAIN)
        self._model._initial_epoch = None  # it was for this fit alone
        if self._has_own_function:
            self._model.train_function = None  # Keras makes its own again
        self._events.run_ended(self.steps)
        self._saving.release()
        if self._warning_filter is not None:
            self._warning_filter.__exit__(None, None, None)
            self._warning_filter = None

    def _commit(self, step: Step) -> None:
        steps, gradients, now = self.steps, self._optimizer.gradients, time.perf_counter()
        step_s = max(self._processes.numbers(now - self._started_s))  # the same on all, because all plan by it
        self._started_s = now
        self._processes.average(self._model.non_trainable_variables)
        figures = live_variables.snapshot(self._model, gradients.figures) if step.measured else None
        scale = float(self._optimizer.inner.loss_scale_factor or 1.0) ** 2

        def read() -> Readings:
            small, small_metric, big, big_metric = (number / scale for number in live_variables.numbers(figures))
            return Squares(small, big), Squares(small_metric, big_metric)

        batch_before = steps.trained.pace.batch
        steps.commit(step, read, step_s=step_s)
        self._events.stepped(steps, step, batch_before=batch_before, step_s=step_s)
        if self._saving.is_due(steps.trained.pace.step):
            self._saving.save(self._model, steps, self._processes)

    def _build(self) -> None:
        """Create the optimizer's variables, and the model's, for which Keras would wait until the first step."""
        model, optimizer = self._model, self._optimizer
        if optimizer.built:
            return
        strategy = getattr(model, "distribute_strategy", None)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            if not model.built or not model.variables:
                model(self.source.take(0, 0, 1)[0], training=False)
            optimizer.build(model.trainable_variables)

    def _forget_step(self) -> None:
        self._optimizer.gradients.restart(self._write)
        self._step, self._passes_left, self._pass_started = None, 0, False

    def _set_control(self, control: StepControl) -> None:
        self._optimizer.gradients.set_control(control, self._write)

    def _write(self, variable: Any, value: Any) -> None:
        live_variables.write(self._model, variable, value)

    def _figures(self) -> dict[str, float]:
        self.steps.drain()
        pace, noise = self.steps.trained.pace, self.steps.noise
        figures = {"global_batch": pace.batch, "gain": self.steps.gain, "progress": pace.progress}
        if noise is not None:
            figures["noise_scale"] = noise.total.noise_scale
        return {name: float(value) for name, value in figures.items()}
