"""The user's learning-rate scheduler, stepped by progress and not by the number of optimizer steps."""

from __future__ import annotations

import functools
import math
import types
from typing import Any

from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from swell.errors import ConfigError, LoopError

MODES = ("progress", "epoch", "manual")
METHODS = ("step", "state_dict", "load_state_dict")  # that a scheduler must have


class LRSchedule:
    """Steps one scheduler: once per base step of progress, once per epoch, or never (the user does).

    A schedule written for the base batch keeps its meaning when the batch grows: a step worth 3.2 base steps moves it
    by 3 and keeps 0.2 for later.
    """

    def __init__(self, scheduler: Any, *, by: str) -> None:
        if by not in MODES:
            raise ConfigError(
                f"schedule is {by!r}; expected one of {', '.join(map(repr, MODES))}. Leave it out to follow progress."
            )
        if isinstance(scheduler, ReduceLROnPlateau) and by != "manual":
            raise ConfigError(
                f"schedule is {by!r} for a ReduceLROnPlateau; expected 'manual', because each of its steps needs a "
                f"metric. Pass schedule='manual' to job.wrap and call scheduler.step(metric) yourself."
            )
        self.scheduler: LRScheduler = scheduler
        self._by = by
        self._steps = 0
        self._position: tuple[Any, ...] | None = None  # of the scheduler after the last step that swell made
        self._peak = self._rate  # the largest so far, of those that a step was made with

    def advance(self, progress: float) -> None:
        """After a committed step: follow the progress."""
        if self._by != "progress":
            return
        ahead = math.floor(progress + 1e-9) - self._steps
        moves = [ahead] if ahead > 1 and _can_jump(self.scheduler) else [1] * ahead
        for steps in moves:
            self._move(steps)
            self._steps += steps

    def end_epoch(self) -> None:
        """After an epoch."""
        if self._by == "epoch":
            self._move()

    def _move(self, steps: int = 1) -> None:
        """Step the scheduler, or let it jump; refuse if anybody else has stepped it."""
        if self._position is not None and _position(self.scheduler) != self._position:
            raise LoopError(
                "scheduler.step() was called by the script too; expected only swell to step a scheduler that job.wrap "
                "was given. Remove the call, or pass schedule='manual' to job.wrap and step it yourself."
            )
        if steps > 1:
            self.scheduler.last_epoch += steps - 1
            self.scheduler._step_count += steps - 1
        try:
            self.scheduler.step()
        except ValueError as error:
            if not hasattr(self.scheduler, "total_steps"):
                raise
            length = "epochs" if self._by == "epoch" else "steps of the base batch, epochs * ceil(samples / base batch)"
            raise ConfigError(
                f"the scheduler ended before the run did ({error}); expected one as long as the run in {length}, and "
                f"one more. Make it longer, and start in another run folder: a saved run keeps its scheduler."
            ) from error
        self._position = _position(self.scheduler)
        self._peak = max(self._peak, self._rate)

    @property
    def height(self) -> float:
        """The learning rate as a part of its largest so far; 1 for a scheduler that does not say its optimizer."""
        return self._rate / self._peak if self._peak > 0 else 1.0

    @property
    def _rate(self) -> float:
        """Of the first parameter group; 0 where the scheduler does not say."""
        groups = getattr(getattr(self.scheduler, "optimizer", None), "param_groups", None)
        return float(groups[0]["lr"]) if groups else 0.0

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's own state and how far it was stepped."""
        return {"scheduler": self.scheduler.state_dict(), "steps": self._steps, "peak": self._peak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._steps, self._position = int(state["steps"]), None
        self._peak = max(self._rate, float(state.get("peak", 0.0)))


def _position(scheduler: Any) -> tuple[Any, ...]:
    """How often a scheduler was stepped, and those it is made of; None in place of what it does not say."""
    parts = getattr(
        scheduler, "_schedulers", ()
    )  # of ChainedScheduler, which has no count of its own, and SequentialLR
    return getattr(scheduler, "last_epoch", None), *map(_position, parts)


def _can_jump(scheduler: Any) -> bool:
    """Whether its learning rate follows from the number of its steps alone, so that those between may be left out."""
    if type(scheduler) not in (LambdaLR, OneCycleLR) or "step" in vars(scheduler):  # whose steps somebody watches
        return False
    # An object of the user's may count its calls.
    return all(
        isinstance(each, types.FunctionType | functools.partial) for each in vars(scheduler).get("lr_lambdas", ())
    )


def schedule_of(optimizer: Any, scheduler: Any, *, by: str) -> LRSchedule:
    """The schedule of an optimizer; refuses an object that is no scheduler or belongs to another optimizer.

    A scheduler that does not say which optimizer it belongs to is accepted.
    """
    is_class = isinstance(scheduler, type)
    if is_class or not all(callable(getattr(scheduler, name, None)) for name in METHODS):
        kind = f"the class {scheduler.__name__}" if is_class else f"a {type(scheduler).__name__}"
        raise ConfigError(
            f"job.wrap was given {kind} as the scheduler; expected an object with step(), state_dict() and "
            f"load_state_dict(). Make one first, such as torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)."
        )
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
    if groups is not None and {id(group) for group in groups}.isdisjoint(map(id, optimizer.param_groups)):
        raise ConfigError(
            f"the {type(scheduler).__name__} given to job.wrap was made for another optimizer than the "
            f"{type(optimizer).__name__} beside it; expected one that changes the learning rate of that optimizer. "
            f"Make the scheduler with it."
        )
    return LRSchedule(scheduler, by=by)
