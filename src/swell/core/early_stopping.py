"""When a run ends by a metric: at a target, or after a number of turns without a better value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from swell.core.counts import whole_number
from swell.errors import ConfigError


class EarlyStopping:
    """Judges one value of a metric after another.

    ``target`` ends the run at the first value that is at least as good. ``patience`` ends it after that many values in
    a row without a new best one. A value that is not a number is no better than any other.

    >>> stopping = EarlyStopping("loss", patience=2)
    >>> [stopping.judge(loss) for loss in (0.9, 0.7, 0.8, 0.75)]
    [None, None, None, 'loss was 0.75, and no better than 0.7 for 2 turns']
    """

    def __init__(
        self,
        metric: str,
        *,
        target: float | None = None,
        patience: int | None = None,
        better: Literal["lower", "higher"] = "lower",
    ) -> None:
        if not isinstance(metric, str) or not metric:
            raise ConfigError(f"metric is {metric!r}; expected a metric's name. Give for example metric='loss'.")
        if target is None and patience is None:
            raise ConfigError(
                f"metric is {metric!r}, and target and patience are None; expected one of them. Give the value to "
                "reach, or the number of turns without a better one after which the run ends."
            )
        if better not in ("lower", "higher"):
            raise ConfigError(f"better is {better!r}; expected 'lower' or 'higher'. Give 'higher' for an accuracy.")
        if target is not None and (isinstance(target, bool) or not isinstance(target, (int, float))):
            raise ConfigError(f"target is {target!r}; expected a number. Give the value to reach, such as 0.95.")
        self.metric, self._target, self._sign = metric, target, -1.0 if better == "lower" else 1.0
        self._patience = None if patience is None else whole_number(patience, name="patience")
        self.best: float | None = None
        self._since_best = 0
        self.over = False

    def judge(self, value: float) -> str | None:
        """Take in a value; why the run ends, if it does."""
        if self.best is None or math.isnan(self.best) or self._sign * value > self._sign * self.best:
            self.best, self._since_best = value, 0
        else:
            self._since_best += 1
        reason = None
        if self._target is not None and self._sign * value >= self._sign * self._target:
            reason = f"{self.metric} was {value:.4g}, which reaches the target of {self._target:.4g}"
        elif self._patience is not None and self._since_best >= self._patience:
            turns = "1 turn" if self._patience == 1 else f"{self._patience} turns"
            reason = f"{self.metric} was {value:.4g}, and no better than {self.best:.4g} for {turns}"
        self.over = reason is not None
        return reason

    def state_dict(self) -> dict[str, Any]:
        """What was judged so far, without the settings."""
        return {"metric": self.metric, "best": self.best, "since_best": self._since_best, "over": self.over}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; one of another metric is ignored."""
        if state["metric"] != self.metric:
            return
        self.best = None if state["best"] is None else float(state["best"])
        self._since_best = int(state["since_best"])
        reached = self._patience is not None and self._since_best >= self._patience
        self.over = bool(state["over"]) and (self._target is not None or reached)
