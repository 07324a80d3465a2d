"""An optimizer's step without the mark that torch makes around it for its profiler, where no profiler runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd import profiler
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_mark: Any = getattr(Optimizer, "profile_hook_step", None)  # torch's own wrapper
_MARKED: Any = None if _mark is None else _mark(lambda: None).__code__  # the code of every step that has it


class OptimizerStep:
    """Steps an optimizer as ``optimizer.step`` does.

    Torch wraps the step of every optimizer, to mark it for the profiler and to call hooks. The mark takes up to 0.1 ms,
    also while nobody profiles. So the step is called without that wrapper, unless a profiler or a hook would notice, or
    somebody has put a step of their own in its place.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.guard: Any | None = None  # the hook that refuses steps by anybody else, and is left out here

    def __call__(self, closure: Callable[[], Any] | None) -> None:
        """Make one step."""
        optimizer = self._optimizer
        bare = None if self._is_heard() else self._bare()
        if bare is None:
            optimizer.step(closure)  # type: ignore[arg-type]
        else:
            bare(optimizer, closure)

    def _is_heard(self) -> bool:
        """Whether a profiler or somebody's hook waits for steps."""
        optimizer: Any = self._optimizer
        before = optimizer.__dict__.get("_optimizer_step_pre_hooks")
        if before is None or optimizer._optimizer_step_post_hooks or profiler._is_profiler_enabled:
            return True
        if before and (len(before) > 1 or self.guard is None or self.guard.id not in before):
            return True
        return bool(_global_optimizer_pre_hooks or _global_optimizer_post_hooks)

    def _bare(self) -> Any:
        """The step inside torch's wrapper; None where what is called as ``optimizer.step`` is something else."""
        optimizer: Any = self._optimizer
        step = type(optimizer).step
        if _MARKED is None or getattr(step, "__code__", None) is not _MARKED:
            return None
        own = optimizer.__dict__.get("step")
        if own is not None:
            # Torch's schedulers put a step there that notes the call, and warn where it was not noted.
            if not getattr(own, "_wrapped_by_lr_sched", False) or own.__wrapped__ is not step:
                return None
            optimizer._opt_called = True
        return step.__wrapped__
