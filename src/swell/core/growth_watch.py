"""Notices that the loss rose after the batch had grown, and takes the growth back for a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BEFORE = 32  # losses before a growth that those after it are compared with
_FEWEST = 8  # of each kind, before anything is concluded
_WATCHED = 48  # steps after a growth in which a rise is put down to it
_HIGH = 0.9  # the part of the losses before a growth that each of the latest must exceed
_RISE = 0.2  # the least rise that matters, as a part of the loss before
_HOLD = 250  # base batches of samples for which a growth is taken back; twice as many each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """The loss rose after a growth."""

    before: int  # the batch that the run returns to
    after: int  # the batch that was too large, or whose learning rate was
    loss_before: float
    loss_after: float
    until: int  # samples of the run after which larger batches may be tried again


class GrowthWatch:
    """Compares the losses of steps before and after each growth of the batch.

    The learning rate follows the batch, and no rule knows how large a learning rate a model stands. Where it is too
    large the loss rises, within a few steps. A rise counts if each of the latest 8 losses is above nine tenths of those
    before the growth, which chance does once in a hundred million, and their mean is higher by a fifth. The
    batch is then limited to the one before the growth, and the learning rate with it. Weights are not put back. Each
    time, the limit holds twice as long. A batch that was only tried for a few steps is watched as long: what it did to
    the weights shows when it is gone.

    Every replica has the same losses, so every replica comes to the same conclusion. Another world starts again,
    because the batch before may not fit there.
    """

    def __init__(self, *, base_batch: int) -> None:
        self._base_batch = base_batch
        self._found = 0
        self._limit: tuple[int, int] | None = None  # a batch, and the samples until which it is the largest
        self._replicas = 0
        self._restart(0)

    def _restart(self, batch: int) -> None:
        self._batch = batch
        self._losses: list[float] = []  # at this batch, or since the watch began
        self._baseline: list[float] = []  # before the growth; empty while nothing is watched
        self._grown_from = self._grown_to = batch

    def limit(self, samples: int, replicas: int) -> int | None:
        """The largest batch at this point of the run; None for no limit."""
        if self._limit is None or replicas != self._replicas or samples >= self._limit[1]:
            return None
        return self._limit[0]

    def see(self, *, batch: int, loss: float | None, samples: int, replicas: int) -> Rise | None:
        """Take in a committed step; the rise, if its loss shows one."""
        if loss is None:
            return None
        if replicas != self._replicas:
            self._replicas, self._limit = replicas, None
            self._restart(batch)
        if batch != self._batch:
            self._follow(batch)
        self._losses = [*self._losses, loss][-_WATCHED:]
        if not self._baseline:
            return None
        if len(self._losses) >= _WATCHED:  # it went well
            self._baseline = []
            return None
        return self._rise(samples)

    def _follow(self, batch: int) -> None:
        before, self._batch = self._batch, batch
        if batch < before:
            if not self._baseline:
                self._restart(batch)
            return
        if not self._baseline or before <= self._grown_from:  # otherwise both growths are watched together
            if len(self._losses) >= _FEWEST:
                self._baseline = self._losses[-_BEFORE:]
            self._grown_from, self._grown_to, self._losses = before, batch, []
        self._grown_to = max(self._grown_to, batch)

    def _rise(self, samples: int) -> Rise | None:
        after = self._losses[-_FEWEST:]
        lost = not all(math.isfinite(loss) for loss in after)
        if not lost and (len(after) < _FEWEST or not _rose(self._baseline, after)):
            return None
        self._found += 1
        until = samples + _HOLD * 2 ** (self._found - 1) * self._base_batch
        rise = Rise(
            before=self._grown_from,
            after=self._grown_to,
            loss_before=_mean(self._baseline),
            loss_after=_mean(after),
            until=until,
        )
        self._limit = (self._grown_from, until)
        self._restart(self._batch)
        return rise

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers and lists."""
        return {
            "found": self._found,
            "limit": None if self._limit is None else list(self._limit),
            "replicas": self._replicas,
            "batch": self._batch,
            "losses": list(self._losses),
            "baseline": list(self._baseline),
            "grown_from": self._grown_from,
            "grown_to": self._grown_to,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._found, self._replicas = int(state["found"]), int(state["replicas"])
        limit = state["limit"]
        self._limit = None if limit is None else (int(limit[0]), int(limit[1]))
        self._batch, self._grown_from = int(state["batch"]), int(state["grown_from"])
        self._grown_to = int(state.get("grown_to", self._batch))  # not in earlier versions
        self._losses = [float(loss) for loss in state["losses"]]
        self._baseline = [float(loss) for loss in state["baseline"]]


def _rose(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether the losses are higher by more than chance and by enough to matter.

    By rank, because losses that run away have a mean and a spread that say little.
    """
    high = sorted(before)[math.ceil(_HIGH * len(before)) - 1]
    mean = _mean(before)
    return min(after) > high and _mean(after) - mean > _RISE * abs(mean)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
