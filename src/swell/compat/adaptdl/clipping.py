"""Gradient clipping in the user's loop, done when the gradient of all replicas is there.

A script clips between ``loss.backward()`` and ``optimizer.step()``. There each replica holds its own batch's gradient,
and while gradients accumulate only a part of that. So ``torch.nn.utils.clip_grad_norm_`` and ``clip_grad_value_`` are
replaced while a wrapped optimizer lives: for its parameters they note what is asked for, for all others they do what
they did. What was noted is done by the optimizer's own step, on every replica alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from torch.optim import Optimizer

from swell.errors import ConfigError

_PLAIN = {"clip_grad_norm_": clip_grad_norm_, "clip_grad_value_": clip_grad_value_}


class Clipping:
    """What the user asked to be clipped of one optimizer's gradients."""

    def __init__(self, optimizer: Optimizer, inside: Callable[[], bool]) -> None:
        self._optimizer, self._inside = optimizer, inside
        self._asked: list[Callable[[], None]] = []
        self._hook = optimizer.register_step_pre_hook(self._clip)
        _watch(self)

    def owned(self, parameters: list[Tensor]) -> list[Tensor]:
        """Those of the parameters that are this optimizer's; none while it steps, when clipping is meant now."""
        if self._inside():
            return []
        mine = {parameter for group in self._optimizer.param_groups for parameter in group["params"]}
        return [parameter for parameter in parameters if parameter in mine]

    def norm(self, parameters: list[Tensor], max_norm: float, *args: Any, **kwargs: Any) -> Tensor:
        """Clip by norm with the step; the norm of the gradients at hand, which becomes that of the whole gradient."""
        kind = args[0] if args else kwargs.get("norm_type", 2.0)
        shown = get_total_norm([p.grad for p in parameters if p.grad is not None], kind)
        waiting = [shown]

        def clip() -> None:
            whole = clip_grad_norm_(parameters, max_norm, *args, **kwargs)
            if waiting:  # it may be done again, in a step of which this replica gets no batch
                waiting.pop().copy_(whole)

        self._asked.append(clip)
        return shown

    def value(self, parameters: list[Tensor], clip_value: float, **kwargs: Any) -> None:
        """Clip each element with the step."""
        self._asked.append(lambda: clip_grad_value_(parameters, clip_value, **kwargs))

    def begin(self) -> None:
        """Another batch is out: what was asked for the last one is done, or its gradients were only a part.

        A replica that gets no batch of a step still does what it did last, as the others do.
        """
        self._asked = []

    @torch.no_grad()
    def _clip(self, *_: Any) -> None:
        for clip in self._asked:
            clip()

    def give_back(self) -> None:
        """Leave the optimizer, and torch's functions if nobody else needs them replaced."""
        self._hook.remove()
        _unwatch(self)


_active: list[Clipping] = []


def _watch(clipping: Clipping) -> None:
    if not _active:
        for name, plain in _PLAIN.items():
            _swap(name, plain, _REPLACED[name])
    _active.append(clipping)


def _unwatch(clipping: Clipping) -> None:
    if clipping in _active:
        _active.remove(clipping)
        if not _active:
            for name, plain in _PLAIN.items():
                _swap(name, _REPLACED[name], plain)


def _swap(name: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Wherever a module holds the function by its name: the user's script may have imported it."""
    for module in list(sys.modules.values()):
        if module is not sys.modules[__name__] and getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


def _owner(parameters: list[Tensor]) -> tuple[Clipping | None, list[Tensor]]:
    """Whose gradients are meant, and which parameters of it; nobody's where they are no wrapped optimizer's."""
    for clipping in _active:
        owned = clipping.owned(parameters)
        others = {p for p in parameters if p.grad is not None}.difference(owned)
        if owned and others:
            raise ConfigError(
                f"of the parameters to clip {len(owned)} are one optimizer's, {len(others)} others have gradients too: "
                f"those are not whole at the same time. Clip the parameters of each optimizer by themselves."
            )
        if owned:
            return clipping, owned
    return None, parameters


def _listed(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, *args: Any, **kwargs: Any) -> Tensor:
    owner, owned = _owner(_listed(parameters))
    return (clip_grad_norm_ if owner is None else owner.norm)(owned, max_norm, *args, **kwargs)


def _clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    owner, owned = _owner(_listed(parameters))
    return (clip_grad_value_ if owner is None else owner.value)(owned, clip_value, foreach=foreach)


_REPLACED: dict[str, Callable[..., Any]] = {
    "clip_grad_norm_": _clip_grad_norm_,
    "clip_grad_value_": _clip_grad_value_,
}
