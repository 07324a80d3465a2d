"""The scaling rules of ETH's module, each an optimizer: linear, root, constant, AdaScale, linear by summing."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.optim import Optimizer

from swell.compat.variable_batch_size.optimizer import CustomOptimizer
from swell.compat.variable_batch_size.sampler import CustomSampler
from swell.core.moment_average import MomentAverage
from swell.core.protocols import Collective
from swell.core.types import Factors, ScaleState
from swell.rules import AdaScale, Constant, Linear, Root

DEFAULT_DECAY = 1e-4  # the original's, if no weight decay is given anywhere


class _BatchRuleOptimizer(CustomOptimizer):
    """An optimizer whose rule looks at nothing but the batch size."""

    def __init__(
        self,
        optimizer: Optimizer,
        sampler: CustomSampler,
        ref_batchsize: int,
        log_steps: int | None = None,
        *,
        collective: Collective | None = None,
    ) -> None:
        super().__init__(optimizer, sampler, log_steps, ref_batchsize=ref_batchsize, collective=collective)


class LinearRuleOptimizer(_BatchRuleOptimizer):
    """Learning rate times ``B / ref_batchsize``: ``swell.rules.Linear``."""

    default_rule = Linear()


class RootRuleOptimizer(_BatchRuleOptimizer):
    """Learning rate times the root of ``B / ref_batchsize``: ``swell.rules.Root``."""

    default_rule = Root()


class ConstantOptimizer(CustomOptimizer):
    """The learning rate as it is, at any batch size: ``swell.rules.Constant``."""

    default_rule = Constant()

    def __init__(
        self,
        optimizer: Optimizer,
        sampler: CustomSampler,
        ref_batchsize: int | None = None,
        log_steps: int | None = None,
        *,
        collective: Collective | None = None,
    ) -> None:
        super().__init__(optimizer, sampler, log_steps, ref_batchsize=ref_batchsize, collective=collective)


class AdaScaleOptimizer(CustomOptimizer):
    """Learning rate times the gain of the batch over ``ref_batchsize``: ``swell.rules.AdaScale``, group by group.

    Signal and noise come from ``swell.core``: smoothed over samples, corrected for the start, never rescaled.
    """

    default_rule = AdaScale()

    def __init__(
        self,
        optimizer: Optimizer,
        sampler: CustomSampler,
        log_steps: int | None = None,
        ref_batchsize: int = 32,
        *,
        collective: Collective | None = None,
    ) -> None:
        super().__init__(optimizer, sampler, log_steps, ref_batchsize=ref_batchsize, collective=collective)
        self._average = MomentAverage(base_batch=ref_batchsize)
        self._unmeasured = 0  # samples since the last measured step

    def gain(self) -> tuple[float, ...]:
        """The gain of each parameter group at the current batch size; 1 until a step was measured."""
        return tuple(factors.lr for factors in self._factors())

    def _observe(self) -> None:
        size = self.get_bs()
        count = self.sampler.plan(size).num_micro_batches
        self._unmeasured += size
        if count < 2:  # a single minibatch says nothing about the noise
            return
        self._average.update(self._gradients.squares(), count=count, batch=size, samples_between=self._unmeasured)
        self._unmeasured = 0

    def _factors(self) -> list[Factors]:
        estimate = self._average.estimate()
        state = ScaleState(scale=self.get_bs() / self.ref_batchsize, base_batch=self.ref_batchsize)
        groups = [None] * len(self.param_groups) if estimate is None else estimate.groups
        return [self._rule.factors(dataclasses.replace(state, moments=moments)) for moments in groups]

    def _own_state(self) -> dict[str, Any]:
        return {"moments": self._average.state_dict(), "unmeasured": self._unmeasured}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self._average.load_state_dict(state["moments"])
        self._unmeasured = int(state["unmeasured"])


class LinearRuleMomentumOptimizer(CustomOptimizer):
    """The linear rule with the batch in the gradient instead of the learning rate, so that momentum keeps its unit.

    The gradients of the step's minibatches are summed, the learning rate is that of one minibatch, and weight decay is
    applied once for each minibatch. ``weight_decay`` is used for every group. Without it each group keeps its own, or
    gets 1e-4 if no group has one, as in the original.
    """

    default_rule = Linear()

    def __init__(
        self,
        optimizer: Optimizer,
        sampler: CustomSampler,
        ref_batchsize: int,
        weight_decay: float | None = None,
        log_steps: int | None = None,
        *,
        collective: Collective | None = None,
    ) -> None:
        super().__init__(optimizer, sampler, log_steps, "sum", ref_batchsize=ref_batchsize, collective=collective)
        without_decay = all(not group.get("weight_decay") for group in self.param_groups)
        self._decay = DEFAULT_DECAY if weight_decay is None and without_decay else weight_decay

    def _factors(self) -> list[Factors]:
        minibatch = self.sampler.minibatch_size
        state = ScaleState(scale=minibatch / self.ref_batchsize, base_batch=self.ref_batchsize)
        decay = self.get_bs() / minibatch
        return [dataclasses.replace(self._rule.factors(state), weight_decay=decay) for _ in self.param_groups]

    def _update(self) -> None:
        before = [group.get("weight_decay") for group in self.param_groups]
        if self._decay is not None:
            for group in self.param_groups:
                group["weight_decay"] = self._decay
        try:
            super()._update()
        finally:
            for group, decay in zip(self.param_groups, before, strict=True):
                if decay is not None:
                    group["weight_decay"] = decay
