"""AdaScale with FairScale's arguments and FairScale's numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from swell.compat.fairscale.averages import Averages
from swell.compat.fairscale.exchange import Exchange
from swell.compat.fairscale.leaving import Leaving
from swell.compat.fairscale.observation import Observation, PairObservation, Pairs
from swell.compat.fairscale.watch import GradientWatch
from swell.compat.wrapping import WrappingOptimizer
from swell.core.counts import whole_number
from swell.core.moments import gain
from swell.core.types import Factors
from swell.errors import CheckpointError, ConfigError, LoopError
from swell.gradients.factors import BiasClock, scaled


class AdaScale(WrappingOptimizer, Leaving):
    r"""The optimizer with its learning rate multiplied by the gain of the larger batch, for each step and group.

    .. math:: r = \frac{\sigma^2 + \mu^2}{\sigma^2 / S + \mu^2}

    with :math:`\mu^2` the signal and :math:`\sigma^2` the noise of a base batch, estimated from the micro-gradients of
    all replicas and accumulation steps (``swell.core.moments.estimate``) and smoothed as FairScale does.

    Args:
        optimizer: any optimizer; shared, not copied. Frozen parameters are left alone until they require gradients.
        world_size: replicas ``N``; the process group's size unless given.
        scale: ``S``, the whole batch over the base batch; ``N * num_gradients_to_accumulate`` unless given.
        smoothing: weight of the past in [0, 1); ``max(1 - N * num_gradients_to_accumulate / 1000, 0)`` unless given.
        num_gradients_to_accumulate: backward() calls before each step().
        is_scaled_loss: whether the script divides its loss by ``num_gradients_to_accumulate``. If not, it calls
            ``scale_grad_by_num_grads_to_accum()`` before each step().
        debias_ewma: which of FairScale's two averages to use.
        process_group: the replicas; the default process group unless given.
        grad_scaler: the script's ``GradScaler``; needed only where the script itself calls ``scaler.unscale_``.
        single_worker: what to do with one worker and no accumulation: ``"refuse"``, as FairScale does, or measure by
            ``"differences"`` of consecutive steps, which is biased and keeps a copy of one gradient.

    Reference: Johnson et al. 2020, section 3 and appendix B.3, https://arxiv.org/abs/2007.05105

    >>> parameter = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = AdaScale(torch.optim.SGD([parameter], lr=0.1), num_gradients_to_accumulate=2)
    >>> for sample in (2.0, 4.0):
    ...     (sample * parameter / 2).sum().backward()
    >>> round(optimizer.gain(), 3)
    1.111
    >>> optimizer.step()
    """

    _step_supports_amp_scaling = True  # GradScaler then hands over its scale instead of unscaling

    def __init__(
        self,
        optimizer: Optimizer,
        world_size: int | None = None,
        scale: float | None = None,
        smoothing: float | None = None,
        num_gradients_to_accumulate: int = 1,
        is_scaled_loss: bool = True,
        debias_ewma: bool = True,
        *,
        process_group: Any = None,
        grad_scaler: Any = None,
        single_worker: Literal["refuse", "differences"] = "refuse",
    ) -> None:
        if isinstance(optimizer, AdaScale):
            raise ConfigError("the optimizer is an AdaScale already; wrap the optimizer inside it, or use it as it is.")
        if single_worker not in ("refuse", "differences"):
            raise ConfigError(f"single_worker is {single_worker!r}; expected 'refuse' or 'differences'.")
        super().__init__(optimizer)
        Leaving.__init__(self)
        self._exchange = Exchange(world_size, process_group)
        self._grad_scaler = grad_scaler
        self._pairs = Pairs() if single_worker == "differences" else None
        self._is_scaled_loss = bool(is_scaled_loss)
        self._averages = Averages(len(self.param_groups), debias=bool(debias_ewma))
        self._progress = 0.0
        self._dropped = 0
        self._watch: GradientWatch | None = None
        self._start_over()
        self.set_num_gradients_to_accumulate(num_gradients_to_accumulate)
        if smoothing is not None:
            self._smoothing = _checked_smoothing(smoothing)
        self._scale = _checked_scale(self._exchange.size * self._accumulation if scale is None else scale)
        self._hook()

    @property
    def scale(self) -> float:
        """``S``: this batch over the base batch."""
        return self._scale

    @property
    def smoothing(self) -> float:
        """Weight of the past in each new average."""
        return self._smoothing

    @property
    def progress(self) -> float:
        """Base steps done so far: the sum of ``gain()`` over all steps. Stop when it is the number you tuned for."""
        return self._progress

    @property
    def dropped(self) -> int:
        """Steps whose gradients were not finite and were left out of the averages."""
        return self._dropped

    def gain(self, pg_idx: int | None = None) -> float:
        """How many base steps the coming step is worth: of the whole gradient, or of one parameter group."""
        return gain(self._step_scale, self._current().moments(pg_idx), base_batch=1)

    def set_scale(self, scale: float, update_estimate: bool = True) -> None:
        """Say that the batch is now ``scale`` base batches.

        ``update_estimate`` multiplies the noise by old / new, FairScale's default. The noise of a base batch does not
        depend on the batch, so this makes gains wrong for hundreds of steps; pass False unless you must reproduce it.
        """
        self._between_steps("change the scale")
        scale = _checked_scale(scale)
        if update_estimate:
            self._averages = self._current()
            self._averages.rescale(self._scale / scale)
            self._observation = None
        self._scale = self._step_scale = scale

    def set_num_gradients_to_accumulate(self, num_gradients_to_accumulate: int, update_smoothing: bool = True) -> None:
        """Say how many backward() calls come before each step() from now on; ``scale`` stays as it is."""
        self._between_steps("change num_gradients_to_accumulate")
        count = whole_number(num_gradients_to_accumulate, name="num_gradients_to_accumulate")
        if self._exchange.size * count == 1 and self._pairs is None:
            raise ConfigError(
                "one worker without accumulation has one gradient a step, from which signal and noise cannot be told "
                "apart. Accumulate at least 2 gradients, or pass single_worker='differences' to AdaScale."
            )
        self._accumulation = count
        if self._watch is not None:
            self._watch.at_most = count
        if update_smoothing:
            self._smoothing = max(1 - self._exchange.size * count / 1000, 0.0)

    def scale_grad_by_num_grads_to_accum(self) -> None:
        """Divide the gradients by how many were accumulated; for a loss that the script does not divide."""
        if self._is_scaled_loss:
            raise LoopError(
                "the loss is said to be divided already. Pass is_scaled_loss=False to AdaScale, or leave out this call."
            )
        count = self._watched().micro_batches or self._accumulation
        if gradients := self._gradients():
            torch._foreach_div_(gradients, float(count))
        self._divided = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Step the optimizer with each group's learning rate times that group's gain, and put the rates back.

        With fewer micro-gradients than announced (the end of an epoch) the step is taken with those there are: their
        mean, at the scale they amount to. More than announced is an error. Under a ``GradScaler`` that found an
        overflow nothing is done, and nothing is learned from it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        watch = self._watched()
        self._require_as_announced(watch)
        if 0 < watch.micro_batches < self._accumulation:
            self._finish_early(watch.micro_batches)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            self._dropped += self._observation is not None
            self._start_over()
            return loss
        self._unscale()
        averages = self._current()
        gains = [gain(self._step_scale, averages.moments(i), base_batch=1) for i, _ in enumerate(self.param_groups)]
        self._progress += self.gain()
        with scaled(self._optimizer, [Factors(lr=each) for each in gains], BiasClock()):
            result = self._optimizer.step(*args, **kwargs)
        self._averages = averages
        if self._pairs is not None:
            self._pairs.commit()
        self._start_over()
        watch.watch()
        return result if loss is None else loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; what was measured of them and not stepped with is forgotten."""
        self._between_steps("clear the gradients")
        self._start_over()
        super().zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the optimizer; its gain is 1 until it has been measured."""
        self._between_steps("add a parameter group")
        super().add_param_group(param_group)
        self._averages = self._current()
        self._averages.add_group()
        self._hook()

    def unhook(self) -> None:
        """Stop measuring: gains stay as they are from now on, and the parameters can be freed."""
        self._watched().unwatch()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and everything of AdaScale's, safe to load with ``weights_only=True``."""
        self._between_steps("make a checkpoint")
        saved = super().state_dict()
        own = {
            **self._averages.state_dict(),
            "scale": self._scale,
            "smoothing": self._smoothing,
            "num_gradients_to_accumulate": self._accumulation,
            "is_scaled_loss": self._is_scaled_loss,
            "world_size": self._exchange.size,
            "progress": self._progress,
        }
        return {**saved, "state": {**saved["state"], "adascale": own}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint of this class, of FairScale's, or of the plain optimizer.

        Averages and progress are of base batches and hold on any number of workers. Scale, smoothing and accumulation
        are taken from the checkpoint where it was made with as many workers; otherwise this object keeps its own. A
        plain optimizer's checkpoint leaves the averages to begin anew.
        """
        self._between_steps("load a checkpoint")
        own = state_dict["state"].get("adascale")
        inner = {key: value for key, value in state_dict["state"].items() if key != "adascale"}
        num_groups = len(self.param_groups)
        averages = Averages(num_groups, debias=self._averages.debias)
        if own is not None:
            averages = Averages.from_state_dict(own, num_groups=num_groups)
        super().load_state_dict({**state_dict, "state": inner})
        self._averages = averages
        self._start_over()
        if own is not None and own.get("world_size") == self._exchange.size:
            try:
                self.set_num_gradients_to_accumulate(own["num_gradients_to_accumulate"], update_smoothing=False)
                self._scale = self._step_scale = _checked_scale(own["scale"])
                self._smoothing = _checked_smoothing(own["smoothing"])
                self._is_scaled_loss = bool(own["is_scaled_loss"])
            except (KeyError, ConfigError) as error:
                raise CheckpointError(f"not a checkpoint of AdaScale: {error}. Load what state_dict() gave.") from error
        self._progress = float((own or {}).get("progress", 0.0))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_watch"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_watch": None})
        self._start_over()
        self._hook()

    def _hook(self) -> None:
        groups = [group["params"] for group in self.param_groups]
        for parameter in (p for group in groups for p in group):
            if hasattr(parameter, "placements"):
                raise ConfigError(
                    "a parameter is sharded (DTensor): its gradients never pass where AdaScale could measure them. "
                    "Train with DistributedDataParallel, where they pass whole."
                )
        if self._watch is not None:
            self._watch.unwatch()
        self._watch = GradientWatch(groups, self._at_end, at_most=self._accumulation)
        self._start_over()

    def _watched(self) -> GradientWatch:
        assert self._watch is not None
        return self._watch

    def _start_over(self) -> None:
        self._divided = False  # whether the script has divided the gradients of this step
        self._observation: Observation | PairObservation | None = None
        self._seen: Averages | None = None  # the averages with the observation in them
        self._step_scale = getattr(self, "_scale", 1.0)
        if self._watch is not None:
            self._watch.restart()

    def _at_end(self) -> None:
        """A backward has ended and its gradients are averaged over replicas."""
        watch = self._watched()
        if watch.micro_batches == self._accumulation:
            self._observe(watch.micro_batches)

    def _observe(self, count: int) -> None:
        watch = self._watched()
        self._seen = self._observation = None
        self._step_scale = self._scale * count / self._accumulation
        if self._exchange.size * count > 1:
            small, present = self._exchange.sum(watch.small_squares())
            self._step_scale *= present / self._exchange.size  # smaller where replicas have left
            # Hooks saw gradients divided by the announced count, or not divided; .grad is their sum over a rank.
            seen_over = self._accumulation if self._is_scaled_loss else 1
            held_over = (count if self._divided else seen_over) * (
                self._exchange.size / present if self._over_all else 1
            )
            if present * count > 1:
                self._observation = Observation(
                    small=small,
                    big=watch.big_squares(),
                    count=int(present) * count,
                    small_factor=float(seen_over) ** 2,
                    big_factor=(held_over / count) ** 2,
                    scale=self._step_scale,
                )
        elif self._pairs is not None:
            self._observation = self._pairs.observe(watch, scale=self._step_scale)

    def _finish_early(self, count: int) -> None:
        """Make the gradients of a short accumulation the mean of those there are."""
        self._observe(count)
        if self._is_scaled_loss:
            torch._foreach_mul_(self._gradients(), self._accumulation / count)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]

    def _current(self) -> Averages:
        """The averages, with what the gradients at hand add to them."""
        if self._observation is None:
            return self._averages
        if self._seen is None:
            moments = self._observation.moments()
            finite = all(math.isfinite(m.signal) and math.isfinite(m.noise) for m in moments)
            if not finite:
                self._dropped += 1
                self._observation = None
                return self._averages
            self._seen = self._averages.updated(moments, smoothing=self._smoothing)
        return self._seen

    def _unscale(self) -> None:
        """Take GradScaler's scale out of the gradients, if that is left to us, and out of what was measured."""
        by_us = getattr(self, "grad_scale", None)
        if by_us is not None:
            scale = float(by_us)
            if gradients := self._gradients():
                torch._foreach_mul_(gradients, 1 / scale)
        elif self._grad_scaler is not None and self._grad_scaler.is_enabled():
            scale = float(self._grad_scaler.get_scale())
        else:
            return
        if self._pairs is not None:
            self._pairs.unscale(scale)
        if self._observation is not None:
            self._observation.unscale(scale)
            self._seen = None

    def _require_as_announced(self, watch: GradientWatch) -> None:
        if watch.too_many:
            raise LoopError(
                f"{watch.micro_batches} gradients were added up since the last step, num_gradients_to_accumulate is "
                f"{self._accumulation}. Step after every {self._accumulation}; where one micro-batch has several "
                "losses on the same parameters, add them up and call backward() once."
            )
        if not self._is_scaled_loss and self._accumulation > 1 and watch.micro_batches and not self._divided:
            warnings.warn(
                "is_scaled_loss is False and scale_grad_by_num_grads_to_accum() was not called: the step uses the sum "
                "of the gradients, not their mean. Call it before step().",
                stacklevel=3,
            )

    def _between_steps(self, what: str) -> None:
        watch = self._watch
        if watch is not None and 0 < watch.micro_batches < self._accumulation:
            raise LoopError(
                f"{watch.micro_batches} of {self._accumulation} gradients are accumulated, too early to {what}: finish "
                "the accumulation, or call step(), which also takes a short one."
            )


def _checked_scale(scale: float) -> float:
    if not 1 <= scale < math.inf:
        raise ConfigError(f"scale is {scale}; expected this batch over the base batch, 1 or more.")
    return scale


def _checked_smoothing(smoothing: float) -> float:
    if not 0 <= smoothing < 1:
        raise ConfigError(f"smoothing is {smoothing}; expected the weight of the past, from 0 to just below 1.")
    return smoothing
