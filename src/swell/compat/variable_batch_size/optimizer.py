"""Accumulate or update: what ``optimizer.step()`` does after each minibatch of a trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from swell.compat.variable_batch_size.exchange import Exchange
from swell.compat.variable_batch_size.sampler import CustomSampler
from swell.compat.wrapping import WrappingOptimizer
from swell.core.protocols import Collective, Rule
from swell.core.types import Factors, MicroBatch, ScaleState
from swell.errors import CheckpointError, ConfigError, LoopError
from swell.gradients.factors import BiasClock, scaled
from swell.rules import Constant


class CustomOptimizer(WrappingOptimizer):
    """An optimizer that steps when the trace's batch is complete, on all replicas with the same gradient.

    The gradient of a step is the mean over its samples (their sum in minibatches, with ``reduction="sum"``), whatever
    each replica computed of them. A replica that has nothing in a step takes part in its exchange with nothing: within
    the ``step()`` before it, or within ``set_epoch`` where an epoch begins so.

    Args:
        optimizer: any optimizer; shared, not copied. Schedulers may be given either.
        sampler: the ``CustomSampler`` of the loader.
        log_steps: print every so many steps, on rank 0.
        reduction: ``"mean"`` or ``"sum"`` over the minibatches of a step.
        rule: how the learning rate follows the batch; a subclass has its own.
        ref_batchsize: the batch the learning rate was tuned for.
        collective: how replicas speak; over the script's process group unless given, or over XLA for parameters there.
    """

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
            raise ConfigError(f"ref_batchsize is {ref_batchsize}; expected the batch the learning rate was tuned for.")
        self._rule: Rule = Constant() if rule is None else rule
        self._log_steps, self._reduction = log_steps, reduction
        self._exchange = Exchange(optimizer, collective, replicas=sampler.num_replicas, rank=sampler.rank)
        self._clock = BiasClock()
        self._begin(sampler.epoch)
        self._ready = not self._idle()  # an epoch that begins with nothing to do for us needs set_epoch first

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, after the sampler did. Blocks while steps pass in which this replica has nothing to do."""
        if epoch != self.sampler.epoch:
            raise LoopError(
                f"the optimizer is told epoch {epoch}, the sampler is at {self.sampler.epoch}. Call "
                "sampler.set_epoch(epoch) and then optimizer.set_epoch(epoch) before each epoch."
            )
        if self._substep:
            raise LoopError(
                f"epoch {self._epoch} ended with {self._substep} of {len(self._share())} minibatches of a step "
                "accumulated. Call step() after every minibatch of the loader."
            )
        if self.sampler.first_step < self._step < len(self._sizes) and epoch != self._epoch:
            warnings.warn(
                f"epoch {self._epoch} is left after {self._step} of {len(self._sizes)} steps. If the loop did not "
                "break off on purpose, it must call step() after every minibatch of the loader.",
                stacklevel=2,
            )
        self._begin(epoch)
        self._pass_idle_steps()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> bool:  # type: ignore[override]
        """Take the gradients of one minibatch. True where the weights were updated, False where they only add up."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        if not self._ready or self._step >= len(self._sizes):
            raise LoopError(
                f"epoch {self._epoch} has no minibatch left for rank {self.sampler.rank}, or did not begin: call "
                "set_epoch on sampler and optimizer before each epoch, and step() once after each minibatch."
            )
        micro = self._share()[self._substep]
        self._exchange.take(micro.weight * self._share_factor())
        self._substep += 1
        if self._substep < len(self._share()):
            return False
        self._update()
        self._pass_idle_steps()
        return True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: gradients are cleared by ``step()``."""

    def get_bs(self) -> int:
        """The batch size of the current step."""
        return self._sizes[min(self._step, len(self._sizes) - 1)]

    def get_lr(self) -> list[float]:
        """The learning rate of each group, without the rule's factor."""
        return [float(group["lr"]) for group in self.param_groups]

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every group; the rule's factor comes on top."""
        for group in self.param_groups:
            group["lr"] = lr

    def current_lr(self) -> float:
        """The learning rate of the first group as the current step uses it."""
        return float(self.param_groups[0]["lr"]) * self._factors()[0].lr

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and the place in the trace, safe to load with ``weights_only=True``."""
        if self._substep:
            raise LoopError("a step is half accumulated: make checkpoints after a step() that returned True.")
        saved = super().state_dict()
        return {**saved, "variable_batch_size": {"epoch": self._epoch, "step": self._step, **self._own_state()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint, in the middle of an epoch too and on any number of replicas; moves the sampler."""
        own = state_dict.get("variable_batch_size")
        if own is None:
            raise CheckpointError("not a checkpoint of this optimizer: load what its state_dict() gave.")
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "variable_batch_size"})
        self.sampler.resume(int(own["epoch"]), int(own["step"]))
        self._load_own_state(own)
        self._begin(self.sampler.epoch)
        self._ready = not self._idle()

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError("an optimizer that follows a sampler cannot be pickled or copied; save its state_dict().")

    # What a rule may add -----------------------------------------------------------------------------------------

    def _factors(self) -> list[Factors]:
        """The rule's factors of each group for the current step."""
        state = ScaleState(scale=self.get_bs() / self.ref_batchsize, base_batch=self.ref_batchsize)
        return [self._rule.factors(state) for _ in self.param_groups]

    def _observe(self) -> None:
        """See the gradient of the whole step before it is used."""

    def _own_state(self) -> dict[str, Any]:
        return {}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        pass

    # The place in the trace --------------------------------------------------------------------------------------

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._sizes = self.sampler.get_epochtrace(epoch)
        self._step = self.sampler.first_step if epoch == self.sampler.epoch else 0
        self._substep = 0
        self._exchange.clear()

    def _share(self) -> tuple[MicroBatch, ...]:
        return self.sampler.share(self._sizes[self._step])

    def _share_factor(self) -> float:
        """What makes weights that add up to 1 those of a sum over minibatches, where a sum is asked for."""
        return 1.0 if self._reduction == "mean" else self._sizes[self._step] / self.sampler.minibatch_size

    def _idle(self) -> bool:
        return self._step < len(self._sizes) and not self._share()

    def _pass_idle_steps(self) -> None:
        """Take part in the steps this replica has nothing in, so that its weights are those of its next forward."""
        while self._idle():
            self._update()
        self._ready = True

    def _update(self) -> None:
        self._exchange.sum()
        self._observe()
        with scaled(self._optimizer, self._factors(), self._clock):
            self._optimizer.step()
        if self._log_steps and self.sampler.rank == 0 and self._step % self._log_steps == 0:
            print(f"epoch {self._epoch} step {self._step}: batch size {self.get_bs()}, lr {self.current_lr():.6g}")
        self._exchange.clear()
        self._step += 1
        self._substep = 0
