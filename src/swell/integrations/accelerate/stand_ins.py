"""What a script holds in place of its optimizer and its scheduler, which the job steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from swell.errors import LoopError


class StandInOptimizer(Optimizer):
    """Looks like the optimizer; ``step`` finishes a micro-batch, and ``zero_grad`` is the job's to do."""

    def __init__(self, optimizer: Optimizer, step: Callable[[], bool]) -> None:  # not Optimizer's: it owns no state
        self.optimizer, self._finish = optimizer, step
        self.step_was_skipped = False

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # while it is being copied or unpickled
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Finish the micro-batch; update the weights if it was the last of the global batch."""
        if closure is not None:
            raise LoopError(
                "optimizer.step was given a closure; expected none under swell.accelerate. Write the loop with "
                "swell.Job, whose job.step(closure) takes one."
            )
        self.step_was_skipped = not self._finish()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing to do: the job clears gradients when a step is done."""

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Load into the optimizer itself."""
        self.optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return repr(self.optimizer)


class StandInScheduler:
    """Looks like the scheduler, whose steps the job makes: one for each base step, or one for each epoch.

    ``training`` says whether the script is in its loop over the training data.
    """

    def __init__(self, scheduler: Any, *, by: str, training: Callable[[], bool]) -> None:
        self.scheduler, self._by, self._training = scheduler, by, training

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def step(self, *values: Any, **named: Any) -> None:
        """Nothing, where the job steps it; a scheduler that is stepped by hand is stepped."""
        if self._by == "manual":
            self.scheduler.step(*values, **named)
        elif self._training() != (self._by == "progress"):
            asked, place = ("progress", "after the loop") if self._by == "progress" else ("epoch", "inside the loop")
            other = "epoch" if self._by == "progress" else "progress"
            raise LoopError(
                f"schedule is {asked!r}, and scheduler.step() was called {place} over the training data; expected the "
                f"other place. Give Accelerator(schedule={other!r}), or schedule='manual' to step it yourself."
            )
