"""A scheduler that the job steps, in place of the one that the user's loop steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swell.errors import ConfigError
from swell.job import Job


class FollowedScheduler:
    """The user's scheduler, whose ``step()`` stays in the loop and does nothing: the job steps it.

    ``schedule`` says what the loop steps it by; a call at the other place is refused, because the schedule would run
    at another speed than the loop says.
    """

    def __init__(self, scheduler: Any, schedule: str, job: Callable[[], Job]) -> None:
        self._scheduler, self._by, self._job = scheduler, schedule, job

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the job has stepped it, or will at the end of the epoch."""
        if self._by == "manual":
            self._scheduler.step(*args, **kwargs)
            return
        inside = self._job().engine.steps.under_way
        if inside != (self._by == "progress"):
            place = "in the loop over the loader" if inside else "outside the loop over the loader"
            other = "progress" if inside else "epoch"
            raise ConfigError(
                f"schedule is {self._by!r}, and scheduler.step() was called {place}; expected it where the schedule "
                f"moves. Give swell.lightning.Strategy(schedule={other!r})."
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_scheduler"], name)
