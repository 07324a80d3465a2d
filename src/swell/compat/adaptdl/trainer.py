"""The trainer of AdaptDL's older documentation: a batch for each epoch, and an optimizer whose step scales itself."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from swell.checkpoint.damage import damage_error
from swell.checkpoint.run_lock import RunLock
from swell.checkpoint.store import Store
from swell.checkpoint.transfer import share_state
from swell.compat.adaptdl.clipping import Clipping
from swell.compat.adaptdl.consecutive_gradients import ConsecutiveGradients
from swell.compat.adaptdl.local_batch import LocalBatch
from swell.compat.adaptdl.opening import open_session
from swell.compat.adaptdl.patched_step import PatchedStep
from swell.compat.adaptdl.session import Session, current_session
from swell.core.moments import gain
from swell.core.planning import plan
from swell.errors import ConfigError, LoopError
from swell.job.learner import Learner
from swell.job.update import Position, Updater
from swell.job.vote import NO_SIGNALS
from swell.loop.lr_schedule import LRSchedule
from swell.loop.metrics import Metrics
from swell.loop.pace import Pace
from swell.loop.step import StepInProgress
from swell.policies import Fixed, Goodput
from swell.rules import as_rule, auto_by_gain
from swell.rules.metric import refuse_dual
from swell.runtime.environment import read_environment
from swell.supervisor.notice import EXIT_RESUME


@dataclass(frozen=True, slots=True, kw_only=True)
class Reentry:
    """Where the program continues."""

    epoch: int  # the first epoch that is not done
    local_bsz: int  # the latest batch of each replica; in a new run, the first
    metrics: dict[str, Any] = field(default_factory=dict)  # the keyword arguments of the latest ``step``

    @property
    def resumed(self) -> bool:
        """Whether an earlier run continues."""
        return self.epoch > 0


class AdaptDLTorchTrainer:
    """Elastic batches for a loop with a data loader of its own.

        trainer = AdaptDLTorchTrainer(args.bs, max_batch_size, local_bsz_bounds)
        state = trainer.program_reentry(model, optimizer, lr_scheduler)
        for epoch in range(state.epoch, args.epochs):
            batch_size = trainer.get_local_bsz()
            ...                                     # train with it; every replica takes its own part of the data
            trainer.step(epoch)

    The batch is elastic if there is a bound. All replicas use the same local batch; one replica uses
    ``batch_size``, or ``max_batch_size`` if that is smaller.
    ``optimizer.step()`` sums the replicas' gradients and scales each group's learning rate for that step. ``rule`` is
    any of swell's rules; ``"auto"`` chooses by optimizer. ``learner`` has the rule and the measured noise; None before
    ``program_reentry``.
    """

    def __init__(
        self,
        batch_size: int,
        max_batch_size: int | None = None,
        local_bsz_bounds: tuple[int, int] | None = None,
        *,
        rule: Any = "auto",
    ) -> None:
        self.bounds = LocalBatch(batch_size, max_batch_size, local_bsz_bounds)
        self.learner: Learner | None = None
        self._rule = rule
        self._pace = Pace(Fixed(batch_size), micro=None, constant_micro=False, capacity=None)
        self._gradients = ConsecutiveGradients()
        self._scale, self._samples = 1.0, 0
        self._local_batch = batch_size
        self._fresh = False  # whether get_local_bsz was called in this epoch
        self._clock_s, self._last_s = time.perf_counter(), 0.0  # the end of the latest step, and how long it took

    def program_reentry(self, model: nn.Module, optimizer: Optimizer, lr_scheduler: Any | None = None) -> Reentry:
        """Take over model and optimizer, and continue from the newest checkpoint if there is one.

        Raises ``PlanError`` if the bounds allow no batch on this number of replicas.
        """
        session = current_session() if current_session().opened else open_session(None)
        if session.world is None or session.world.elastic:
            raise ConfigError(
                "AdaptDLTorchTrainer was started by `swell run`; expected a fixed number of workers, because the data "
                "loader is yours. Start the script with torchrun, or move to swell.Job."
            )
        self._session: Session = session
        self.bounds.range_on(self.replicas)
        rule = auto_by_gain(type(optimizer).__name__) if self._rule == "auto" else as_rule(self._rule)
        refuse_dual(rule, "AdaptDLTorchTrainer")
        learner = self.learner = Learner(
            model,
            optimizer,
            rule=rule,
            scaler=None,
            schedule=None if lr_scheduler is None else LRSchedule(lr_scheduler, by="manual"),
            base_batch=self.bounds.batch_size,
            exact=True,
        )
        learner.noise.reports_loss = False
        self._updater = Updater(Metrics(), session.world.device, nonfinite="raise", exact=True)
        state = [*model.parameters(), *model.buffers()]
        session.collective.broadcast_tensors([tensor.detach() for tensor in state], source=0)
        self._patch = PatchedStep(optimizer, self._step, predict_gain=self.predict_gain, update_scale=self.update_scale)
        self._clipping = Clipping(optimizer, lambda: self._patch.inside)
        session.closers.append(self.give_back)
        self._set_local_batch(self.bounds.batch_size)
        reentry = self._resume(learner)
        if session.notices is not None:
            session.notices.install()
        return reentry

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return self._session.collective.size

    def get_local_bsz(self) -> int:
        """The batch of each replica in the epoch that begins; call it in every epoch, because it follows the gain.

        Every replica calls it and gets the same batch.
        """
        learner = self._require_learner("get_local_bsz")
        self._fresh = True
        self._clock_s = time.perf_counter()  # the time between two epochs is no part of a step
        batch = self.bounds.batch_size
        if self.bounds.elastic and self.replicas > 1:
            batch = self._best_batch(learner)
            batch = int(self._session.collective.gather_numbers([batch])[0][0])
        self._set_local_batch(batch)
        return self._local_batch

    def _best_batch(self, learner: Learner) -> int:
        """The global batch with most progress per second on these replicas."""
        replicas = self.replicas
        low, high = self.bounds.range_on(replicas)
        if replicas * high <= self.bounds.batch_size:
            return replicas * high
        policy = Goodput(
            self.bounds.batch_size, max=replicas * high, micro=(low, high), slack=0.08, prefer="steps", price=None
        )
        assert self._session.world is not None
        observation = self._pace.observe(
            replicas=replicas,
            nodes=self._session.world.nodes,
            noise=learner.noise.estimate(),
            samples=self._samples,
            epoch=0,
            epoch_samples=0,
            epoch_size=None,
            total_samples=None,
        )
        return policy.batch(observation)

    def _set_local_batch(self, global_batch: int) -> None:
        """Set each replica's batch for a global one, and scale the steps to come."""
        replicas, base = self.replicas, self.bounds.batch_size
        self._local_batch = self.bounds.near(global_batch, replicas) if replicas > 1 else self.bounds.alone
        self.update_scale(replicas * self._local_batch / base, replicas)

    def update_scale(self, scale: float, replicas: int) -> None:
        """Set the size of the next steps to ``scale`` times the initial batch; ``get_local_bsz`` calls it."""
        if not scale > 0 or replicas != self.replicas:
            raise ConfigError(
                f"scale is {scale} and replicas is {replicas}; expected a scale above 0 and the {self.replicas} "
                f"replica(s) of the present world. Pass these to update_scale."
            )
        self._scale = float(scale)

    def predict_gain(self, scale: float) -> float:
        """The progress of one step at ``scale`` times the initial batch, in steps at the initial batch."""
        estimate = None if self.learner is None else self.learner.noise.estimate()
        moments = None if estimate is None else estimate.total
        return gain(scale, moments, base_batch=self.bounds.batch_size)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the gradient of all replicas in the next ``optimizer.step()``; torch's own function does the same."""
        learner = self._require_learner("clip_grad_norm_")
        return self._clipping.norm(list(learner.model.parameters()), max_norm, norm_type)

    def step(self, epoch: int, **metrics: Any) -> None:
        """The epoch is done: save, and exit with 143 if the program was asked to stop. Every replica calls it."""
        learner = self._require_learner("step")
        if self.bounds.elastic and self.replicas > 1 and not self._fresh:
            warnings.warn(
                f"epoch {epoch} was trained with the batch of an earlier one, because get_local_bsz() was not called "
                f"in it. Call it at the start of every epoch and use its result.",
                UserWarning,
                stacklevel=2,
            )
        self._fresh = False
        self._save(learner, epoch + 1, metrics)
        session = self._session
        noticed = session.notices is not None and session.notices.notice() is not None
        if session.folder is not None and any(row[0] for row in session.collective.gather_numbers([float(noticed)])):
            self.close()
            raise SystemExit(EXIT_RESUME)

    def give_back(self) -> None:
        """Restore the optimizer's own step."""
        self._clipping.give_back()
        self._patch.give_back()

    def close(self) -> None:
        """Restore the optimizer's own step and the handlers of signals."""
        self.give_back()
        if self._session.notices is not None:
            self._session.notices.uninstall()

    def _require_learner(self, call: str) -> Learner:
        if self.learner is None:
            raise LoopError(f"{call} was called before program_reentry; expected it after. Call program_reentry first.")
        return self.learner

    # What optimizer.step() does

    def _step(self, closure: Callable[[], Any] | None) -> None:
        if closure is not None:
            raise ConfigError(
                "closure was passed to optimizer.step; expected none, because this trainer never sees the loss. Call "
                "loss.backward() and optimizer.step(), or use swell.Job."
            )
        learner, collective, world = self.learner, self._session.collective, self._session.world
        assert learner is not None and world is not None
        batch = collective.size * max(1, round(self._scale * self.bounds.batch_size / collective.size))
        step = StepInProgress(
            epoch=0,
            start=self._samples,
            plan=plan(batch, collective.size),
            rank=collective.rank,
            measured=collective.size > 1,
        )
        step.hand_out(0)
        share = step.multiplier(None)
        if collective.size == 1:
            self._gradients.measure(learner, batch)
        learner.gradients.weigh(share)
        learner.gradients.take(multiplier=share, measure=step.measured, preconditioned=learner.wants_preconditioned)
        verdict = self._updater.vote(collective, step, learner, 0, NO_SIGNALS, self._last_s, math.inf)
        outcome = self._updater.run(
            collective,
            step,
            learner,
            verdict,
            Position(
                scale=self._scale,
                progress=self._pace.progress,
                samples=self._samples,
                samples_between=batch,
                batch=batch,
            ),
            with_metrics=False,
            frozen=False,
            clip=None,
            closure=None,
            report=lambda loss: None,
        )
        learner.clear()
        if learner.gradients.outdated:
            learner.follow_groups()
        self._clipping.begin()
        self._pace.timed(outcome.last_s)
        self._pace.committed(step.plan, batch=batch, samples=self._samples, gain=outcome.gain, nodes=world.nodes)
        self._samples += batch
        now = time.perf_counter()
        self._last_s, self._clock_s = now - self._clock_s, now

    # Checkpoints; the keys are those of their format

    def _save(self, learner: Learner, epoch: int, metrics: dict[str, Any]) -> None:
        if self._session.folder is None or self._session.collective.rank != 0:
            return
        state = {
            "trainer": {
                "epoch": epoch,
                "local": self._local_batch,
                "scale": self._scale,
                "samples": self._samples,
                "metrics": metrics,
            },
            "trainee": learner.state_dict(),
            "pace": self._pace.state_dict(),
            "registered": {},  # a session looks for it in every checkpoint
        }
        store = Store(self._session.folder, before_commit=self._lock.require)
        store.save(state, samples=self._samples, step=self._pace.step)

    def _resume(self, learner: Learner) -> Reentry:
        session, state = self._session, None
        if session.folder is not None and session.collective.rank == 0:
            store = Store(session.folder)
            self._lock = RunLock(session.folder, supervised=read_environment().supervised)
            self._lock.on_taken = store.take_over
            self._lock.acquire()
            newest = store.load_newest()
            state = None if newest is None else newest[1]
            if newest is None and (refusal := damage_error(store.damage, store.root)) is not None:
                raise refusal
        state = share_state(state, collective=session.collective, source=0)
        if state is None:
            return Reentry(epoch=0, local_bsz=self._local_batch)
        learner.load_state_dict(state["trainee"])
        self._pace.load_state_dict(state["pace"])
        saved = state["trainer"]
        self._samples = saved["samples"]
        return Reentry(epoch=saved["epoch"], local_bsz=saved["local"], metrics=saved["metrics"])
