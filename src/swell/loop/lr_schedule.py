"""The user's learning-rate scheduler, stepped by what was learnt rather than by how many steps it took."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from swell.errors import ConfigError, LoopError

MODES = ("progress", "epoch", "manual")
NEEDED = ("step", "state_dict", "load_state_dict")


class LRSchedule:
    """Steps one scheduler: once per base step of progress, once per epoch, or never (the user does).

    A schedule written for the base batch keeps its meaning when the batch grows: a step worth 3.2 base steps moves it
    by 3 and keeps 0.2 for later.
    """

    def __init__(self, scheduler: Any, *, by: str) -> None:
        if by not in MODES:
            raise ConfigError(f"schedule={by!r} is not known; expected one of {', '.join(map(repr, MODES))}.")
        if isinstance(scheduler, ReduceLROnPlateau) and by != "manual":
            raise ConfigError(
                f"ReduceLROnPlateau needs a metric for each step, so schedule={by!r} cannot step it. Pass "
                f"schedule='manual' and call scheduler.step(metric) yourself."
            )
        self.scheduler: LRScheduler = scheduler
        self._by = by
        self._steps = 0
        self._place: Any = None  # where the scheduler stood when swell last stepped it

    def advance(self, progress: float) -> None:
        """After a committed step: follow the progress."""
        if self._by == "progress":
            while self._steps + 1 <= progress + 1e-9:
                self._move()
                self._steps += 1

    def end_epoch(self) -> None:
        """After an epoch."""
        if self._by == "epoch":
            self._move()

    def _move(self) -> None:
        """One step of the scheduler, which only swell may make."""
        if self._place is not None and self._now() != self._place:
            raise LoopError(
                "scheduler.step() was called by the script too, and swell steps a scheduler that job.wrap was given. "
                "Remove the call, or pass schedule='manual' to job.wrap to step it yourself."
            )
        try:
            self.scheduler.step()
        except ValueError as error:
            if not hasattr(self.scheduler, "total_steps"):
                raise
            length = "epochs" if self._by == "epoch" else "steps of the base batch, epochs * ceil(samples / base batch)"
            raise ConfigError(
                f"the scheduler ended before the run did: {error}. Make it as long as the run, in {length}, and one "
                f"more. A run that was saved keeps its scheduler: start in another run folder."
            ) from error
        self._place = self._now()

    def _now(self) -> Any:
        """Where the scheduler stands, for those that tell."""
        return getattr(self.scheduler, "last_epoch", None)

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's own state and how far it was stepped."""
        return {"scheduler": self.scheduler.state_dict(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._steps, self._place = int(state["steps"]), None


def schedule_of(optimizer: Any, scheduler: Any, *, by: str) -> LRSchedule:
    """The schedule of an optimizer; refuses what is no scheduler, or was made for another optimizer.

    Of a scheduler that does not tell whom it was made for, nothing is known.
    """
    is_class = isinstance(scheduler, type)
    if is_class or not all(callable(getattr(scheduler, name, None)) for name in NEEDED):
        given = f"the class {scheduler.__name__}" if is_class else f"a {type(scheduler).__name__}"
        raise ConfigError(
            f"job.wrap was given {given} as the scheduler; expected an object with step(), state_dict() and "
            f"load_state_dict(). Make one first, such as torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)."
        )
    its = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
    if its is not None and {id(group) for group in its}.isdisjoint(map(id, optimizer.param_groups)):
        raise ConfigError(
            f"the {type(scheduler).__name__} given to job.wrap was made for another optimizer than the "
            f"{type(optimizer).__name__} beside it, whose learning rate would never change. Make it for that one."
        )
    return LRSchedule(scheduler, by=by)
