"""AdaScale with FairScale's arguments and FairScale's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.distributed.algorithms.join import Joinable, JoinHook
from torch.optim import Optimizer

from swell.compat.fairscale.announced_step import AnnouncedStep
from swell.compat.fairscale.join import AbsentReplica
from swell.compat.fairscale.measurement import Measurement
from swell.compat.fairscale.micro_batch_sizes import MicroBatchSizes
from swell.compat.fairscale.replicas import Replicas
from swell.compat.fairscale.statistics import GradientStatistics, default_smoothing
from swell.compat.fairscale.step_pairs import StepPairs
from swell.compat.wrapping import WrappingOptimizer
from swell.core.protocols import Rule
from swell.errors import CheckpointError, ConfigError, LoopError
from swell.gradients.factors import BiasClock, scaled
from swell.rules import as_rule, auto_by_gain
from swell.rules.metric import needs_preconditioned, refuse_dual


class AdaScale(WrappingOptimizer, Joinable):
    r"""The optimizer with its learning rate multiplied by the gain of the larger batch, for each step and group.

    .. math:: r = \frac{\sigma^2 + \mu^2}{\sigma^2 / S + \mu^2}

    with :math:`\mu^2` the signal and :math:`\sigma^2` the noise of a base batch, estimated from the micro-gradients of
    all replicas and accumulation steps (``swell.core.moments.estimate``) and smoothed as FairScale does.

    ``with Join([model, optimizer]):`` lets replicas run out of batches before the others; DDP comes first, then the
    optimizer. ``model.join()`` alone does not know the optimizer's exchange.

    Args:
        optimizer: any optimizer; shared, not copied. Frozen parameters are left alone until they require gradients.
        world_size: replicas ``N``; by default the size of the process group.
        scale: ``S``, the whole batch over the base batch; by default ``N * num_gradients_to_accumulate``.
        smoothing: weight of the past in [0, 1); by default ``max(1 - N * num_gradients_to_accumulate / 1000, 0)``.
        num_gradients_to_accumulate: backward() calls before each step().
        is_scaled_loss: whether the script divides its loss by ``num_gradients_to_accumulate``. If not, it calls
            ``scale_grad_by_num_grads_to_accum()`` before each step().
        debias_ewma: which of FairScale's two averages to use.
        process_group: the replicas; by default the default process group.
        grad_scaler: the script's ``GradScaler``; needed only if the script itself calls ``scaler.unscale_``.
        single_worker: what to do with one worker and no accumulation: ``"refuse"``, as FairScale does, or measure by
            ``"differences"`` of consecutive steps, which is biased and keeps a copy of one gradient.
        micro_batch: samples of a whole micro-batch, if some have fewer or more; ``samples(n)`` announces these. By
            default all micro-batches count as equal.
        rule: the rule of swell that turns signal and noise into factors. FairScale's is AdaScale's gain for the
            learning rate of any optimizer. ``"auto"`` picks the rule that suits the optimizer: for Adam the root of
            the gain in Adam's own metric.

    Reference: Johnson et al. 2020, section 3 and appendix B.3, https://arxiv.org/abs/2007.05105

    >>> parameter = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = AdaScale(torch.optim.SGD([parameter], lr=0.1), num_gradients_to_accumulate=2)
    >>> for sample in (2.0, 4.0):
    ...     (sample * parameter / 2).sum().backward()
    >>> round(optimizer.gain(), 3)
    1.111
    >>> optimizer.step()
    """

    _step_supports_amp_scaling = True  # GradScaler then passes its scale on instead of unscaling

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
            raise ConfigError(
                "optimizer is an AdaScale; expected a plain optimizer. Wrap the one inside it, or use it as it is."
            )
        if single_worker not in ("refuse", "differences"):
            raise ConfigError(f"single_worker is {single_worker!r}; expected 'refuse' or 'differences'.")
        super().__init__(optimizer)
        Joinable.__init__(self)
        self._replicas = Replicas(world_size, process_group)
        self._grad_scaler = grad_scaler
        sizes = None if micro_batch is None else MicroBatchSizes(micro_batch)
        self._rule = auto_by_gain(type(optimizer).__name__) if rule == "auto" else as_rule(rule)
        refuse_dual(self._rule, "FairScale's AdaScale")
        self._clock = BiasClock()
        self._progress = 0.0
        self._statistics = GradientStatistics(
            len(self.param_groups), debias=bool(debias_ewma), with_metric=needs_preconditioned(self._rule)
        )
        pairs = StepPairs() if single_worker == "differences" else None
        self._announced = AnnouncedStep(
            self._replicas,
            accumulation=num_gradients_to_accumulate,
            scale=scale,
            is_scaled_loss=bool(is_scaled_loss),
            one_gradient=pairs is not None,
        )
        default = default_smoothing(self._announced.num_gradients)
        self._statistics.set_smoothing(default if smoothing is None else smoothing)
        self._measurement = Measurement(
            optimizer, self._announced, self._statistics, self._replicas, sizes=sizes, pairs=pairs
        )

    @property
    def scale(self) -> float:
        """``S``: this batch over the base batch."""
        return self._announced.scale

    @property
    def smoothing(self) -> float:
        """Weight of the past in each new average."""
        return self._statistics.smoothing

    @property
    def progress(self) -> float:
        """Base steps done so far: the sum of ``gain()`` over all steps. Stop when it is the number you tuned for."""
        return self._progress

    @property
    def dropped(self) -> int:
        """Steps whose gradients were not finite and were left out of the averages."""
        return self._statistics.dropped

    def gain(self, pg_idx: int | None = None) -> float:
        """How many base steps the coming step is worth: of the whole gradient, or of one parameter group."""
        state = self._statistics.scale_state(pg_idx, scale=self._measurement.step_scale, progress=self._progress)
        return self._rule.gain(state)

    def samples(self, samples: int) -> None:
        """Announce how many samples the next micro-batch has; call it before its backward()."""
        if self._measurement.sizes is None:
            raise ConfigError(
                f"samples({samples}) was called without micro_batch; expected micro-batches of equal size. Pass "
                "micro_batch=, the samples of a whole one, to AdaScale."
            )
        self._measurement.sizes.announce(samples)

    def set_scale(self, scale: float, update_estimate: bool = True) -> None:
        """Announce that the batch is now ``scale`` base batches.

        ``update_estimate``, on by default as in FairScale, multiplies the noise by old / new. But the noise of a base
        batch does not depend on the batch, so gains are then wrong for hundreds of steps. Pass False unless you must
        reproduce FairScale's numbers.
        """
        self._measurement.require_between_steps("change the scale")
        before = self.scale
        self._announced.set_scale(scale)
        self._measurement.step_scale = scale
        if update_estimate:
            self._statistics.rescale(before / scale)

    def set_num_gradients_to_accumulate(self, num_gradients_to_accumulate: int, update_smoothing: bool = True) -> None:
        """Announce how many backward() calls come before each step() from now on; ``scale`` stays as it is."""
        self._measurement.require_between_steps("change num_gradients_to_accumulate")
        self._announced.set_accumulation(num_gradients_to_accumulate)
        if update_smoothing:
            self._statistics.set_smoothing(default_smoothing(self._announced.num_gradients))

    def scale_grad_by_num_grads_to_accum(self) -> None:
        """Divide the gradients by how many were accumulated; for a loss that the script does not divide."""
        if self._announced.is_scaled_loss:
            raise LoopError(
                "is_scaled_loss is True; expected False, because the gradients of a divided loss need no division. "
                "Pass is_scaled_loss=False to AdaScale, or remove this call."
            )
        self._measurement.divide()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Step the optimizer with each group's learning rate times that group's gain, and restore the rates.

        With fewer micro-gradients than announced (at the end of an epoch) the step uses their mean, at the scale they
        amount to. More than announced is an error. If a ``GradScaler`` found an overflow, the step is skipped and its
        gradients are left out of the averages.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._measurement.require_announced()
        self._measurement.make_mean()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            self._statistics.drop()
            self._measurement.restart()
            return loss
        self._unscale()
        averages = self._statistics.current()
        scale, progress = self._measurement.step_scale, self._progress
        factors = [
            self._rule.factors(self._statistics.scale_state(group, scale=scale, progress=progress))
            for group in range(len(self.param_groups))
        ]
        self._progress += self.gain()
        with scaled(self._optimizer, factors, self._clock):
            result = self._optimizer.step(*args, **kwargs)
        self._statistics.averages = averages
        self._measurement.commit()
        return result if loss is None else loss

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients, with the optimizer's own arguments, and forget what was measured since the last step."""
        self._measurement.require_between_steps("clear the gradients")
        self._measurement.restart()
        super().zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the optimizer; its gain is 1 until it has been measured."""
        self._measurement.require_between_steps("add a parameter group")
        super().add_param_group(param_group)
        self._statistics.add_group()
        self._measurement.attach()

    def unhook(self) -> None:
        """Stop measuring: gains no longer change, and the parameters can be freed."""
        self._measurement.gradients.detach()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and all of AdaScale's, safe to load with ``weights_only=True``."""
        self._measurement.require_between_steps("make a checkpoint")
        saved = super().state_dict()
        plain, *metric = self._statistics.averages
        own = {
            **plain.state_dict(),
            "scale": self.scale,
            "smoothing": self.smoothing,
            "num_gradients_to_accumulate": self._announced.accumulation,
            "is_scaled_loss": self._announced.is_scaled_loss,
            "world_size": self._replicas.size,
            "progress": self._progress,
            "preconditioned": [averages.state_dict() for averages in metric],
            "clock": self._clock.state_dict(self._measurement.gradients.parameters),
        }
        return {**saved, "state": {**saved["state"], "adascale": own}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint of this class, of FairScale's, or of the plain optimizer.

        Averages and progress count base batches, so they hold on any number of workers. Scale, smoothing and
        accumulation are taken from the checkpoint if it was made with as many workers; otherwise this object keeps its
        own. With a plain optimizer's checkpoint the averages start from the beginning.
        """
        self._measurement.require_between_steps("load a checkpoint")
        own = state_dict["state"].get("adascale")
        inner = {key: value for key, value in state_dict["state"].items() if key != "adascale"}
        averages = self._statistics.from_checkpoint([] if own is None else [own, *own.get("preconditioned", [])])
        super().load_state_dict({**state_dict, "state": inner})
        self._statistics.averages = averages
        own = own or {}
        self._clock.load_state_dict(own.get("clock", {}), self._measurement.gradients.parameters)
        self._measurement.reset()
        if own.get("world_size") == self._replicas.size:
            try:
                self.set_num_gradients_to_accumulate(own["num_gradients_to_accumulate"], update_smoothing=False)
                self.set_scale(own["scale"], update_estimate=False)
                self._statistics.set_smoothing(own["smoothing"])
                self._announced.is_scaled_loss = bool(own["is_scaled_loss"])
            except (KeyError, ConfigError) as error:
                raise CheckpointError(
                    f"state_dict has wrong settings of AdaScale ({error}); expected those of a checkpoint. Load what "
                    "state_dict() returned."
                ) from error
        self._progress = float(own.get("progress", 0.0))

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What ``Join`` calls in place of a replica that has left."""
        self._replicas.allow_leaving()
        self._measurement.ddp_divides_by_all = bool(kwargs.get("divide_by_initial_world_size", True))
        return AbsentReplica(self._announced, self._measurement, self._statistics, self._replicas)

    @property
    def join_device(self) -> torch.device:
        """The device on which ``Join`` counts the replicas."""
        return self._measurement.gradients.parameters[0].device

    @property
    def join_process_group(self) -> Any:
        """The group in which ``Join`` counts the replicas."""
        return self._replicas.group

    def _unscale(self) -> None:
        """Take GradScaler's scale out of what was measured, and out of the gradients if GradScaler left it in."""
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            self._measurement.unscale(float(scale), gradients=True)
        elif self._grad_scaler is not None and self._grad_scaler.is_enabled():
            self._measurement.unscale(float(self._grad_scaler.get_scale()), gradients=False)
