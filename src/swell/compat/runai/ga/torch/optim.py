"""Optimizers that step on every n-th call of ``step()``, with the mean gradient of the n."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import optim as torch_optim

from swell.compat.runai.ga.torch.exchange import OneExchange, overflowed
from swell.core.counts import whole_number
from swell.errors import CheckpointError, ConfigError, LoopError
from swell.gradients.gradient_sum import GradientSum

OWN = (
    "_steps", "_taken", "_counted", "_accumulator", "_exchange", "_step_supports_amp_scaling", "stepped", "step",
    "_opt_called",
)  # fmt: skip


class Accumulating:
    """The part that an accumulating optimizer adds to the optimizer's own class."""

    _steps: int
    _taken: int  # micro-batches since the last step
    _counted: int  # those of them that did not overflow
    _accumulator: GradientSum
    _exchange: OneExchange
    stepped: bool
    """Whether the last call of ``step()`` updated the weights; step a scheduler only then."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the gradients of one micro-batch; on every n-th call, step with the mean of the n."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._exchange.stop_looking()
        if overflowed(self):
            super().zero_grad()  # type: ignore[misc]
        else:
            self._accumulator.take(multiplier=1.0, measure=False, preconditioned=False)
            self._counted += 1
        self._taken += 1
        self.stepped = self._taken >= self._steps and self.flush()
        return loss

    @torch.no_grad()
    def flush(self) -> bool:
        """Step with the mean of what is accumulated, as at an epoch's end; False where there is nothing.

        Under DDP the replicas bring their gradients together here, so every replica calls it.
        """
        if not self._taken:
            return False
        count = self._exchange.sum(self._accumulator, self._counted)
        gradients = [p.grad for p in self._accumulator.parameters if p.grad is not None]
        if gradients and count:
            torch._foreach_div_(gradients, float(count))
        self._taken = self._counted = 0
        if count:
            super().step()  # type: ignore[misc]
        self._accumulator.clear()
        return count > 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear what backward() left; what is accumulated stays, for ``step()`` clears it when it has used it."""
        super().zero_grad(set_to_none=set_to_none)  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, with the gradients accumulated so far; safe to load with ``weights_only=True``."""
        if self._taken and self._exchange.found:
            raise LoopError(
                f"{self._taken} of {self._steps} gradients are accumulated, on each replica its own: a checkpoint "
                "would lose the others'. Save after a real step (optimizer.stepped), or call flush() on every replica."
            )
        saved = super().state_dict()  # type: ignore[misc]
        return {**saved, "runai": {"steps": self._steps, "taken": self._taken, "sums": _held(self._accumulator)}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint of this optimizer or of the plain one, from which accumulation begins anew."""
        own = state_dict.get("runai")
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "runai"})  # type: ignore[misc]
        self._accumulator.clear()
        self._taken = self._counted = 0
        if own is None or not own["taken"]:
            return
        if own["steps"] != self._steps:
            raise CheckpointError(
                f"{own['taken']} of {own['steps']} gradients are accumulated in the checkpoint, this optimizer takes "
                f"{self._steps} a step. Save after a step, or load with steps={own['steps']}."
            )
        _hold(self._accumulator, own["sums"])
        self._taken = self._counted = int(own["taken"])

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self).__mro__[2]
        plain = {name: value for name, value in self.__dict__.items() if name not in OWN and not _hooks(name)}
        return (_rebuilt, (kind, plain, self._steps, self._taken, _held(self._accumulator)))


Accumulating.step.hooked = True  # type: ignore[attr-defined]  # or torch would run step hooks on every micro-batch too


def Optimizer(optimizer: torch_optim.Optimizer, steps: int) -> Any:
    """The optimizer, of its own class and with its own state, stepping once for every ``steps`` calls of ``step()``.

    The step's gradient is the **mean** over the micro-batches, as for one batch of them all; Run:AI's was the sum, and
    a script that divides its loss by ``steps`` must stop doing so. Each call takes the gradients out of ``.grad``: a
    ``GradScaler`` unscales each once, a micro-batch that overflowed is not counted, and ``zero_grad()`` may be called
    at any time. To clip the accumulated gradient, register a step pre-hook: it runs before real steps only.

    A model under ``DistributedDataParallel`` that trains with this optimizer alone exchanges its gradients with the
    real step only: it is found by itself, and its own averaging is switched off.

    The optimizer passed in is left as it is and shares parameter groups and state with the one returned.

    >>> parameter = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = Optimizer(torch_optim.SGD([parameter], lr=1.0), steps=2)
    >>> for sample in (0.2, 0.4):
    ...     (sample * parameter).sum().backward()
    ...     optimizer.step()
    >>> parameter.item(), isinstance(optimizer, torch_optim.SGD)
    (0.69999..., True)
    """
    if isinstance(optimizer, Accumulating):
        raise ConfigError("the optimizer accumulates already; wrap the plain one, or use it as it is.")
    plain = {name: value for name, value in optimizer.__dict__.items() if name not in OWN}
    return _rebuilt(type(optimizer), plain, whole_number(steps, name="steps"), 0, None)


def _rebuilt(kind: type[torch_optim.Optimizer], attributes: dict[str, Any], steps: int, taken: int, sums: Any) -> Any:
    """An object of the class with accumulation added, without ``__init__``, which would drop state and arguments."""
    both = type(kind.__name__, (Accumulating, kind), {"__module__": kind.__module__})
    made = cast(Any, both.__new__(both))
    made.__setstate__(attributes)
    made._steps, made._taken, made._counted, made.stepped = steps, taken, taken, False
    made._accumulator = GradientSum(made)
    made._exchange = OneExchange(made)
    if sums is not None:
        _hold(made._accumulator, sums)
    return made


@torch.no_grad()
def _held(accumulator: GradientSum) -> list[torch.Tensor | None]:
    """A copy of the sums so far."""
    fresh = [parameter.grad for parameter in accumulator.parameters]
    accumulator.release(accumulator.codes())
    sums = [None if p.grad is None else p.grad.clone() for p in accumulator.parameters]
    accumulator.take(multiplier=1.0, measure=False, preconditioned=False)
    for parameter, gradient in zip(accumulator.parameters, fresh, strict=True):
        parameter.grad = gradient
    return sums


@torch.no_grad()
def _hold(accumulator: GradientSum, sums: Sequence[torch.Tensor | None]) -> None:
    """Begin with sums that were held before."""
    for parameter, held in zip(accumulator.parameters, sums, strict=True):
        parameter.grad = None if held is None else held.to(parameter, copy=True)
    accumulator.take(multiplier=1.0, measure=False, preconditioned=False)


def _hooks(name: str) -> bool:
    return name.startswith("_optimizer_")


def _ready_made(kind: type[torch_optim.Optimizer]) -> Callable[..., Any]:
    def make(steps: int, *args: Any, **kwargs: Any) -> Any:
        return Optimizer(kind(*args, **kwargs), steps)

    make.__name__ = make.__qualname__ = kind.__name__
    make.__doc__ = f"``torch.optim.{kind.__name__}`` that steps on every ``steps``-th call; the rest is its own."
    return make


Adadelta = _ready_made(torch_optim.Adadelta)
Adagrad = _ready_made(torch_optim.Adagrad)
Adam = _ready_made(torch_optim.Adam)
AdamW = _ready_made(torch_optim.AdamW)
Adamax = _ready_made(torch_optim.Adamax)
ASGD = _ready_made(torch_optim.ASGD)
SGD = _ready_made(torch_optim.SGD)
Rprop = _ready_made(torch_optim.Rprop)
RMSprop = _ready_made(torch_optim.RMSprop)
