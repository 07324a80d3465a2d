"""What measuring gradients has cost so far, and whether one more measured step stays within its share of the time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from swell.core.types import Plan
from swell.errors import CheckpointError

_LEAST_LOAN, _LOAN = 10.0, 250.0  # unmeasured steps' time that the first burst may cost beyond its share; times it
_UNNEEDED_LOAN, _UNNEEDED = 2.0, 0.5  # where nothing depends on the figures: the loan, and the part of the share used
_REPAY = 0.5  # of the share, while the loan is not repaid
_RECENT = 8  # steps that a mean time is mostly made of
_OUTLIER = 4.0  # a step that takes this many times its usual time compiled something, or waited for something
_SHAPES = 64  # layouts whose times are remembered

Shape = tuple[int, ...]


def shape_of(plan: Plan, *, split: bool = False) -> Shape:
    """What the time of a step depends on; ``split`` if it was cut in two only to be measured."""
    return plan.replicas, plan.global_batch, 1 if split else plan.accumulation


def loan(share: float, *, needed: bool = True) -> float:
    """How many steps' time the first burst may cost beyond its share: a tenth of the time lends 25 steps.

    A policy that waits for the noise runs at the base batch until it is known, which costs more than the burst. Where
    nothing depends on the figures yet, they are not ``needed`` at once, and the loan is for the first of them alone.
    """
    return max(_LEAST_LOAN, _LOAN * share) if needed else _UNNEEDED_LOAN


class MeasuringBudget:
    """Times measured and unmeasured steps, and says when measuring has cost its share.

    A measured step costs what it takes longer than unmeasured steps of the same shape. What all of them cost together
    stays below ``share`` of the time so far, or below ``loan(share)`` steps and half of that share while the run is
    young. A measured step of unknown cost is allowed twice; then unmeasured steps are timed first. A step that takes
    many times longer than usual, because something is compiled, is charged as ``4`` steps.

    Where nothing depends on the figures, half of the share is used: a step cut in two also slows down those after it,
    by a tenth to a third of its cost where the host sets the pace of a GPU. A measured step of unknown cost is allowed
    once, and is charged later, with what it made once, as the kernels for its halves.

    Every replica must pass the same numbers: then all of them measure the same steps.

    >>> budget = MeasuringBudget()
    >>> for step in range(1000):  # a measured step takes twice the time
    ...     measured = budget.allows((8,), share=0.02)
    ...     budget.committed((8,), measured=measured)
    ...     budget.timed(2.0 if measured else 1.0)
    >>> round(budget.spent_s / budget.total_s, 3)
    0.02
    """

    def __init__(self) -> None:
        self.total_s = 0.0  # of all steps that were timed
        self.spent_s = 0.0  # of it, what measuring has cost
        self._relative: float | None = None  # what a measured step costs, in unmeasured steps
        self._usual: dict[Shape, list[float]] = {}  # by shape: mean seconds of an unmeasured step, steps in it
        self._unknown = 0  # measured steps whose cost could not be told
        self._uncharged: dict[Shape, float] = {}  # seconds of such steps that are charged once that can be
        self._latest_s = 0.0  # of the latest step, had it not been measured
        # The latest step, until the replicas agree on its time: its shape, whether measured, whether timed by itself.
        self._untimed: tuple[Shape, bool, bool] | None = None
        self._needed = True  # whether anything depended on the figures when a step was last allowed

    def allows(self, shape: Shape, *, share: float, needed: bool = True) -> bool:
        """Whether the next step, of this shape, may be measured; sooner where the figures are ``needed``."""
        usual, self._needed = self._usual.get(shape), needed
        known = usual is not None and usual[1] >= 2
        if self._relative is None:
            return known or self._unknown < (2 if needed else 1)
        share = share if needed else _UNNEEDED * share
        step_s = usual[0] if usual is not None and known else self._latest_s
        limit = max(share * self.total_s, loan(share, needed=needed) * step_s + _REPAY * share * self.total_s)
        return self.spent_s + self._relative * step_s <= limit

    def committed(self, shape: Shape, *, measured: bool, by_itself: bool = True) -> None:
        """A step was committed; ``timed`` gives its time later, which is right only on average unless ``by_itself``."""
        self._untimed = shape, measured, by_itself

    def timed(self, step_s: float) -> None:
        """The time of the step before on its slowest replica."""
        untimed, self._untimed = self._untimed, None
        if untimed is None or not 0 < step_s < math.inf:
            return
        shape, measured, by_itself = untimed
        usual = self._usual.get(shape)
        if not by_itself and usual is not None and usual[1] >= 2:
            self.total_s += min(step_s, _OUTLIER * usual[0])
            return
        if not measured:
            self._learn_usual(shape, usual, step_s)
        elif usual is None or usual[1] < 2:
            self._unknown += 1
            if self._relative is not None:  # as much as at other shapes
                self.spent_s += step_s * self._relative / (1 + self._relative)
            elif not self._needed:
                self._uncharged[shape] = step_s
        else:
            cost = _cost(step_s, usual[0])
            self._relative = cost if self._relative is None else self._relative + (cost - self._relative) / _RECENT
            self.spent_s += cost * usual[0]
        self._latest_s = step_s / (1 + self._relative) if measured and self._relative is not None else step_s
        if usual is None or usual[1] < 2:
            self.total_s += 0.0 if self._relative is None else step_s
        else:
            self.total_s += min(step_s, _OUTLIER * usual[0])

    def _learn_usual(self, shape: Shape, usual: list[float] | None, step_s: float) -> None:
        if usual is None:  # the first of its shape may compile; only that it was made is remembered
            while len(self._usual) >= _SHAPES:
                del self._usual[next(iter(self._usual))]
            self._usual[shape] = [step_s, 0.0]
            return
        count = usual[1] = usual[1] + 1
        if count == 1:
            usual[0] = step_s
        else:
            step_s = min(step_s, _OUTLIER * usual[0])
            usual[0] += (step_s - usual[0]) / min(count, _RECENT)
        if count == 2 and shape in self._uncharged:  # not what others will cost, which make nothing of that again
            self.spent_s += _cost(self._uncharged.pop(shape), usual[0]) * usual[0]

    def enter_world(self) -> None:
        """The world changed: the time of the latest step is not known to all."""
        self._untimed = None

    def state_dict(self) -> dict[str, Any]:
        """Everything so far, as plain numbers and lists."""
        return {
            "total_s": self.total_s,
            "spent_s": self.spent_s,
            "relative": self._relative,
            "unknown": self._unknown,
            "latest_s": self._latest_s,
            "uncharged": [[list(shape), step_s] for shape, step_s in self._uncharged.items()],
            "usual": [[list(shape), *values] for shape, values in self._usual.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        try:
            usual = {tuple(map(int, shape)): [float(mean), float(count)] for shape, mean, count in state["usual"]}
            relative = state["relative"]
            loaded = {
                "total_s": float(state["total_s"]),
                "spent_s": float(state["spent_s"]),
                "_relative": None if relative is None else float(relative),
                "_unknown": int(state["unknown"]),
                "_latest_s": float(state["latest_s"]),
                "_uncharged": {tuple(map(int, shape)): float(step_s) for shape, step_s in state.get("uncharged", ())},
                "_usual": usual,
                "_untimed": None,
            }
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state is not a measuring budget's ({type(error).__name__}: {error}); expected what state_dict() "
                "returned. Load it from a complete checkpoint."
            ) from error
        self.__dict__.update(loaded)  # all or nothing


def _cost(step_s: float, usual_s: float) -> float:
    """What a measured step took longer than usual, in steps."""
    return min(max(step_s / usual_s - 1, 0.0), _OUTLIER)
