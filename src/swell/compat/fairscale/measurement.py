"""The gradients of the step in progress: what they say, and how they become the mean of the step."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from swell.compat.fairscale.announced_step import AnnouncedStep
from swell.compat.fairscale.micro_batch_sizes import MicroBatchSizes
from swell.compat.fairscale.micro_gradients import MicroGradients
from swell.compat.fairscale.observation import MicroGradientObservation
from swell.compat.fairscale.replicas import Replicas
from swell.compat.fairscale.statistics import GradientStatistics
from swell.compat.fairscale.step_pairs import StepPairs
from swell.errors import ConfigError, LoopError
from swell.gradients.norms import WIDE
from swell.gradients.preconditioner import Preconditioner


class Measurement:
    """Measures gradients from the first backward() of a step to its step(), and tells the statistics.

    A copy or an unpickled object starts between two steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        announced: AnnouncedStep,
        statistics: GradientStatistics,
        replicas: Replicas,
        *,
        sizes: MicroBatchSizes | None,
        pairs: StepPairs | None,
    ) -> None:
        self._optimizer, self._announced = optimizer, announced
        self._statistics, self._replicas = statistics, replicas
        self.sizes, self._pairs = sizes, pairs
        self.ddp_divides_by_all = True  # or by the replicas that have not left
        self.attach()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "gradients"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.attach()

    def attach(self) -> None:
        """Measure the gradients of the optimizer's parameter groups as they are now."""
        groups = [group["params"] for group in self._optimizer.param_groups]
        for parameter in (p for group in groups for p in group):
            if hasattr(parameter, "placements"):
                raise ConfigError(
                    "a parameter is sharded (DTensor); expected whole parameters, because AdaScale cannot measure the "
                    "gradients of sharded ones. Train with DistributedDataParallel."
                )
        if "gradients" in self.__dict__:
            self.gradients.detach()
        metric = Preconditioner(self._optimizer) if len(self._statistics.averages) > 1 else None
        self.gradients = MicroGradients(
            groups, self._finish_backward, announced=self._announced, metric=metric, sizes=self.sizes
        )
        self.restart()

    def restart(self) -> None:
        """Forget the gradients of the step in progress."""
        self._divided = False  # whether the script has divided the gradients of this step
        self._mean_factor = 1.0  # makes the gradients in .grad their weighted mean
        self.step_scale = self._announced.scale  # the step's own batch in base batches
        self._statistics.observe(None)
        self.gradients.restart()

    def require_between_steps(self, action: str) -> None:
        """Refuse an action while some of the step's gradients are accumulated and some are not."""
        count, accumulation = self.gradients.micro_batches, self._announced.accumulation
        if 0 < count < accumulation:
            raise LoopError(
                f"{count} of {accumulation} gradients are accumulated; expected none or all, to {action}. Finish the "
                "accumulation, or call step(), which also takes a short one."
            )

    def require_announced(self) -> None:
        """Refuse more gradients than announced, and warn about a sum that should be a mean."""
        count, accumulation = self.gradients.micro_batches, self._announced.accumulation
        if self.gradients.too_many:
            raise LoopError(
                f"{count} gradients were accumulated since the last step; expected "
                f"num_gradients_to_accumulate={accumulation}. Step after every {accumulation}; if one micro-batch has "
                "several losses on the same parameters, add them up and call backward() once."
            )
        summed = not self._announced.is_scaled_loss and not self._divided and self.sizes is None
        if summed and accumulation > 1 and count:
            warnings.warn(
                "is_scaled_loss is False and scale_grad_by_num_grads_to_accum() was not called, so the step uses the "
                "sum of the gradients, not their mean. Call it before step().",
                stacklevel=3,
            )

    def divide(self) -> None:
        """Divide the gradients in ``.grad`` by how many were accumulated."""
        count = self.gradients.micro_batches or self._announced.accumulation
        if gradients := self._present():
            torch._foreach_div_(gradients, float(count))
        self._divided = True

    def make_mean(self) -> None:
        """Make the gradients in ``.grad`` the mean of fewer micro-batches than announced, or of uneven ones."""
        count, accumulation = self.gradients.micro_batches, self._announced.accumulation
        if not count:
            return
        if count < accumulation:
            self._observe(count)
        factor = 1.0
        if self.sizes is not None:
            divided_since = self._divided and count == accumulation  # after they were observed
            factor = self._mean_factor * (count if divided_since else 1)
        elif count < accumulation and self._announced.is_scaled_loss:
            factor = accumulation / count
        if factor != 1:
            self._multiply(factor)

    def unscale(self, scale: float, *, gradients: bool) -> None:
        """Take a loss scale out of what was measured, and out of the gradients in ``.grad`` if they still have it."""
        if gradients:
            self._multiply(1 / scale)
        if self._pairs is not None:
            self._pairs.unscale(scale)
        self._statistics.unscale(scale)

    def commit(self) -> None:
        """The step was taken: start the next one, and measure parameters that require a gradient by now."""
        if self.gradients.metric is not None:
            self.gradients.metric.stepped()
        if self._pairs is not None:
            self._pairs.commit()
        self.restart()
        self.gradients.attach()

    def reset(self) -> None:
        """Start between two steps after the optimizer's state was replaced."""
        if self.gradients.metric is not None:
            self.gradients.metric.reset()
        self.restart()

    def contribute_nothing(self) -> None:
        """Take part in the sum over replicas for one that has left."""
        first = self.gradients.parameters[0]
        length = len(self._statistics.averages) * self._statistics.num_groups + (self.sizes is not None)
        zeros = torch.zeros(length, dtype=WIDE.get(first.dtype, first.dtype), device=first.device)
        self._replicas.sum(zeros, present=False)

    def _finish_backward(self) -> None:
        """Called when a backward has ended and DDP has averaged its gradients over replicas."""
        if self.gradients.micro_batches == self._announced.accumulation:
            self._observe(self._announced.accumulation)

    def _observe(self, count: int) -> None:
        size, accumulation = self._replicas.size, self._announced.accumulation
        self._statistics.observe(None)
        whole = 1 if self.sizes is None else self.sizes.whole
        small, present, samples = self._summed(count)
        micro_batches = int(present) * count  # over all replicas that have not left
        self.step_scale = self._announced.scale * samples / (whole * size * accumulation)
        # Hooks measured gradients divided by the announced count, or not divided. Those in .grad are summed over the
        # micro-batches of a replica and averaged over replicas, those that left included if DDP divides by all.
        hook_divisor = accumulation if self._announced.is_scaled_loss else 1
        divisor = (count if self._divided else hook_divisor) * (size if self.ddp_divides_by_all else present)
        self._mean_factor = whole * divisor / samples
        if micro_batches > 1:
            self._statistics.observe(
                MicroGradientObservation(
                    small=small,
                    big=self.gradients.big_squares(),
                    count=micro_batches,
                    small_factor=float(hook_divisor) ** 2 * whole * micro_batches / samples,
                    big_factor=self._mean_factor**2,
                    scale=self.step_scale,
                )
            )
        elif self._pairs is not None and size == 1:
            self._statistics.observe(self._pairs.observe(self.gradients, scale=self.step_scale))
            self.unscale(samples / whole, gradients=False)

    def _summed(self, count: int) -> tuple[Tensor, float, float]:
        """Squared norms over all replicas, how many replicas have not left, and how many samples they computed."""
        small = self.gradients.small_squares()
        length = len(self._statistics.averages) * self._statistics.num_groups  # the same on every replica
        figures = torch.cat([small, small.new_zeros(length - len(small))])
        if self.sizes is not None:
            figures = torch.cat([figures, figures.new_tensor([float(self.sizes.total(count))])])
        figures, present = self._replicas.sum(figures)
        samples = present * count if self.sizes is None else float(figures[-1])
        return figures[: len(small)], present, samples

    def _multiply(self, factor: float) -> None:
        if gradients := self._present():
            torch._foreach_mul_(gradients, factor)

    def _present(self) -> list[Tensor]:
        return [p.grad for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
