"""An optimizer whose ``step`` is replaced on the object, and can be restored.

swell itself never changes a user's optimizer. But scripts written for AdaptDL call ``step`` of the object they made, so
a facade that leaves the scripts as they are has no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch.optim import Optimizer

_MISSING = object()


class PatchedStep:
    """Runs ``function(closure)`` when the user calls ``optimizer.step``; inside it, ``step`` is the optimizer's own.

    The optimizer keeps its class. Schedulers that were created before or after the change work.
    """

    def __init__(
        self, optimizer: Optimizer, function: Callable[[Callable[[], Any] | None], Any], **methods: Callable[..., Any]
    ) -> None:
        self._optimizer, self._function = optimizer, function
        self._plain, self._inside = optimizer.step, False

        def step(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self._step(closure)

        if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # else the scheduler warns at each step
        # A method, because a scheduler that is created later uses its __func__. Without the second name, a GradScaler
        # would leave gradients scaled for a fused optimizer.
        attributes = {"step": MethodType(step, optimizer), "_step_supports_amp_scaling": False, **methods}
        self._originals = {name: vars(optimizer).get(name, _MISSING) for name in attributes}
        vars(optimizer).update(attributes)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if self._inside:
            return self.plain(closure)
        with self.lifted():
            return self._function(closure)

    @property
    def inside(self) -> bool:
        """Whether the optimizer's own step runs, called by the library and not by the user."""
        return self._inside

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """While the body runs, ``optimizer.step`` is the optimizer's own, because the library calls it."""
        outer, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = outer

    def plain(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's own step."""
        return self._plain(closure)  # type: ignore[arg-type]

    def give_back(self) -> None:
        """Restore the optimizer's own attributes."""
        for name, value in self._originals.items():
            vars(self._optimizer).pop(name, None)
            if value is not _MISSING:
                vars(self._optimizer)[name] = value
