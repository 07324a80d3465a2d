"""Accumulate or update: what ``optimizer.step()`` does after each minibatch of a trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch.optim import Optimizer

from swell.compat.variable_batch_size.sampler import CustomSampler
from swell.compat.variable_batch_size.step_gradients import StepGradients
from swell.compat.variable_batch_size.trace_position import TracePosition
from swell.compat.wrapping import WrappingOptimizer
from swell.core.protocols import Collective, Rule
from swell.core.types import Factors, ScaleState
from swell.errors import CheckpointError, ConfigError, LoopError
from swell.gradients.factors import BiasClock, scaled
from swell.rules import Constant


class CustomOptimizer(WrappingOptimizer):
    """An optimizer that steps when the trace's batch is complete, on all replicas with the same gradient.

    The gradient of a step is the mean over its samples, or with ``reduction="sum"`` the sum over its minibatches,
    however they are spread over replicas. A replica without a minibatch in a step still takes part in the exchange, in
    the ``step()`` before it, or in ``set_epoch`` if the epoch starts with such a step.

    Args:
        optimizer: any optimizer; shared, not copied. Schedulers may be given either.
        sampler: the ``CustomSampler`` of the loader.
        log_steps: print a line every ``log_steps`` steps, on rank 0.
        reduction: ``"mean"`` or ``"sum"`` over the minibatches of a step.
        rule: how the learning rate follows the batch; by default the subclass's own.
        ref_batchsize: the batch the learning rate was tuned for.
        collective: how replicas communicate; by default over the script's process group, or over XLA for parameters
            on an XLA device.
    """

    default_rule: ClassVar[Rule] = Constant()
    """The rule of this class."""

    def __init__(
        self,
        optimizer: Optimizer,
        sampler: CustomSampler,
        log_steps: int | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        *,
        rule: Rule | None = None,
        ref_batchsize: int | None = None,
        collective: Collective | None = None,
    ) -> None:
        if reduction not in ("mean", "sum"):
            raise ConfigError(f"reduction is {reduction!r}; expected 'mean' or 'sum'.")
        super().__init__(optimizer)
        self.sampler = sampler
        self.ref_batchsize = sampler.minibatch_size if ref_batchsize is None else ref_batchsize
        if self.ref_batchsize < 1:
            raise ConfigError(
                f"ref_batchsize is {ref_batchsize}; expected 1 or more. Pass the batch the learning rate was tuned for."
            )
        self._rule = self.default_rule if rule is None else rule
        self._log_steps, self._reduction = log_steps, reduction
        self._gradients = StepGradients(optimizer, collective, replicas=sampler.num_replicas, rank=sampler.rank)
        self._clock = BiasClock()
        self._position = TracePosition(sampler)
        self._ready = not self._position.idle  # if an epoch starts with an idle step, set_epoch must come first

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, after the sampler did. Blocks during steps in which this replica has no minibatch."""
        position = self._position
        if epoch != self.sampler.epoch:
            raise LoopError(
                f"epoch is {epoch}; expected the sampler's, {self.sampler.epoch}. Call sampler.set_epoch(epoch) and "
                "then optimizer.set_epoch(epoch) before each epoch."
            )
        if position.accumulated:
            raise LoopError(
                f"epoch {position.epoch} ended with {position.accumulated} of {len(position.share)} minibatches of a "
                "step accumulated; expected all of them. Call step() after every minibatch of the loader."
            )
        if position.left_early and epoch != position.epoch:
            warnings.warn(
                f"epoch {position.epoch} was left after {position.step} of {len(position.sizes)} steps. If this was "
                "not intended, call step() after every minibatch of the loader.",
                stacklevel=2,
            )
        self._start(epoch)
        self._pass_idle_steps()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> bool:  # type: ignore[override]
        """Take the gradients of one minibatch. True if the weights were updated, False if they only accumulate."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        position = self._position
        if not self._ready or position.over:
            raise LoopError(
                f"epoch {position.epoch} has no minibatch left for rank {self.sampler.rank}, or has not started; "
                "expected one step() after each minibatch. Call set_epoch on sampler and optimizer before each epoch."
            )
        self._gradients.add(position.share[position.accumulated].weight * self._sum_factor())
        position.accumulated += 1
        if position.accumulated < len(position.share):
            return False
        self._update()
        self._pass_idle_steps()
        return True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: ``step()`` clears the gradients."""

    def get_bs(self) -> int:
        """The batch size of the current step."""
        return self._position.batch

    def get_lr(self) -> list[float]:
        """The learning rate of each group, without the rule's factor."""
        return [float(group["lr"]) for group in self.param_groups]

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every group, without the rule's factor."""
        for group in self.param_groups:
            group["lr"] = lr

    def current_lr(self) -> float:
        """The learning rate of the first group in the current step, with the rule's factor."""
        return float(self.param_groups[0]["lr"]) * self._factors()[0].lr

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and the place in the trace, safe to load with ``weights_only=True``."""
        position = self._position
        if position.accumulated:
            raise LoopError(
                f"{position.accumulated} of {len(position.share)} minibatches of a step are accumulated; expected a "
                "complete step. Save after a step() that returned True."
            )
        saved = super().state_dict()
        return {**saved, "variable_batch_size": {"epoch": position.epoch, "step": position.step, **self._own_state()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint, also in the middle of an epoch or on other replicas; moves the sampler too."""
        own = state_dict.get("variable_batch_size")
        if own is None:
            raise CheckpointError(
                "state_dict has no entry 'variable_batch_size'; expected a checkpoint of this optimizer. Load what its "
                "state_dict() returned."
            )
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "variable_batch_size"})
        self.sampler.resume(int(own["epoch"]), int(own["step"]))
        self._load_own_state(own)
        self._start(self.sampler.epoch)

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError(
            "the optimizer follows a sampler, so it cannot be pickled or copied; expected its state_dict(). Save that."
        )

    def _factors(self) -> list[Factors]:
        """The rule's factors of each group for the current step."""
        state = ScaleState(scale=self.get_bs() / self.ref_batchsize, base_batch=self.ref_batchsize)
        return [self._rule.factors(state) for _ in self.param_groups]

    def _observe(self) -> None:
        """Look at the gradient of the whole step before it is used."""

    def _own_state(self) -> dict[str, Any]:
        return {}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        pass

    def _start(self, epoch: int) -> None:
        self._position.start(epoch)
        self._gradients.clear()
        self._ready = not self._position.idle

    def _sum_factor(self) -> float:
        """What turns weights that add up to 1 into those of a sum over minibatches, if a sum is asked for."""
        return 1.0 if self._reduction == "mean" else self._position.batch / self.sampler.minibatch_size

    def _pass_idle_steps(self) -> None:
        """Take part in the steps without a minibatch of this replica, so that its next forward pass has new weights."""
        while self._position.idle:
            self._update()
        self._ready = True

    def _update(self) -> None:
        self._gradients.exchange()
        self._observe()
        with scaled(self._optimizer, self._factors(), self._clock):
            self._optimizer.step()
        position = self._position
        if self._log_steps and self.sampler.rank == 0 and position.step % self._log_steps == 0:
            print(
                f"epoch {position.epoch} step {position.step}: batch size {self.get_bs()}, lr {self.current_lr():.6g}"
            )
        self._gradients.clear()
        position.advance()
