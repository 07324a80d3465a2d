"""The wrapped model: unchanged for the user's loop, while ``optimizer.step()`` makes a step of the job."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from swell.compat.adaptdl.clipping import Clipping
from swell.compat.adaptdl.members import NamedState
from swell.compat.adaptdl.patched_step import PatchedStep
from swell.compat.adaptdl.session import current_session
from swell.compat.adaptdl.torch import loops
from swell.compat.adaptdl.torch.gradient_noise_scale import GradientNoiseScale
from swell.compat.adaptdl.torch.scaling_rules import ScalingRuleBase, SuitingScale, by_noise
from swell.core.moment_average import MomentAverage
from swell.core.types import NoiseEstimate
from swell.errors import ConfigError, LoopError
from swell.job import Job
from swell.job.learner import Learner
from swell.loop.step import StepInProgress

_TWICE = "optimizer.step() was called twice for one batch; expected one call. Call it once for each batch."
_DDP = frozenset(inspect.signature(DistributedDataParallel.__init__).parameters) - {"self", "module"}


@dataclass(frozen=True, slots=True)
class WrappedState:
    """What was wrapped, under the names by which scripts read it from the original: ``model._state.model``."""

    adp: AdaptiveDataParallel
    model: nn.Module
    optimizer: Optimizer
    lr_scheduler: Any | None
    mp_scaler: Any | None
    name: str


class AdaptiveDataParallel(nn.Module):
    """A model whose optimizer steps with the gradient of the whole global batch.

    Forward and backward are the user's own. ``optimizer.step()`` counts a batch. With the last batch of a global batch
    it sums the gradients over the replicas, scales the learning rate for this one update, and updates the weights.
    ``step`` is replaced on the optimizer object, as in the original; ``adaptdl.close()`` restores it.
    ``DistributedDataParallel``'s arguments are accepted; none of them is needed.

    Weights, optimizer, scheduler and scaler are restored from a checkpoint when the first loop over a loader, or over
    ``remaining_epochs_until``, begins. ``learner`` is the job's view of model and optimizer: its rule and its measured
    noise; None before that loop.
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
            raise LoopError(
                "AdaptiveDataParallel was created without a process group; expected one. Call "
                "adaptdl.torch.init_process_group first."
            )
        if session.job is not None:
            raise LoopError(
                "AdaptiveDataParallel was created after training began; expected every model before. Wrap it before "
                "the loop."
            )
        unknown = sorted(set(kwargs) - _DDP)
        if unknown:
            raise TypeError(
                f"AdaptiveDataParallel got unexpected arguments {', '.join(unknown)}; expected its own and "
                f"DistributedDataParallel's. Leave them out."
            )
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                f"optimizer is {optimizer!r}; expected a torch.optim.Optimizer. Pass the optimizer of this model."
            )
        if mp_scaler is not None and not hasattr(mp_scaler, "unscale_"):
            raise ConfigError(f"mp_scaler is {mp_scaler!r}; expected a torch.amp.GradScaler. Pass a name as name=.")
        super().__init__()
        self.module = model
        self.optimizer, self.lr_scheduler, self.mp_scaler = optimizer, lr_scheduler, mp_scaler
        self.scaling_rule = scaling_rule or SuitingScale()
        self.scaling_rule.initialize(self, optimizer)
        self.gns = GradientNoiseScale(self.noise_estimate)
        session.states.add(NamedState(name, lambda: None, self._capture_scaler, self._restore_scaler))
        self.name = name
        self._state = WrappedState(self, model, optimizer, lr_scheduler, mp_scaler, name)
        self.learner: Learner | None = None
        self._warned = False
        self._patch = PatchedStep(optimizer, self._step)
        self.clipping = Clipping(optimizer, lambda: self._patch.inside)
        if name in session.saved_models:
            self._restore_weights(session.saved_models[name])
        state = [*model.parameters(), *model.buffers()]
        session.collective.broadcast_tensors([tensor.detach() for tensor in state], source=0)
        session.models.append(self)
        session.closers.append(self.give_back)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The model's own output."""
        return self.module(*inputs, **kwargs)

    @property
    def gain(self) -> float:
        """The progress of the latest step, in steps at the initial batch."""
        job = current_session().job
        return 1.0 if job is None else job.gain

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the gradient of the whole global batch in the step under way, as ``torch.nn.utils.clip_grad_norm_``.

        Returns a tensor with the norm of this replica's gradients; after the step it has that of the whole gradient.
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
        """The measured noise of this model's gradient; None before the first measured step."""
        return None if self.learner is None else self.learner.noise.estimate()

    # For the session

    def hand_over(self, job: Job) -> None:
        """Give the model and the optimizer to the job."""
        rule = self.scaling_rule.rule(self.optimizer, job.engine.state.pace.base)
        rule = by_noise(rule, self.gns.gain, num_groups=len(self.optimizer.param_groups))
        job.wrap(self.module, self.optimizer, scheduler=self.lr_scheduler, schedule="manual", rule=rule)
        learner = self.learner = job.engine.state.learners[-1]
        learner.noise.reports_loss = False
        # Average over AdaptDL's thousand base batches from the first step on, so that users know the figures.
        learner.noise.average_with(lambda: MomentAverage(base_batch=job.engine.state.pace.base))
        current_session().states.load(self.name)

    def weights(self) -> dict[str, Any]:
        """The states of model, optimizer and scheduler."""
        parts = {"model": self.module, "optimizer": self.optimizer, "scheduler": self.lr_scheduler}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def _restore_weights(self, saved: dict[str, Any]) -> None:
        self.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.lr_scheduler is not None and "scheduler" in saved:
            self.lr_scheduler.load_state_dict(saved["scheduler"])

    def _capture_scaler(self) -> Any:
        return None if self.mp_scaler is None else self.mp_scaler.state_dict()

    def _restore_scaler(self, saved: Any) -> None:
        if self.mp_scaler is not None and saved:
            self.mp_scaler.load_state_dict(saved)

    def unpatched(self) -> AbstractContextManager[None]:
        """While the body runs, ``optimizer.step`` is the optimizer's own."""
        return self._patch.lifted()

    def give_back(self) -> None:
        """Restore the optimizer's own step."""
        self.clipping.give_back()
        self._patch.give_back()

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        session, step = current_session(), loops.step_under_way()
        if session.current is None:
            return self._step_outside(closure)
        if session.job is None or step is None or self.learner is None or step.index < 0:
            raise LoopError(
                "optimizer.step() was called in a loop that evaluates; expected the loop over the training "
                "AdaptiveDataLoader. Enable gradients and put the model in training mode before that loop."
            )
        self._check(step, by_closure=closure is not None)
        steps = session.job.engine.steps
        if closure is None:
            steps.weigh([self.learner])
            steps.step(None, (), [self.learner], None)
            return None
        losses: list[Any] = []
        bound = closure if step.is_last else _bound(closure)
        steps.step(lambda: losses.append(self._evaluate(bound)), (), [self.learner], None)
        return losses[0] if losses else None

    def _step_outside(self, closure: Callable[[], Any] | None) -> Any:
        """Outside every loop over an AdaptiveDataLoader: average gradients, as DistributedDataParallel would."""
        collective = current_session().collective
        if not self._warned:
            self._warned = True
            warnings.warn(
                "optimizer.step() was called outside a loop over an AdaptiveDataLoader; gradients are averaged over "
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

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        job = current_session().job
        assert job is not None and self.learner is not None
        job.engine.steps.weigh([self.learner])
        step = loops.step_under_way()
        if isinstance(loss, Tensor) and step is not None:
            self.learner.loss.add(loss, step.mine[step.index].weight)
        return loss

    def _check(self, step: StepInProgress, *, by_closure: bool) -> None:
        if self.learner is None or step.ended:
            raise LoopError(_TWICE)
        gradients = (p.grad for group in self.optimizer.param_groups for p in group["params"])
        if not by_closure and all(gradient is None for gradient in gradients):
            raise LoopError(
                "optimizer.step() was called without gradients; expected those of this batch. Call loss.backward() "
                "before it, on a loss that depends on the optimizer's parameters, and no zero_grad() in between."
            )
        number = next(i for i, model in enumerate(current_session().models) if model is self)
        if number in step.taken:
            raise LoopError(_TWICE)


def _bound(closure: Callable[[], Any]) -> Callable[[], Any]:
    """The closure with the values that its variables have now: when it is called, the loop has the next batch."""
    if not isinstance(closure, FunctionType):
        return closure
    cells = tuple(_copy(cell) for cell in closure.__closure__ or ())
    return FunctionType(closure.__code__, dict(closure.__globals__), closure.__name__, closure.__defaults__, cells)


def _copy(cell: CellType) -> CellType:
    try:
        return CellType(cell.cell_contents)
    except ValueError:  # not assigned yet
        return CellType()
