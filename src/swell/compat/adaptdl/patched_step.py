"""An optimizer whose own ``step`` was replaced, on the instance, and can be given back.

swell itself never touches a user's optimizer. Scripts written for AdaptDL hold the object they made and call its
``step``, so a facade that leaves them as they are has no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch.optim import Optimizer

_NOT_THERE = object()


class PatchedStep:
    """Lets ``function(closure)`` run where the user calls ``optimizer.step``; inside it the optimizer's own step runs.

    The optimizer keeps its class. Schedulers made before or after the change find what they look for.
    """

    def __init__(
        self, optimizer: Optimizer, function: Callable[[Callable[[], Any] | None], Any], **more: Callable[..., Any]
    ) -> None:
        self._optimizer, self._function = optimizer, function
        self._plain, self._inside = optimizer.step, False

        def step(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self._step(closure)

        if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # else the scheduler warns at each step
        # A method, for a scheduler made later looks for its __func__. A fused optimizer would be handed gradients that
        # a GradScaler has not unscaled, hence the second name.
        new = {"step": MethodType(step, optimizer), "_step_supports_amp_scaling": False, **more}
        self._before = {name: vars(optimizer).get(name, _NOT_THERE) for name in new}
        vars(optimizer).update(new)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if self._inside:
            return self.plain(closure)
        with self.lifted():
            return self._function(closure)

    @property
    def inside(self) -> bool:
        """Whether it is not the user who calls the optimizer now."""
        return self._inside

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """While the body runs, ``optimizer.step`` is the optimizer's own: it is not the user who calls it."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def plain(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's own step."""
        return self._plain(closure)  # type: ignore[arg-type]

    def give_back(self) -> None:
        """Put everything back as it was."""
        for name, value in self._before.items():
            vars(self._optimizer).pop(name, None)
            if value is not _NOT_THERE:
                vars(self._optimizer)[name] = value
