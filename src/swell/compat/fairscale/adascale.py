"""AdaScale with FairScale's arguments and FairScale's numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from swell.compat.fairscale.averages import Averages
from swell.compat.fairscale.exchange import Exchange
from swell.compat.fairscale.leaving import Leaving
from swell.compat.fairscale.measuring import Measuring
from swell.compat.fairscale.observation import Pairs
from swell.compat.fairscale.sizes import Sizes
from swell.compat.fairscale.watch import GradientWatch
from swell.compat.wrapping import WrappingOptimizer
from swell.core.counts import whole_number
from swell.core.protocols import Rule
from swell.core.types import ScaleState
from swell.errors import CheckpointError, ConfigError, LoopError
from swell.gradients.factors import BiasClock, scaled
from swell.gradients.preconditioner import Preconditioner
from swell.rules import as_rule, auto
from swell.rules.metric import needs_preconditioned


class AdaScale(Measuring, WrappingOptimizer, Leaving):
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
        micro_batch: samples of a whole micro-batch, where some have others; ``samples(n)`` tells of these. They are
            all taken for equal unless given.
        rule: which of swell's rules turns signal and noise into factors. FairScale's is AdaScale's gain for the
            learning rate whatever the optimizer; ``"auto"`` picks the one that suits the optimizer, for Adam the
            root of the gain in Adam's own metric.

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
        micro_batch: int | None = None,
        rule: Rule | str = "adascale",
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
        self._sizes = None if micro_batch is None else Sizes(micro_batch)
        self._rule = auto(type(optimizer).__name__) if rule == "auto" else as_rule(rule)
        self._channels = 2 if needs_preconditioned(self._rule) else 1  # plain, and in the optimizer's own metric
        self._clock = BiasClock()
        self._averages = [Averages(len(self.param_groups), debias=bool(debias_ewma)) for _ in range(self._channels)]
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
        return self._rule.gain(self._state(pg_idx))

    def _state(self, group: int | None) -> ScaleState:
        plain, *metric = self._current()
        return ScaleState(
            scale=self._step_scale,
            base_batch=1,  # a sample is one base batch here
            moments=plain.moments(group),
            preconditioned=metric[0].moments(group) if metric and metric[0].count else None,
            progress=self._progress,
        )

    def samples(self, samples: int) -> None:
        """Say how many samples the micro-batch has that is sent back next; before its backward()."""
        if self._sizes is None:
            raise ConfigError(
                f"samples({samples}) was called, but micro-batches are taken for equal. Pass micro_batch=, the samples "
                "of a whole one, to AdaScale."
            )
        self._sizes.tell(samples)

    def set_scale(self, scale: float, update_estimate: bool = True) -> None:
        """Say that the batch is now ``scale`` base batches.

        ``update_estimate`` multiplies the noise by old / new, FairScale's default. The noise of a base batch does not
        depend on the batch, so this makes gains wrong for hundreds of steps; pass False unless you must reproduce it.
        """
        self._between_steps("change the scale")
        scale = _checked_scale(scale)
        if update_estimate:
            self._averages = self._current()
            for averages in self._averages:
                averages.rescale(self._scale / scale)
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
        if watch.micro_batches:
            self._make_mean(watch.micro_batches)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            self._dropped += self._observation is not None
            self._start_over()
            return loss
        self._unscale()
        averages = self._current()
        factors = [self._rule.factors(self._state(group)) for group, _ in enumerate(self.param_groups)]
        self._progress += self.gain()
        with scaled(self._optimizer, factors, self._clock):
            result = self._optimizer.step(*args, **kwargs)
        self._averages = averages
        if watch.metric is not None:
            watch.metric.stepped()
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
        for averages in self._averages:
            averages.add_group()
        self._hook()

    def unhook(self) -> None:
        """Stop measuring: gains stay as they are from now on, and the parameters can be freed."""
        self._watched().unwatch()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and everything of AdaScale's, safe to load with ``weights_only=True``."""
        self._between_steps("make a checkpoint")
        saved = super().state_dict()
        own = {
            **self._averages[0].state_dict(),
            "scale": self._scale,
            "smoothing": self._smoothing,
            "num_gradients_to_accumulate": self._accumulation,
            "is_scaled_loss": self._is_scaled_loss,
            "world_size": self._exchange.size,
            "progress": self._progress,
            "preconditioned": [averages.state_dict() for averages in self._averages[1:]],
            "clock": self._clock.state_dict(self._watched().parameters),
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
        averages = [Averages(num_groups, debias=each.debias) for each in self._averages]
        found = [] if own is None else [own, *own.get("preconditioned", [])]
        for number, saved in enumerate(found[: len(averages)]):
            averages[number] = Averages.from_state_dict(saved, num_groups=num_groups)
        super().load_state_dict({**state_dict, "state": inner})
        self._averages = averages
        watch = self._watched()
        self._clock.load_state_dict((own or {}).get("clock", {}), watch.parameters)
        if watch.metric is not None:
            watch.metric.reset()
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
        metric = Preconditioner(self._optimizer) if self._channels > 1 else None
        self._watch = GradientWatch(groups, self._at_end, at_most=self._accumulation, metric=metric, sizes=self._sizes)
        self._start_over()

    def _require_as_announced(self, watch: GradientWatch) -> None:
        if watch.too_many:
            raise LoopError(
                f"{watch.micro_batches} gradients were added up since the last step, num_gradients_to_accumulate is "
                f"{self._accumulation}. Step after every {self._accumulation}; where one micro-batch has several "
                "losses on the same parameters, add them up and call backward() once."
            )
        summed = not self._is_scaled_loss and not self._divided and self._sizes is None
        if summed and self._accumulation > 1 and watch.micro_batches:
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
