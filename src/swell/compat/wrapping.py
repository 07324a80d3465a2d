"""A wrapper around an optimizer that is a real ``torch.optim.Optimizer`` to schedulers, scalers and pickle."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class WrappingOptimizer(Optimizer):
    """Shares the inner optimizer's ``param_groups``, ``state`` and ``defaults`` by reference.

    A change to either is seen in both, so a scheduler may be given the wrapper or the inner optimizer. Subclasses say
    what a step does. Other attributes are those of the inner optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        # The parent's __init__ would build parameter groups of its own; its __setstate__ sets up the rest.
        super().__setstate__({"_optimizer": optimizer})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's parameter groups."""
        return self._optimizer.param_groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:  # type: ignore[override]
        """The inner optimizer's state."""
        return self._optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The inner optimizer's defaults."""
        return self._optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        inner = self.__dict__.get("_optimizer")
        if inner is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(inner, name)

    def __getstate__(self) -> dict[str, Any]:
        """Everything except what others attached to this object: a scheduler's ``step``, hooks."""
        attached = ("step", "_opt_called")
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in attached and not name.startswith("_optimizer_")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(dict(state))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._optimizer!r})"

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._optimizer.add_param_group(param_group)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer.zero_grad(*args, **kwargs)  # with the arguments that the inner one takes
