"""Optimizers that step on every n-th call of ``step()``, with the mean gradient of the n."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch import optim as torch_optim

from swell.compat.runai.ga.torch.ddp_exchange import DDPExchange
from swell.core.counts import whole_number
from swell.errors import CheckpointError, ConfigError, LoopError
from swell.gradients.gradient_sum import GradientSum

OWN = (
    "_steps", "_taken", "_counted", "_gradient_sum", "_exchange", "_step_supports_amp_scaling", "stepped", "step",
    "_opt_called",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Accumulation:
    """``optimizer.runai``, under which Run:AI kept its settings."""

    steps: int  # calls of ``step()`` that make one real step
    taken: int  # calls since the last real step


class Accumulating:
    """The part that an accumulating optimizer adds to the optimizer's own class.

    ``zero_grad`` is the class's own, with its own arguments. It clears what backward() left; what is accumulated stays
    until a real step has used it.
    """

    _steps: int
    _taken: int  # micro-batches since the last step
    _counted: int  # those of them that did not overflow
    _gradient_sum: GradientSum
    _exchange: DDPExchange
    stepped: bool
    """Whether the last call of ``step()`` updated the weights; step a scheduler only then."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the gradients of one micro-batch; on every n-th call, step with the mean of the n."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._exchange.stop_search()
        if _overflowed(self):
            super().zero_grad()  # type: ignore[misc]
        else:
            self._gradient_sum.take(multiplier=1.0, measure=False, preconditioned=False)
            self._counted += 1
        self._taken += 1
        self.stepped = self._taken >= self._steps and self.flush()
        return loss

    @torch.no_grad()
    def flush(self) -> bool:
        """Step with the mean of what is accumulated, for the end of an epoch; False if nothing is.

        Under DDP the replicas exchange their gradients here, so every replica must call it.
        """
        if not self._taken:
            return False
        count = self._exchange.sum(self._gradient_sum, self._counted)
        gradients = [p.grad for p in self._gradient_sum.parameters if p.grad is not None]
        if gradients and count:
            torch._foreach_div_(gradients, float(count))
        self._taken = self._counted = 0
        if count:
            super().step()  # type: ignore[misc]
        self._gradient_sum.clear()
        return count > 0

    @property
    def runai(self) -> Accumulation:
        """How far the accumulation is."""
        return Accumulation(steps=self._steps, taken=self._taken)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, with the gradients accumulated so far; safe to load with ``weights_only=True``."""
        if self._taken and self._exchange.active:
            raise LoopError(
                f"{self._taken} of {self._steps} gradients are accumulated, on each replica its own; expected none, "
                "because a checkpoint would lose those of the other replicas. Save after a real step "
                "(optimizer.stepped), or call flush() on every replica first."
            )
        saved = super().state_dict()  # type: ignore[misc]
        return {**saved, "runai": {"steps": self._steps, "taken": self._taken, "sums": _copied(self._gradient_sum)}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint of this optimizer, or of the plain one, which has nothing accumulated."""
        own = state_dict.get("runai")
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "runai"})  # type: ignore[misc]
        self._gradient_sum.clear()
        self._taken = self._counted = 0
        if own is None or not own["taken"]:
            return
        if own["steps"] != self._steps:
            raise CheckpointError(
                f"the checkpoint has {own['taken']} of {own['steps']} gradients accumulated; expected "
                f"steps={self._steps}, as in this optimizer. Save after a real step, or load with steps={own['steps']}."
            )
        _restore(self._gradient_sum, own["sums"])
        self._taken = self._counted = int(own["taken"])

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self).__mro__[2]
        plain = {name: value for name, value in self.__dict__.items() if name not in OWN and not _is_hook(name)}
        return (_rebuilt, (kind, plain, self._steps, self._taken, _copied(self._gradient_sum)))


Accumulating.step.hooked = True  # type: ignore[attr-defined]  # or torch would run step hooks on every micro-batch too


def Optimizer(optimizer: torch_optim.Optimizer, steps: int) -> Any:
    """The optimizer, of its own class and with its own state, stepping once for every ``steps`` calls of ``step()``.

    The step's gradient is the **mean** over the micro-batches, as for one batch of them all. Run:AI's was the sum, so a
    script that divides its loss by ``steps`` must stop doing so. Each call takes the gradients out of ``.grad``: a
    ``GradScaler`` unscales each once, a micro-batch that overflowed does not count, and ``zero_grad()`` may be called
    at any time. To clip the accumulated gradient, register a step pre-hook: it runs before real steps only.

    A model under ``DistributedDataParallel`` that trains with this optimizer alone exchanges its gradients in real
    steps only. It is found automatically, and its own averaging is switched off.

    The optimizer passed in is not changed; it shares parameter groups and state with the one returned.

    >>> parameter = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Optimizer(torch_optim.SGD([parameter], lr=1.0), steps=2)
    >>> for sample in (0.2, 0.4):
    ...     (sample * parameter).sum().backward()
    ...     optimizer.step()
    >>> parameter.item(), isinstance(optimizer, torch_optim.SGD)
    (0.69999..., True)
    """
    if isinstance(optimizer, Accumulating):
        raise ConfigError(
            f"optimizer is an accumulating {type(optimizer).__name__}; expected a plain one. Wrap the plain optimizer, "
            "or use this one as it is."
        )
    plain = {name: value for name, value in optimizer.__dict__.items() if name not in OWN}
    return _rebuilt(type(optimizer), plain, whole_number(steps, name="steps"), 0, None)


def _rebuilt(kind: type[torch_optim.Optimizer], attributes: dict[str, Any], steps: int, taken: int, sums: Any) -> Any:
    """An object of the class with accumulation added, without ``__init__``, which would drop state and arguments."""
    both = type(kind.__name__, (Accumulating, kind), {"__module__": kind.__module__})
    optimizer = cast(Any, both.__new__(both))
    optimizer.__setstate__(attributes)
    optimizer._steps, optimizer._taken, optimizer._counted, optimizer.stepped = steps, taken, taken, False
    optimizer._gradient_sum = GradientSum(optimizer)
    optimizer._exchange = DDPExchange(optimizer)
    if sums is not None:
        _restore(optimizer._gradient_sum, sums)
    return optimizer


def _overflowed(optimizer: Any) -> bool:
    """Whether a ``GradScaler`` reported an overflow; if not, its scale is taken out of the gradients."""
    found_inf, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found_inf is None:
        return False
    optimizer.found_inf = optimizer.grad_scale = None  # meant for us, not for the optimizer's own step
    if bool(found_inf):
        return True
    gradients: list[Tensor] = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    if scale is not None and gradients:
        torch._foreach_div_(gradients, float(scale))
    return False


@torch.no_grad()
def _copied(gradients: GradientSum) -> list[Tensor | None]:
    """A copy of the sums so far."""
    untaken = [parameter.grad for parameter in gradients.parameters]
    gradients.release(gradients.codes())
    sums = [None if p.grad is None else p.grad.clone() for p in gradients.parameters]
    gradients.take(multiplier=1.0, measure=False, preconditioned=False)
    for parameter, gradient in zip(gradients.parameters, untaken, strict=True):
        parameter.grad = gradient
    return sums


@torch.no_grad()
def _restore(gradients: GradientSum, sums: Sequence[Tensor | None]) -> None:
    """Start with sums that were copied before."""
    for parameter, sum_so_far in zip(gradients.parameters, sums, strict=True):
        parameter.grad = None if sum_so_far is None else sum_so_far.to(parameter, copy=True)
    gradients.take(multiplier=1.0, measure=False, preconditioned=False)


def _is_hook(name: str) -> bool:
    return name.startswith("_optimizer_")


def _with_steps(kind: type[torch_optim.Optimizer]) -> Callable[..., Any]:
    def make(steps: int, *args: Any, **kwargs: Any) -> Any:
        return Optimizer(kind(*args, **kwargs), steps)

    make.__name__ = make.__qualname__ = kind.__name__
    make.__doc__ = f"``torch.optim.{kind.__name__}`` that steps on every ``steps``-th call; the rest is its own."
    return make


Adadelta = _with_steps(torch_optim.Adadelta)
Adagrad = _with_steps(torch_optim.Adagrad)
Adam = _with_steps(torch_optim.Adam)
AdamW = _with_steps(torch_optim.AdamW)
Adamax = _with_steps(torch_optim.Adamax)
ASGD = _with_steps(torch_optim.ASGD)
SGD = _with_steps(torch_optim.SGD)
Rprop = _with_steps(torch_optim.Rprop)
RMSprop = _with_steps(torch_optim.RMSprop)
