"""The one object that a Keras user holds: it wraps the optimizer, gives the data, and follows ``fit`` as a callback."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from swell.checkpoint.run_lock import RunLock
from swell.core.counts import whole_number
from swell.core.protocols import Sink
from swell.core.types import NoiseEstimate
from swell.errors import ConfigError, DataError, LoopError
from swell.integrations.keras.adapter import ElasticData
from swell.integrations.keras.array_store import ArrayStore
from swell.integrations.keras.hyperparameters import rule_for
from swell.integrations.keras.optimizer import ElasticOptimizer
from swell.integrations.keras.processes import Processes, processes_of
from swell.integrations.keras.refusals import (
    refuse_loss_scale,
    refuse_options,
    refuse_statistics,
    require_matching,
)
from swell.integrations.keras.run_events import RunEvents
from swell.integrations.keras.run_saving import RunSaving
from swell.integrations.keras.sources import ClassWeighted, as_source
from swell.integrations.keras.step_sequence import StepSequence
from swell.integrations.keras.training import Training
from swell.loop.statistics import Statistics, as_statistics
from swell.policies import as_policy
from swell.policies.decision import require_noise
from swell.rules import as_rule
from swell.rules.metric import needs_preconditioned, refuse_dual
from swell.runtime.environment import read_environment


class Elastic(keras.callbacks.Callback):
    """One global batch on any number of devices, a policy that moves the batch, a rule that moves the learning rate.

    >>> elastic = swell.keras.Elastic(batch=256, micro=64)                           # doctest: +SKIP
    >>> model.compile(optimizer=elastic.optimizer("adam"), loss="mse")               # doctest: +SKIP
    >>> model.fit(elastic.data(x, y), epochs=5, callbacks=[elastic])                 # doctest: +SKIP

    A model that is compiled already can be trained in one call: ``elastic.fit(model, x, y, epochs=5)``.

    Args:
        batch: the global batch: a number, or any policy of swell (``swell.Ramp``, ``swell.NoiseScale``, a trace, ...).
        base: the batch the learning rate was tuned for; by default the policy's own.
        rule: how the learning rate follows: ``"auto"`` by the optimizer, a name, or any rule of swell.
        micro: the most samples one device computes at once; by default the base batch. A global batch takes as many
            passes as it needs: whole ones and one with the rest.
        seed: of the order of samples, which depends on ``(seed, epoch)`` alone.
        statistics: how often gradient noise is measured: ``True`` for every step, a number N for the first 100 steps
            and then every N steps, a ``swell.Statistics``, or ``False`` for never.
        drop_last: leave out the short step at the end of an epoch.
        directory: where to keep checkpoints and the log of events (``events.jsonl``). If there is a checkpoint, the run
            continues from it, within an epoch too, on any number of devices. By default nothing is saved.
        save_every: steps between checkpoints, besides those at the end of each epoch.
        sinks: what else receives each event: a ``swell.telemetry.TensorBoardSink``, an object of your own.
    """

    def __init__(
        self,
        batch: Any,
        *,
        base: int | None = None,
        rule: Any = "auto",
        micro: int | None = None,
        seed: int = 0,
        statistics: bool | int | Statistics = True,
        drop_last: bool = False,
        directory: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        super().__init__()
        self.policy = as_policy(batch, base=base)
        self._rule_choice = rule
        if rule != "auto":
            as_rule(rule)  # refuses a wrong one here, not at the first step
        self._micro = None if micro is None else whole_number(micro, name="micro")
        self._seed, self._drop_last = seed, drop_last
        # True is every step: a compiled step computes the norms of each pass anyway.
        self._statistics = Statistics(every=1) if statistics is True else as_statistics(statistics)
        refuse_statistics(self._statistics)
        require_noise(self.policy, measured=self._statistics is not None)
        environment = read_environment()
        lock = None if directory is None else RunLock(directory, supervision=environment.supervision)
        may_write = lock.may_write if lock is not None else lambda: True
        self._events = RunEvents(directory, sinks, may_write=may_write)
        self._saving = RunSaving(
            None if directory is None or lock is None else ArrayStore(directory, before_commit=lock.require),
            self._events,
            every=None if save_every is None else whole_number(save_every, name="save_every"),
            lock=lock,
            fresh=environment.swell_fresh and not environment.restart_count,
        )
        self._optimizer: ElasticOptimizer | None = None
        self._processes: Processes | None = None
        self._training: Training | None = None

    def close(self) -> None:
        """Let another process write ``directory``; only needed after a ``fit`` that was interrupted."""
        self._saving.release()

    def optimizer(self, inner: Any) -> ElasticOptimizer:
        """Wrap an optimizer, given as Keras takes it: an object, a name such as ``"adam"``, a configuration dict."""
        wrapped = ElasticOptimizer(inner, measured=self._statistics is not None)
        self._processes = processes_of(wrapped)
        self.rule = rule_for(self._rule_choice, wrapped.inner)
        refuse_dual(self.rule, "swell.keras")
        wrapped.follow(self.rule, preconditioned=needs_preconditioned(self.rule), processes=self._processes)
        self._optimizer = wrapped
        if self._training is not None:
            self._training.follow(wrapped, self._processes, self.rule)
        return wrapped

    def data(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        class_weight: Mapping[int, float] | None = None,
        shuffle: bool = True,
        length: int | None = None,
    ) -> ElasticData:
        """What to give ``fit`` as ``x``: arrays, a ``PyDataset``, a ``tf.data.Dataset`` (of batches), a torch data set.

        The batch size of a ``PyDataset`` or ``tf.data.Dataset`` is only how it is read; swell cuts its samples into
        other batches. ``length``, in samples, is needed if a ``tf.data.Dataset`` does not know its own. Give
        ``class_weight`` here and not to ``fit``, which would leave it unused.
        """
        if self._optimizer is None or self._processes is None:
            raise LoopError(
                "elastic.data was called before elastic.optimizer; expected a compiled model. Compile first: "
                "model.compile(optimizer=elastic.optimizer('adam'), ...)."
            )
        source = as_source(x, y, sample_weight, shuffle=shuffle, seed=self._seed, length=length)
        if class_weight is not None:
            source = ClassWeighted(source, class_weight)
        training = self._training
        if training is None:
            steps = StepSequence(
                self.policy,
                self.rule,
                length=source.length,
                seed=self._seed,
                micro=self._micro,
                statistics=self._statistics,
                drop_last=self._drop_last,
            )
            training = self._training = Training(
                steps, source, self._optimizer, self._processes, saving=self._saving, events=self._events
            )
        elif source.length != training.source.length:
            raise DataError(
                f"the data has {source.length} samples; expected {training.source.length}, as before, because one run "
                "has one data set. Make a new Elastic for other data."
            )
        training.source = source
        training.steps.is_training = False  # a fit that was cut off did not reset it
        return ElasticData(source, training.steps, self._optimizer, training.prepare)

    def fit(self, model: Any, x: Any, y: Any = None, **options: Any) -> Any:
        """Train a compiled model; ``options`` are those of ``model.fit``, and its history is returned.

        If the model is compiled with a plain optimizer, the optimizer is wrapped first and keeps its state.
        ``shuffle``, ``sample_weight``, ``class_weight`` and ``length`` go to :meth:`data`.
        """
        if not getattr(model, "compiled", False):
            raise LoopError(
                "the model is not compiled; expected a compiled one. Call model.compile(optimizer=..., loss=...) first."
            )
        refuse_options(options)
        if not isinstance(model.optimizer, ElasticOptimizer):
            self._wrap(model, model.optimizer)
        elif not model.optimizer.followed:  # loaded from a file
            self._wrap(model, model.optimizer.inner)
        elif model.optimizer is not self._optimizer:
            raise ConfigError(
                "the model is compiled with another Elastic's optimizer; expected this one's. Use that Elastic, or "
                "compile the model with model.optimizer.inner."
            )
        names = ("sample_weight", "class_weight", "shuffle", "length")
        chosen = {name: options.pop(name) for name in names if name in options}
        callbacks = [self, *keras.tree.flatten(options.pop("callbacks", None) or [])]
        return model.fit(self.data(x, y, **chosen), callbacks=callbacks, **options)

    def _wrap(self, model: Any, inner: Any) -> None:
        refuse_loss_scale(inner)
        strategy = getattr(model, "distribute_strategy", None)  # TensorFlow's; variables belong in its scope
        if strategy is not None:
            with strategy.scope():
                model.optimizer = self.optimizer(inner)
        else:
            model.optimizer = self.optimizer(inner)
        model.train_function = None

    @property
    def noise(self) -> NoiseEstimate | None:
        """Smoothed signal and noise of the gradient with an interval; None before the first measurement."""
        if self._training is None:
            return None
        self._training.steps.drain()
        return self._training.steps.noise

    @property
    def samples(self) -> int:
        """Samples committed so far, over all epochs."""
        return 0 if self._training is None else self._training.steps.trained.ledger.samples

    @property
    def steps(self) -> int:
        """Optimizer updates committed so far."""
        return 0 if self._training is None else self._training.steps.trained.pace.step

    @property
    def progress(self) -> float:
        """How many base steps the steps so far are worth."""
        return 0.0 if self._training is None else self._training.steps.trained.pace.progress

    @property
    def global_batch(self) -> int:
        """The global batch of the last step."""
        return self.policy.base if self._training is None else self._training.steps.trained.pace.batch

    @property
    def gain(self) -> float:
        """How many base steps the last step was worth."""
        return 1.0 if self._training is None else self._training.steps.gain

    # What Keras calls

    def set_params(self, params: dict[str, Any]) -> None:
        """Hide how many passes an epoch has: it is unknown, and the progress bar would show a wrong number."""
        super().set_params(params)
        if params is not None:
            params["steps"] = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._ready().start(self.model, epochs=self.params.get("epochs"))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._ready().start_epoch(epoch, epochs=self.params.get("epochs"))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._ready().start_pass()

    def on_test_begin(self, logs: Any = None) -> None:
        if self._training is not None:
            self._training.settle()  # so that validation is no part of the step's time

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._ready().end_epoch(epoch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._ready().end()

    def _ready(self) -> Training:
        """The training that this callback drives, once the model and the data are known to fit it."""
        if self.model is not None:
            require_matching(self.model, self._optimizer)
        if self._training is None:
            raise LoopError(
                "fit was not given elastic.data; expected it as x. Call model.fit(elastic.data(x, y), "
                "callbacks=[elastic])."
            )
        return self._training
