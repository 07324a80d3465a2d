"""Fabric's half of the strategy: the user's own loop keeps ``fabric.backward`` and ``optimizer.step``."""

# pyright: reportMissingImports=false, reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.strategies import SingleDeviceStrategy
from lightning.fabric.strategies import Strategy as FabricBase
from torch import Tensor, nn
from torch.optim import Optimizer

from swell.errors import ConfigError, LoopError
from swell.integrations.lightning.exchanges import gathered, reduced
from swell.integrations.lightning.replica import Replica
from swell.integrations.lightning.schedule import FollowedScheduler


class FabricStrategy(Replica, SingleDeviceStrategy):
    """Lets ``Fabric`` train one model with one optimizer on whatever workers there are."""

    def _prepare_fabric(self) -> None:
        FabricBase.__init__(self)
        self._without_optimizer: list[nn.Module] = []  # set up without an optimizer
        self._pair: tuple[nn.Module, Optimizer, Any | None] | None = None
        self._clip: Any | None = None  # for the next step
        self._norm = torch.tensor(float("nan"))  # of the latest gradient that was clipped

    # What the user's script hands over

    def process_dataloader(self, dataloader: Any) -> Any:
        """The first loader is the training data; others stay as they are, whole on every worker."""
        if self._run.begun:
            return dataloader
        training = self._begin_job(dataloader)
        self._wrap()
        return training

    def setup_module(self, module: nn.Module) -> nn.Module:
        self._without_optimizer.append(module)
        return module

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for module in self._without_optimizer:
            if any(id(parameter) in own for parameter in module.parameters()):
                self._take(module, optimizer, None)
                return optimizer
        raise ConfigError(
            "the optimizer has no parameter of a module that was set up; expected one. Call fabric.setup(model, "
            "optimizer), or fabric.setup_module(model) before the optimizer is made."
        )

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any | None = None
    ) -> tuple[nn.Module, list[Optimizer], Any | None]:
        if len(optimizers) != 1:
            raise ConfigError(
                f"{len(optimizers)} optimizers were given to fabric.setup; expected one, because a step of the global "
                "batch is one update. Use swell.Job itself for several: job.wrap(model, optimizer) for each."
            )
        self._take(module, optimizers[0], scheduler)
        followed = None if scheduler is None else FollowedScheduler(scheduler, self._schedule, lambda: self.job)
        return module, optimizers, followed

    def _take(self, module: nn.Module, optimizer: Optimizer, scheduler: Any | None) -> None:
        if self._pair is not None:
            raise ConfigError(
                "a second optimizer was set up with one swell.lightning.Strategy; expected one. Use swell.Job itself "
                "for several: job.wrap(model, optimizer) for each."
            )
        self._pair = module, optimizer, scheduler
        if self._run.begun:
            self._wrap()

    def _wrap(self) -> None:
        if self._pair is not None:
            module, optimizer, scheduler = self._pair
            scaler = getattr(self.precision, "scaler", None)
            self.job.wrap(module, optimizer, scheduler=scheduler, schedule=self._schedule, scaler=scaler)

    # The loop

    def epochs(self, count: int) -> Iterator[int]:
        """The number of each epoch below ``count`` that is not done yet, on any worker that joins or resumes."""
        yield from self.job.epochs(count)

    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Add the gradient of one micro-batch's mean loss; ``weight=`` and the other arguments of ``job.backward``."""
        if args:
            raise ConfigError(
                f"fabric.backward was given {len(args)} positional argument(s) beside the loss; expected a mean loss, "
                "a single number. Take the mean, and name further arguments."
            )
        self.job.backward(tensor, **kwargs)

    def optimizer_step(self, optimizer: Any, closure: Any | None = None, **kwargs: Any) -> bool:
        """Finish the micro-batch; the weights move, and it is True, where that completes the global batch."""
        clip, self._clip = self._clip, None
        stepped = self.job.step(closure, clip=clip, **kwargs)
        self._tell_rank()
        return stepped

    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Clip when the gradient of the whole step is there; returns the norm of the step before, nan at first."""

        def clip(parameters: list[Tensor]) -> None:
            self._norm = nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite).detach()

        self._clip_by(clip)
        return self._norm

    def clip_gradients_value(self, module: nn.Module, optimizer: Optimizer, clip_val: float) -> None:
        """Clip when the gradient of the whole step is there."""
        self._clip_by(lambda parameters: nn.utils.clip_grad_value_(parameters, clip_val))

    def _clip_by(self, clip: Any) -> None:
        self._clip = clip
        self.job.engine.state.learners[0].last_clip = clip  # for a step in which this worker has no sample

    # Among the workers

    @property
    def world_size(self) -> int:
        """How many workers there are now."""
        return self._run.replicas

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for the other workers; inside a step it returns at once, because they meet at its end."""
        if self.world_size > 1 and not self._run.in_step:
            gathered(self._run, 0)

    def all_gather(self, tensor: Tensor, group: Any | None = None, sync_grads: bool = False) -> Tensor:
        """Every worker's tensor, stacked; the tensor itself on one worker."""
        if sync_grads:
            raise ConfigError("sync_grads is True; expected False, because swell exchanges gradients itself.")
        values = self._gathered(tensor, "all_gather")
        return tensor if len(values) == 1 else torch.stack(values)

    def all_reduce(self, tensor: Tensor, group: Any | None = None, reduce_op: Any = "mean") -> Tensor:
        """The mean, sum, maximum or minimum over workers, in the given tensor."""
        values = self._gathered(tensor, "all_reduce")
        return tensor if len(values) == 1 else tensor.copy_(reduced(values, reduce_op))

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """One worker's object, on every worker."""
        return self._gathered(obj, "broadcast")[src]

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all workers say so, or any."""
        votes = self._gathered(decision, "reduce_boolean_decision")
        return min(votes) if all else max(votes)

    def _gathered(self, value: Any, call: str) -> list[Any]:
        if self.world_size == 1:
            return [value]
        if self._run.in_step:
            raise LoopError(
                f"fabric.{call} was called in the middle of a step; expected it between two, because workers may have "
                "different numbers of micro-batches in a step. Call it when optimizer.step() has returned True, or "
                "after the loop over the loader; add figures up with strategy.job.metrics."
            )
        return gathered(self._run, value)
