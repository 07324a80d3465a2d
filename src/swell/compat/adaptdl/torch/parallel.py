"""The wrapped model: as it was to the user's loop, while ``optimizer.step()`` does what a job's step does."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from swell.compat.adaptdl.clipping import Clipping
from swell.compat.adaptdl.members import Kept
from swell.compat.adaptdl.patched_step import PatchedStep
from swell.compat.adaptdl.session import current_session
from swell.compat.adaptdl.torch import loops
from swell.compat.adaptdl.torch.scaling_rules import ScalingRuleBase, SuitingScale, by_noise
from swell.core.moment_average import MomentAverage
from swell.core.moments import gain
from swell.core.types import Moments, NoiseEstimate
from swell.errors import ConfigError, LoopError
from swell.job import Job
from swell.job.learner import Learner
from swell.loop.step import StepInProgress

_DDP = frozenset(inspect.signature(DistributedDataParallel.__init__).parameters) - {"self", "module"}


class AdaptiveDataParallel(nn.Module):
    """A model whose gradients are those of the whole global batch when its optimizer steps.

    Forward and backward are the user's own. ``optimizer.step()`` counts a batch; with the last one of a global batch
    the gradients of all replicas are brought together, the learning rate is scaled for this one update, and the weights
    are updated. For that the optimizer's ``step`` is replaced on the instance, as the original did, and given back by
    ``adaptdl.close()``. ``DistributedDataParallel``'s arguments are accepted; none of them is needed.

    Weights, optimizer, scheduler and scaler are restored when the first loop over a loader, or over
    ``remaining_epochs_until``, begins.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        lr_scheduler: Any | None = None,
        mp_scaler: Any | None = None,
        scaling_rule: ScalingRuleBase | None = None,
        name: str = "adaptdl-dataparallel",
        **kwargs: Any,
    ) -> None:
        session = current_session()
        if not session.opened:
            raise LoopError("AdaptiveDataParallel was made before adaptdl.torch.init_process_group. Call that first.")
        if session.job is not None:
            raise LoopError("AdaptiveDataParallel was made after training began. Wrap every model before the loop.")
        unknown = sorted(set(kwargs) - _DDP)
        if unknown:
            raise TypeError(f"AdaptiveDataParallel got unexpected arguments {', '.join(unknown)}.")
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(f"AdaptiveDataParallel was given a {type(optimizer).__name__} for its optimizer.")
        if mp_scaler is not None and not hasattr(mp_scaler, "unscale_"):
            raise ConfigError(f"mp_scaler is {mp_scaler!r}; expected a torch.amp.GradScaler. Pass the name by name=.")
        super().__init__()
        self.module = model
        self.optimizer, self.lr_scheduler, self.mp_scaler = optimizer, lr_scheduler, mp_scaler
        self.scaling_rule = scaling_rule or SuitingScale()
        self.scaling_rule.initialize(self, optimizer)
        self.gns = GradientNoiseScale(self)
        session.states.add(Kept(name, lambda: None, self._capture_scaler, self._restore_scaler))
        self._name = name
        self._learner: Learner | None = None
        self._warned = False
        self._patch = PatchedStep(optimizer, self._stepped)
        self.clipping = Clipping(optimizer, lambda: self._patch.inside)
        state = [*model.parameters(), *model.buffers()]
        session.collective.broadcast_tensors([tensor.detach() for tensor in state], source=0)
        session.models.append(self)
        session.closers.append(self.give_back)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The model's own output."""
        return self.module(*inputs, **kwargs)

    @property
    def gain(self) -> float:
        """How many steps at the initial batch the latest step was worth."""
        job = current_session().job
        return 1.0 if job is None else job.gain

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the gradient of the whole global batch in the step under way, as ``torch.nn.utils.clip_grad_norm_``.

        Returns the norm of the gradients at hand, a tensor that becomes that of the whole gradient with the step.
        """
        return self.clipping.norm(list(self.module.parameters()), max_norm, norm_type)

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Write the gradient's figures with a ``SummaryWriter``."""
        prefix = tag_prefix + "/" if tag_prefix and not tag_prefix.endswith("/") else tag_prefix
        job, step = current_session().job, loops.step_under_way()
        factors = (1.0,) if job is None or not job.lr_factors else job.lr_factors
        figures = {
            "Gradient_Norm_Sqr": self.gns.sqr_avg(),
            "Gradient_Variance": self.gns.var_avg(),
            "Gain": self.gain,
            "Learning_Rate_Factor": sum(factors) / len(factors),
            "Accum_Scale": self.gns.accum_scale,
            "Accum_Count": 1 if step is None else step.index + 1,
            "Progress": self.gns.get_progress(),
        }
        for name, value in figures.items():
            writer.add_scalar(prefix + name, value, global_step)

    def noise_estimate(self) -> NoiseEstimate | None:
        """What is known of the noise of this model's gradient; None until a step was measured."""
        return None if self._learner is None else self._learner.noise.estimate()

    # For the session

    def hand_over(self, job: Job) -> None:
        """Put model and optimizer under the job's care."""
        rule = by_noise(self.scaling_rule.rule(self.optimizer, job.engine.state.pace.base))
        job.wrap(self.module, self.optimizer, scheduler=self.lr_scheduler, schedule="manual", rule=rule)
        learner = self._learner = job.engine.state.learners[-1]
        learner.noise.reports_loss = False
        # Averaged over AdaptDL's thousand base batches from the first step on, so that figures are those users know.
        learner.noise.average_with(lambda: MomentAverage(base_batch=job.engine.state.pace.base))
        current_session().states.load(self._name)

    def _capture_scaler(self) -> Any:
        return None if self.mp_scaler is None else self.mp_scaler.state_dict()

    def _restore_scaler(self, saved: Any) -> None:
        if self.mp_scaler is not None and saved:
            self.mp_scaler.load_state_dict(saved)

    def unpatched(self) -> AbstractContextManager[None]:
        """While the body runs, the optimizer's step is its own."""
        return self._patch.lifted()

    def give_back(self) -> None:
        """Give the optimizer its own step again."""
        self.clipping.give_back()
        self._patch.give_back()

    def _stepped(self, closure: Callable[[], Any] | None) -> Any:
        session, step = current_session(), loops.step_under_way()
        if session.current is None:
            return self._stepped_plainly(closure)
        if session.job is None or step is None or self._learner is None or step.index < 0:
            raise LoopError(
                "optimizer.step() was called in a loop that evaluates. Train inside `for batch in loader` over the "
                "training AdaptiveDataLoader, with gradients enabled and the model in training mode."
            )
        self._check(step, by_closure=closure is not None)
        steps = session.job.engine.steps
        if closure is None:
            steps.weigh([self._learner])
            steps.step(None, (), [self._learner], None)
            return None
        losses: list[Any] = []
        bound = closure if step.is_last else _bound(closure)
        steps.step(lambda: losses.append(self._evaluated(bound)), (), [self._learner], None)
        return losses[0] if losses else None

    def _stepped_plainly(self, closure: Callable[[], Any] | None) -> Any:
        """Outside every AdaptiveDataLoader: what DistributedDataParallel would do, and no more."""
        collective = current_session().collective
        if not self._warned:
            self._warned = True
            warnings.warn(
                "optimizer.step() was called outside a loop over an AdaptiveDataLoader: gradients are averaged over "
                "the replicas, but nothing is scaled, counted or saved. Train with an AdaptiveDataLoader.",
                UserWarning,
                stacklevel=5,
            )
        if collective.size > 1:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            collective.sum_tensors([p.grad for p in parameters])
            for parameter in parameters:
                parameter.grad = None if parameter.grad is None else parameter.grad / collective.size
        return self._patch.plain(closure)

    def _evaluated(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        job = current_session().job
        assert job is not None and self._learner is not None
        job.engine.steps.weigh([self._learner])
        step = loops.step_under_way()
        if isinstance(loss, Tensor) and step is not None:
            self._learner.add_loss(loss, step.mine[step.index].weight)
        return loss

    def _check(self, step: StepInProgress, *, by_closure: bool) -> None:
        if self._learner is None or step.ended:
            raise LoopError("optimizer.step() was called twice for one batch. Call it once for each batch.")
        gradients = (p.grad for group in self.optimizer.param_groups for p in group["params"])
        if not by_closure and all(gradient is None for gradient in gradients):
            raise LoopError(
                "optimizer.step() was called without gradients. Call loss.backward() for this batch before it, on a "
                "loss that depends on the optimizer's parameters, and zero_grad() not in between."
            )
        number = next(i for i, model in enumerate(current_session().models) if model is self)
        if number in step.taken:
            raise LoopError("optimizer.step() was called twice for one batch. Call it once for each batch.")


class GradientNoiseScale:
    """What is known of the gradient's signal and noise, in AdaptDL's units: variance of a batch of the initial size."""

    def __init__(self, model: AdaptiveDataParallel) -> None:
        self._model = model

    def sqr_avg(self) -> float:
        """The squared norm of the true gradient; 1 before it was measured."""
        moments = self._moments()
        return 1.0 if moments is None else max(moments.signal, 0.0)

    def var_avg(self) -> float:
        """The trace of the covariance of a mean gradient over the initial batch; 0 before it was measured."""
        moments, job = self._moments(), current_session().job
        return 0.0 if moments is None or job is None else max(moments.noise, 0.0) / job.engine.state.pace.base

    def gain(self, scale: float) -> float:
        """How many initial steps one step at ``scale`` times the initial batch is worth."""
        job = current_session().job
        return gain(scale, self._moments(), base_batch=1 if job is None else job.engine.state.pace.base)

    def get_progress(self) -> float:
        """Steps at the initial batch that all steps so far were worth."""
        job = current_session().job
        return 0.0 if job is None else job.progress

    @property
    def accum_scale(self) -> float:
        """One batch of all replicas, relative to the initial batch."""
        job, step = current_session().job, loops.step_under_way()
        if job is None or step is None:
            return 1.0
        return step.plan.global_batch / step.plan.accumulation / job.engine.state.pace.base

    def _moments(self) -> Moments | None:
        estimate = self._model.noise_estimate()
        return None if estimate is None else estimate.total


def _bound(closure: Callable[[], Any]) -> Callable[[], Any]:
    """The closure with the batch it was made for: the loop's variables will mean the next one when it is called."""
    if not isinstance(closure, FunctionType):
        return closure
    cells = tuple(_copied(cell) for cell in closure.__closure__ or ())
    return FunctionType(closure.__code__, dict(closure.__globals__), closure.__name__, closure.__defaults__, cells)


def _copied(cell: CellType) -> CellType:
    try:
        return CellType(cell.cell_contents)
    except ValueError:  # not assigned yet
        return CellType()
