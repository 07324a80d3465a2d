"""Gradient clipping in the user's loop, done once the gradient of all replicas is complete.

A script clips between ``loss.backward()`` and ``optimizer.step()``. There each replica holds the gradient of its own
batch, and only a part of that while gradients accumulate. So ``torch.nn.utils.clip_grad_norm_`` and
``clip_grad_value_`` are replaced while a wrapped optimizer lives. For its parameters they record the request, which the
optimizer's own step then carries out on every replica. For all other parameters they clip at once.
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
    """The user's requests to clip one optimizer's gradients."""

    def __init__(self, optimizer: Optimizer, inside: Callable[[], bool]) -> None:
        self._optimizer, self._inside = optimizer, inside
        self._requests: list[Callable[[], None]] = []
        self._hook = optimizer.register_step_pre_hook(self._clip)
        _watch(self)

    def owned(self, parameters: list[Tensor]) -> list[Tensor]:
        """The parameters of this optimizer among these; none while it steps, when clipping is done at once."""
        if self._inside():
            return []
        own = {parameter for group in self._optimizer.param_groups for parameter in group["params"]}
        return [parameter for parameter in parameters if parameter in own]

    def norm(self, parameters: list[Tensor], max_norm: float, *args: Any, **kwargs: Any) -> Tensor:
        """Clip by norm in the step; returns the norm of the present gradients, later that of the whole gradient."""
        norm_type = args[0] if args else kwargs.get("norm_type", 2.0)
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None], norm_type)
        results = [norm]

        def clip() -> None:
            whole = clip_grad_norm_(parameters, max_norm, *args, **kwargs)
            if results:  # only the first time: a later step may repeat the request
                results.pop().copy_(whole)

        self._requests.append(clip)
        return norm

    def value(self, parameters: list[Tensor], clip_value: float, **kwargs: Any) -> None:
        """Clip each element in the step."""
        self._requests.append(lambda: clip_grad_value_(parameters, clip_value, **kwargs))

    def begin(self) -> None:
        """Another batch begins: drop the requests for the last one.

        A replica without a batch in a step repeats its latest requests, because the others clip in that step.
        """
        self._requests = []

    @torch.no_grad()
    def _clip(self, *_: Any) -> None:
        for clip in self._requests:
            clip()

    def give_back(self) -> None:
        """Remove the hook, and restore torch's functions unless another optimizer needs them replaced."""
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
    """Replace the function in every module that holds it by its name: the user's script may have imported it."""
    for module in list(sys.modules.values()):
        if module is not sys.modules[__name__] and getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


def _owner(parameters: list[Tensor]) -> tuple[Clipping | None, list[Tensor]]:
    """The wrapped optimizer that owns the parameters, and its part of them; None and all of them without one."""
    for clipping in _active:
        owned = clipping.owned(parameters)
        others = {p for p in parameters if p.grad is not None}.difference(owned)
        if owned and others:
            raise ConfigError(
                f"parameters are {len(owned)} of one optimizer and {len(others)} others with gradients; expected those "
                f"of one optimizer, because gradients of two are not complete at the same time. Clip the parameters of "
                f"each optimizer separately."
            )
        if owned:
            return clipping, owned
    return None, parameters


def _as_list(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, *args: Any, **kwargs: Any) -> Tensor:
    owner, owned = _owner(_as_list(parameters))
    return (clip_grad_norm_ if owner is None else owner.norm)(owned, max_norm, *args, **kwargs)


def _clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    owner, owned = _owner(_as_list(parameters))
    return (clip_grad_value_ if owner is None else owner.value)(owned, clip_value, foreach=foreach)


_REPLACED: dict[str, Callable[..., Any]] = {
    "clip_grad_norm_": _clip_grad_norm_,
    "clip_grad_value_": _clip_grad_value_,
}
