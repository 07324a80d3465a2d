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

from swell.checkpoint.store import Store
from swell.checkpoint.transfer import share_state
from swell.compat.adaptdl.clipping import Clipping
from swell.compat.adaptdl.local_batch import LocalBatch
from swell.compat.adaptdl.patched_step import PatchedStep
from swell.compat.adaptdl.session import Session, open_session, session
from swell.core.moments import consecutive_differences, gain
from swell.core.planning import plan
from swell.errors import ConfigError, LoopError
from swell.job.state import capture_trainee, restore_trainee
from swell.job.trainee import Trainee
from swell.job.update import Position, Updater
from swell.loop.lr_schedule import LRSchedule
from swell.loop.metrics import Metrics
from swell.loop.pace import Pace
from swell.loop.step import StepInProgress
from swell.policies import Fixed, Goodput
from swell.rules import as_rule, auto
from swell.supervisor.notice import EXIT_RESUME


@dataclass(frozen=True, slots=True, kw_only=True)
class Reentry:
    """Where the program goes on."""

    epoch: int  # the first epoch that is not done
    local_bsz: int  # the batch each replica used last; the one to begin with in a new run
    metrics: dict[str, Any] = field(default_factory=dict)  # what the last ``step`` was given by name

    @property
    def resumed(self) -> bool:
        """Whether an earlier run goes on."""
        return self.epoch > 0


class AdaptDLTorchTrainer:
    """Elastic batches for a loop with a data loader of its own.

        trainer = AdaptDLTorchTrainer(args.bs, max_batch_size, local_bsz_bounds)
        state = trainer.program_reentry(model, optimizer, lr_scheduler)
        for epoch in range(state.epoch, args.epochs):
            batch_size = trainer.get_local_bsz()
            ...                                     # train with it; every replica takes its own part of the data
            trainer.step(epoch)

    Either bound makes the batch elastic. All replicas use the same local batch; with one replica it is ``batch_size``.
    ``optimizer.step()`` brings the replicas' gradients together and scales each group's learning rate for that step.
    ``rule`` is any rule of swell's; ``"auto"`` picks by optimizer.
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
        self._rule = rule
        self._trainee: Trainee | None = None
        self._pace = Pace(Fixed(batch_size), micro=None, constant_micro=False, capacity=None)
        self._scale, self._samples = 1.0, 0
        self._local, self._asked = batch_size, False
        self._ended_s, self._last_s = time.perf_counter(), 0.0
        self._before: list[list[Tensor | None]] = []  # the last step's gradients, for one replica's estimate

    def program_reentry(self, model: nn.Module, optimizer: Optimizer, lr_scheduler: Any | None = None) -> Reentry:
        """Take over model and optimizer, and go on from the newest checkpoint where there is one.

        Raises ``PlanError`` where the bounds leave no batch for this many replicas.
        """
        here = session() if session().opened else open_session(None)
        if here.world is None or here.world.elastic:
            raise ConfigError(
                "AdaptDLTorchTrainer cannot follow workers that come and go: its data loader is yours. Start the "
                "script with torchrun, or move to swell.Job for `swell run`."
            )
        self._here: Session = here
        self.bounds.range_on(self.replicas)
        rule = auto(type(optimizer).__name__) if self._rule == "auto" else as_rule(self._rule)
        trainee = self._trainee = Trainee(
            model,
            optimizer,
            rule=rule,
            scaler=None,
            schedule=None if lr_scheduler is None else LRSchedule(lr_scheduler, by="manual"),
            base_batch=self.bounds.batch_size,
            exact=True,
        )
        trainee.tells_loss = False
        self._updater = Updater(Metrics(), here.world.device, nonfinite="raise", exact=True)
        state = [*model.parameters(), *model.buffers()]
        here.collective.broadcast_tensors([tensor.detach() for tensor in state], source=0)
        self._patch = PatchedStep(
            optimizer, self._stepped, predict_gain=self.predict_gain, update_scale=self.update_scale
        )
        self._clipping = Clipping(optimizer, lambda: self._patch.inside)
        here.trainers.append(self)
        self._set_local(self._fitted(self.bounds.batch_size))
        found = self._resume()
        if here.notices is not None:
            here.notices.install()
        return found

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return self._here.collective.size

    def get_local_bsz(self) -> int:
        """The batch each replica uses in the epoch that begins; ask in every epoch, for it follows the gain.

        Every replica calls it and gets the same.
        """
        if self._trainee is None:
            raise LoopError("get_local_bsz was called before program_reentry. Call that first.")
        self._asked = True
        self._ended_s = time.perf_counter()  # what lies between two epochs is no part of a step
        replicas = self.replicas
        wanted = self.bounds.batch_size
        if self.bounds.elastic and replicas > 1:
            wanted = self._wanted(replicas)
            wanted = int(self._here.collective.gather_numbers([wanted])[0][0])
        self._set_local(self._fitted(wanted))
        return self._local

    def _fitted(self, global_batch: int) -> int:
        return self.bounds.near(global_batch, self.replicas) if self.replicas > 1 else self.bounds.batch_size

    def _wanted(self, replicas: int) -> int:
        """The global batch with most progress per second on these replicas."""
        low, high = self.bounds.range_on(replicas)
        if replicas * high <= self.bounds.batch_size:
            return replicas * high
        policy = Goodput(self.bounds.batch_size, max=replicas * high, micro=(low, high))
        assert self._trainee is not None and self._here.world is not None
        seen = self._pace.observe(
            replicas=replicas,
            nodes=self._here.world.nodes,
            noise=self._trainee.chosen_estimate(),
            samples=self._samples,
            epoch=0,
            epoch_samples=0,
            epoch_size=None,
            total_samples=None,
        )
        return policy.batch(seen)

    def _set_local(self, local: int) -> None:
        self._local = local
        self.update_scale(self.replicas * local / self.bounds.batch_size, self.replicas)

    def update_scale(self, scale: float, replicas: int) -> None:
        """Say that steps are now of ``scale`` times the initial batch, over ``replicas``; ``get_local_bsz`` does."""
        if not scale > 0 or replicas != self.replicas:
            raise ConfigError(
                f"update_scale(scale={scale}, replicas={replicas}): expected a scale above 0 and the {self.replicas} "
                f"replica(s) there are."
            )
        self._scale = float(scale)

    def predict_gain(self, scale: float) -> float:
        """How many initial steps one at ``scale`` times the initial batch would be worth."""
        estimate = None if self._trainee is None else self._trainee.chosen_estimate()
        moments = None if estimate is None else estimate.total
        return gain(scale, moments, base_batch=self.bounds.batch_size)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the gradient of all replicas together in the next ``optimizer.step()``; so does torch's own function."""
        if self._trainee is None:
            raise LoopError("clip_grad_norm_ was called before program_reentry. Call that first.")
        return self._clipping.norm(list(self._trainee.model.parameters()), max_norm, norm_type)

    def step(self, epoch: int, **metrics: Any) -> None:
        """The epoch is done: save, and exit with 143 if the program was asked to stop. Every replica calls it."""
        if self.bounds.elastic and self.replicas > 1 and not self._asked:
            warnings.warn(
                f"epoch {epoch} was trained with the batch of an earlier one: get_local_bsz() was not called in it. "
                f"Call it at the beginning of every epoch and use what it gives.",
                UserWarning,
                stacklevel=2,
            )
        self._asked = False
        self._save(epoch + 1, metrics)
        notices = self._here.notices
        noticed = notices is not None and notices.notice() is not None
        if self._here.folder is not None and any(
            row[0] for row in self._here.collective.gather_numbers([float(noticed)])
        ):
            self.close()
            raise SystemExit(EXIT_RESUME)

    def give_back(self) -> None:
        """Give the optimizer its own step again."""
        self._clipping.give_back()
        self._patch.give_back()

    def close(self) -> None:
        """Give the optimizer its own step and the signals their own meaning again."""
        self.give_back()
        if self._here.notices is not None:
            self._here.notices.uninstall()

    # What optimizer.step() does

    def _stepped(self, closure: Callable[[], Any] | None) -> None:
        if closure is not None:
            raise ConfigError(
                "optimizer.step(closure) cannot be scaled by this trainer, which never sees the loss. Call "
                "loss.backward() and optimizer.step(), or use swell.Job."
            )
        trainee, collective = self._trainee, self._here.collective
        assert trainee is not None
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
            self._measure_alone(trainee, batch)
        trainee.accumulator.weigh(share)
        trainee.accumulator.take(multiplier=share, measure=step.measured, preconditioned=trainee.wants_preconditioned)
        votes = self._updater.vote(collective, step, trainee, 0, (False, False, False), self._last_s, math.inf)
        outcome = self._updater.run(
            collective,
            step,
            trainee,
            votes,
            Position(scale=self._scale, progress=self._pace.progress, samples=self._samples, samples_between=batch),
            with_metrics=False,
            frozen=False,
            clip=None,
            closure=None,
            report=lambda loss: None,
        )
        trainee.clear()
        self._clipping.begin()
        world = self._here.world
        self._pace.timed(outcome.last_s)
        self._pace.committed(
            step.plan, batch=batch, samples=self._samples, gain=outcome.gain, nodes=world.nodes if world else 1
        )
        self._samples += batch
        now = time.perf_counter()
        self._last_s, self._ended_s = now - self._ended_s, now

    def _measure_alone(self, trainee: Trainee, batch: int) -> None:
        """One replica, one batch a step: signal and noise by the difference of two steps' gradients."""
        gradients = [p.grad for p in trainee.accumulator.parameters]
        now = [gradients]
        if trainee.wants_preconditioned:
            now.append(trainee.accumulator.preconditioner.divide(trainee.accumulator.parameters, gradients))
        for noise, old, new in zip((trainee.noise, trainee.preconditioned_noise), self._before, now, strict=False):
            apart = [None if a is None or b is None else b.to_dense() - a for a, b in zip(old, new, strict=True)]
            squares = [trainee.accumulator.norms.squares(g).tolist() for g in (old, new, apart)]
            noise.update_moments(
                [
                    consecutive_differences(before, square, (before + square - difference) / 2, batch=batch)
                    for before, square, difference in zip(*squares, strict=True)
                ],
                batch=batch,
            )
        self._before = [[None if g is None else g.detach().to_dense().clone() for g in each] for each in now]

    # Checkpoints

    def _save(self, epoch: int, metrics: dict[str, Any]) -> None:
        if self._here.folder is None or self._here.collective.rank != 0 or self._trainee is None:
            return
        state = {
            "trainer": {
                "epoch": epoch,
                "local": self._local,
                "scale": self._scale,
                "samples": self._samples,
                "metrics": metrics,
            },
            "trainee": capture_trainee(self._trainee),
            "pace": self._pace.state_dict(),
            "registered": {},  # what a session looks for in every checkpoint
        }
        Store(self._here.folder).save(state, samples=self._samples, step=self._pace.step)

    def _resume(self) -> Reentry:
        here, found = self._here, None
        if here.folder is not None and here.collective.rank == 0:
            newest = Store(here.folder).load_newest()
            found = None if newest is None else newest[1]
        found = share_state(found, collective=here.collective, source=0)
        if found is None or self._trainee is None:
            return Reentry(epoch=0, local_bsz=self._local)
        restore_trainee(self._trainee, found["trainee"])
        self._pace.load_state_dict(found["pace"])
        saved = found["trainer"]
        self._samples = saved["samples"]
        return Reentry(epoch=saved["epoch"], local_bsz=saved["local"], metrics=saved["metrics"])
