"""The one object a Keras user holds: it wraps the optimizer, gives the data, and rides along as a callback."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from swell.core.counts import whole_number
from swell.core.protocols import Sink
from swell.core.types import NoiseEstimate
from swell.errors import ConfigError, DataError, LoopError
from swell.integrations.keras import live
from swell.integrations.keras.adapter import ElasticData
from swell.integrations.keras.announcer import Announcer
from swell.integrations.keras.conductor import Conductor
from swell.integrations.keras.control import PLAIN, Control, control
from swell.integrations.keras.devices import devices_of, processes, workers_of
from swell.integrations.keras.hyperparameters import rule_for
from swell.integrations.keras.keeper import Keeper
from swell.integrations.keras.optimizer import ElasticOptimizer
from swell.integrations.keras.refusals import (
    refuse_fixed_batch,
    refuse_loss_scale,
    refuse_options,
    refuse_sums,
    require_matching,
)
from swell.integrations.keras.sources import ClassWeighted, as_source
from swell.integrations.keras.step import Step
from swell.policies import as_policy
from swell.policies.decision import require_noise
from swell.rules import as_rule
from swell.rules.metric import needs_preconditioned


class Elastic(keras.callbacks.Callback):
    """One global batch on any number of devices, a batch that moves by a policy, a learning rate that follows by rule.

    >>> elastic = swell.keras.Elastic(batch=256, micro=64)                           # doctest: +SKIP
    >>> model.compile(optimizer=elastic.optimizer("adam"), loss="mse")               # doctest: +SKIP
    >>> model.fit(elastic.data(x, y), epochs=5, callbacks=[elastic])                 # doctest: +SKIP

    or in one call, for a model that is compiled as ever: ``elastic.fit(model, x, y, epochs=5)``.

    Args:
        batch: the global batch: a number, or any policy of swell (``swell.Ramp``, ``swell.NoiseScale``, a trace, ...).
        base: the batch the learning rate was tuned for; the policy's own unless given.
        rule: how the learning rate follows: ``"auto"`` by the optimizer, a name, or any rule of swell.
        micro: the most samples one device computes at once; the base batch unless given. A global batch takes as many
            passes as it needs: whole ones and one with what is left.
        seed: of the order of samples, a function of ``(seed, epoch)`` alone.
        statistics: whether gradient noise is measured: every step, every so many steps, or never.
        drop_last: leave out the short step at the end of an epoch.
        directory: where to keep checkpoints and the log of events (``events.jsonl``); a run that finds a checkpoint
            there goes on from it, mid-epoch too, on any number of devices. Nothing is saved unless given.
        save_every: steps between checkpoints besides those at the end of each epoch.
        sinks: whatever else is told of each event: a ``swell.telemetry.TensorBoardSink``, an object of your own.
    """

    def __init__(
        self,
        batch: Any,
        *,
        base: int | None = None,
        rule: Any = "auto",
        micro: int | None = None,
        seed: int = 0,
        statistics: bool | int = True,
        drop_last: bool = False,
        directory: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        super().__init__()
        self.policy = as_policy(batch, base=base)
        self._rule_given = rule
        if rule != "auto":
            as_rule(rule)  # a wrong one is refused here, not at the first step
        self._micro = None if micro is None else whole_number(micro, name="micro")
        self._seed, self._drop_last = seed, drop_last
        if isinstance(statistics, bool):
            self._every = 1 if statistics else None
        else:
            self._every = whole_number(statistics, name="statistics")
        require_noise(self.policy, measured=self._every is not None)
        self._save_every = None if save_every is None else whole_number(save_every, name="save_every")
        self._announcer = Announcer(directory, sinks)
        self._keeper = Keeper(directory, self._announcer)
        self._optimizer: ElasticOptimizer | None = None
        self._conductor: Conductor | None = None
        self._world: Any = None  # processes with a share each
        self._workers: Any = None  # processes that compute each pass together
        self._step: Step | None = None
        self._passes_left, self._begun = 0, False
        self._began_s = 0.0
        self._quiet: Any = None

    # What the user calls

    def optimizer(self, inner: Any) -> ElasticOptimizer:
        """Wrap an optimizer, given as Keras takes it: an object, a name such as ``"adam"``, a configuration dict."""
        wrapped = ElasticOptimizer(inner, measured=self._every is not None)
        self._world, self._workers = processes(), workers_of(wrapped)
        self.rule = rule_for(self._rule_given, wrapped.inner)
        wrapped.follow(self.rule, preconditioned=needs_preconditioned(self.rule), exchange=self._world)
        self._optimizer = wrapped
        if self._conductor is not None:
            self._conductor.rule = self.rule
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

        The batch size of a ``PyDataset`` or ``tf.data.Dataset`` is only how it is read; swell cuts the samples anew.
        ``length``, in samples, is needed where a ``tf.data.Dataset`` does not know its own. ``class_weight`` is given
        here and not to ``fit``, which would leave it unused.
        """
        if self._optimizer is None:
            raise LoopError(
                "elastic.data was called before elastic.optimizer. Compile first: "
                "model.compile(optimizer=elastic.optimizer('adam'), ...)."
            )
        source = as_source(x, y, sample_weight, shuffle=shuffle, seed=self._seed, length=length)
        if class_weight is not None:
            source = ClassWeighted(source, class_weight)
        if self._conductor is None:
            self._conductor = Conductor(
                self.policy,
                self.rule,
                length=source.length,
                seed=self._seed,
                micro=self._micro,
                every=self._every,
                drop_last=self._drop_last,
            )
        elif source.length != self._conductor.ledger.length:
            raise DataError(
                f"this Elastic was given {self._conductor.ledger.length} samples before and {source.length} now; one "
                "run has one data set. Make a new Elastic for other data."
            )
        self._conductor.trains = False  # a fit that was cut off may not have said so
        self._source = source
        return ElasticData(source, self._conductor, self._optimizer, self._prepare)

    def fit(self, model: Any, x: Any, y: Any = None, **options: Any) -> Any:
        """Train a compiled model; ``options`` are those of ``model.fit``, and its history is returned.

        A model compiled with a plain optimizer has it wrapped first, its state kept. ``shuffle``, ``sample_weight``,
        ``class_weight`` and ``length`` go to :meth:`data`.
        """
        if not getattr(model, "compiled", False):
            raise LoopError("the model is not compiled. Call model.compile(optimizer=..., loss=...) first.")
        refuse_options(options)
        if not isinstance(model.optimizer, ElasticOptimizer):
            self._wrap(model, model.optimizer)
        elif not model.optimizer.followed:  # as loaded from a file
            self._wrap(model, model.optimizer.inner)
        elif model.optimizer is not self._optimizer:
            raise ConfigError(
                "the model was compiled with another Elastic's optimizer. Use that Elastic, or compile the model with "
                "model.optimizer.inner."
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

    # What is known

    @property
    def noise(self) -> NoiseEstimate | None:
        """Smoothed signal and noise of the gradient with an interval; None until it was measured."""
        if self._conductor is None:
            return None
        self._conductor.drain()
        return self._conductor.noise

    @property
    def samples(self) -> int:
        """Samples committed so far, over all epochs."""
        return 0 if self._conductor is None else self._conductor.ledger.samples

    @property
    def steps(self) -> int:
        """Optimizer updates committed so far."""
        return 0 if self._conductor is None else self._conductor.step

    @property
    def progress(self) -> float:
        """Base steps that the steps so far are worth."""
        return 0.0 if self._conductor is None else self._conductor.progress

    @property
    def global_batch(self) -> int:
        """The global batch of the last step."""
        return self.policy.base if self._conductor is None else self._conductor.batch

    @property
    def gain(self) -> float:
        """How many base steps the last step was worth."""
        return self._last_gain

    _last_gain = 1.0

    # The callback

    def set_params(self, params: dict[str, Any]) -> None:
        """Keras asks how many passes an epoch has before it begins; nobody knows, and the progress bar should not."""
        super().set_params(params)
        if params is not None:
            params["steps"] = None

    def on_train_begin(self, logs: Any = None) -> None:
        conductor, optimizer = self._ready()
        refuse_sums(getattr(self.model, "loss", None))
        refuse_fixed_batch(self.model)
        self._build()
        self._keeper.restore(self.model, conductor, self._world or self._workers)
        conductor.iterations = int(keras.ops.convert_to_numpy(optimizer.iterations)) - conductor.step
        self._prepare()
        if self._world is not None:
            self._world.broadcast([*self.model.variables, *optimizer.inner.variables])
        optimizer.begin_step()
        self._step, self._passes_left, self._begun = None, 0, False
        live.write(self.model, optimizer._place, 0)
        self._tell(PLAIN)
        if self.params.get("epochs"):
            begun = conductor.ledger.samples - conductor.ledger.cursor % conductor.ledger.length
            epochs = self.params["epochs"] - (self.model._initial_epoch or 0)
            conductor.expect(begun + epochs * conductor.ledger.length)
        if self._workers is not None:
            self.model.train_function = self._workers.train_function(self.model)
        peers = self._world or self._workers
        self._announcer.quiet |= peers is not None and not peers.chief
        self._announcer.run_started(conductor, seed=self._seed)
        conductor.trains = True
        self._quiet = warnings.catch_warnings()
        self._quiet.__enter__()
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        self._began_s = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        conductor, optimizer = self._ready()
        conductor.restart()
        optimizer.begin_step()
        live.write(self.model, optimizer._place, 0)  # the epoch before may have been left halfway through a step
        self._step, self._passes_left, self._begun = None, 0, False
        self._began_s = time.perf_counter()
        epochs = self.params.get("epochs")
        self._announcer.epoch_started(conductor, epoch=epoch, epochs=epochs, optimizer=optimizer)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._settle()
        if self._step is None:
            conductor, _ = self._ready()
            step = conductor.step_to_train()
            if step is None:
                return  # the epoch is over, as Keras is about to find out
            self._step, self._passes_left = step, len(step.passes)
            weights = [one.weight for one in step.passes]
            self._tell(control(weights, step.factors, effective_step=step.effective_step))
        self._begun = True

    def _settle(self) -> None:
        """Count the pass that was begun last, now that it is trained, and its step if it was the last of it.

        Not in ``on_train_batch_end``: for a callback that has one, Keras waits for the device in every pass to show it
        the metrics.
        """
        step = self._step
        if not self._begun or step is None:
            return
        self._begun = False
        if self._ready()[0].unread(step):
            raise LoopError("fit trains on data swell did not give it. Call model.fit(elastic.data(x, y), ...).")
        self._passes_left -= 1
        if self._passes_left == 0:
            self._step = None
            self._commit(step)

    def on_test_begin(self, logs: Any = None) -> None:
        self._settle()  # so that validation is no part of the step's time

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._settle()
        conductor, _ = self._ready()
        if logs is not None:
            logs.update(self._figures())
        if conductor.finished:
            self.model.stop_training = True
        self._announcer.epoch_ended(conductor, epoch=epoch, metrics=logs or {})
        self._keeper.save(self.model, conductor, self._world or self._workers)

    def on_train_end(self, logs: Any = None) -> None:
        conductor, _ = self._ready()
        conductor.trains = False
        conductor.drain()
        self._tell(PLAIN)
        self.model._initial_epoch = None  # it was for this fit alone
        if self._workers is not None:
            self.model.train_function = None  # as Keras makes it
        self._announcer.run_ended(conductor)
        if self._quiet is not None:
            self._quiet.__exit__(None, None, None)
            self._quiet = None

    # Parts of it

    def _commit(self, step: Step) -> None:
        conductor, optimizer = self._ready()
        now = time.perf_counter()
        step_s, self._began_s = now - self._began_s, now
        peers = self._world or self._workers
        if peers is not None:
            step_s = max(peers.numbers(step_s))  # so that all decide by the same figure
        if self._world is not None:
            self._world.average(self.model.non_trainable_variables)
        figures = live.snapshot(self.model, optimizer._figures) if step.measured else None
        scale = float(optimizer.inner.loss_scale_factor or 1.0) ** 2

        def read() -> tuple[list[float], list[float]]:
            numbers = [number / scale for number in live.numbers(figures)]
            return numbers[:2], numbers[2:]

        before = conductor.batch
        conductor.commit(step, read, step_s=step_s)
        self._last_gain = step.gain
        self._announcer.stepped(conductor, step, before=before, step_s=step_s)
        if self._save_every is not None and conductor.step % self._save_every == 0:
            self._keeper.save(self.model, conductor, peers)

    def _build(self) -> None:
        """Create the optimizer's variables, and the model's, where Keras would wait for the first step to do so."""
        assert self._optimizer is not None
        if self._optimizer.built:
            return
        strategy = getattr(self.model, "distribute_strategy", None)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            if not self.model.built or not self.model.variables:
                self.model(self._source.take(0, 0, 1)[0], training=False)
            self._optimizer.build(self.model.trainable_variables)

    def _tell(self, told: Control) -> None:
        _, optimizer = self._ready()
        optimizer.tell(told, lambda variable, value: live.write(self.model, variable, value))

    def _figures(self) -> dict[str, float]:
        conductor, _ = self._ready()
        noise = self.noise
        found = {"global_batch": conductor.batch, "gain": self._last_gain, "progress": conductor.progress}
        if noise is not None:
            found["noise_scale"] = noise.total.noise_scale
        return {name: float(value) for name, value in found.items()}

    def _prepare(self) -> None:
        conductor = self._conductor
        assert conductor is not None and self._optimizer is not None
        conductor.devices = devices_of(self._optimizer)
        if self._world is not None:
            conductor.replicas, conductor.rank = self._world.size, self._world.rank

    def _ready(self) -> tuple[Conductor, ElasticOptimizer]:
        if self.model is not None:
            require_matching(self.model, self._optimizer)
        if self._conductor is None or self._optimizer is None:
            raise LoopError("fit was not given elastic.data. Call model.fit(elastic.data(x, y), callbacks=[elastic]).")
        return self._conductor, self._optimizer
