"""What steps took so far, one robust summary per configuration, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from swell.core.types import StepSummary, StepTimes
from swell.errors import CheckpointError, ConfigError

_NEW_SHAPE, _KNOWN_SHAPE = 2, 1  # steps left out after a change of shape: compiling and warm caches; warm caches alone
_LEAST = 3  # measured steps before a configuration is told of
_MOVED, _JITTER = 0.02, 0.1  # a median is told again once it moved by 2 %, or by more than so few steps scatter
_KEPT, _STOOD = 512, 2048  # steps for which a configuration that was only tried is remembered, and one that stood
_CHANGED = 1.5  # a machine so much slower or faster than before is another one, of which only the present is known
_DOUBTED, _CONTRADICTS = 64, 1.2  # less work that took so much longer is forgotten after these steps
_BEYOND = 2.0  # so is more work that took so many times longer than its share; larger ones may miss a cache, but not so

Configuration = tuple[int, int, int, int]  # replicas, nodes, micro-batch, accumulation


@dataclass
class _Entry:
    step_s: list[float] = field(default_factory=list)  # the newest, oldest first
    sync_s: list[float] = field(default_factory=list)
    told: StepSummary | None = None
    last: int = 0  # the step it was run at last
    forgotten: int = 0  # how often it was, for its age: what is tried again and again is tried ever more seldom
    pace_s: float | None = None  # its median when half a window was full, to tell whether the machine is still the same


class Profile:
    """Collects the times of committed steps; ``summaries()`` is what a policy sees of them.

    The first steps after a change of shape are left out (two when it was never run before, otherwise one), and each
    configuration keeps the newest ``window`` steps and tells their median, so compilation, warm-up and the odd stall do
    no harm. At most ``limit`` configurations are kept; the one not run for longest goes first. What a machine did once
    it need not do again: a configuration is forgotten when it was not run for long, sooner if it was only tried. So are
    those of this world that were measured at another speed: all of them when the present one becomes much slower or
    faster than it was, otherwise those whose times cannot be of one machine with the present one's. The summaries stay
    the same tuple until something material changed, so whatever is computed from them can be kept.

    >>> profile = Profile()
    >>> for seconds in (9.0, 0.5, 0.2, 0.2, 7.0, 0.2):
    ...     profile.add(StepTimes(replicas=1, nodes=1, micro_batch=32, accumulation=1, step_s=seconds))
    >>> [(seen.step_s, seen.count) for seen in profile.summaries()]
    [(0.2, 3)]
    """

    def __init__(self, *, window: int = 32, limit: int = 64) -> None:
        if window < _LEAST or limit < 1:
            raise ConfigError(
                f"a profile with window={window} and limit={limit} tells nothing: the window must hold at least "
                f"{_LEAST} steps and the limit at least 1 configuration."
            )
        self._window, self._limit = window, limit
        self._entries: dict[Configuration, _Entry] = {}  # the one run last is at the end
        self._shape: Configuration | None = None
        self._leave_out = 0
        self._steps = 0
        self._summaries: tuple[StepSummary, ...] = ()
        self.latest: StepTimes | None = None  # the step that was taken in last, by this process

    def add(self, times: StepTimes) -> None:
        """Take in one committed step; times that are not finite and above zero are left out."""
        self.latest = times
        shape = (times.replicas, times.nodes, times.micro_batch, times.accumulation)
        self._steps += 1
        if shape != self._shape:
            self._shape = shape
            self._leave_out = _KNOWN_SHAPE if shape in self._entries else _NEW_SHAPE
            self._entries[shape] = self._entries.pop(shape, _Entry())
            while len(self._entries) > self._limit:
                self._retell(self._entries.pop(next(iter(self._entries))).told, None)
        if not 0 < times.step_s < math.inf:
            return
        if self._leave_out:
            self._leave_out -= 1
            return
        entry = self._entries[shape]
        entry.last = self._steps
        for values, value in ((entry.step_s, times.step_s), (entry.sync_s, times.sync_s)):
            values.append(value)
            del values[: -self._window]
        self._tell(shape, entry)
        self._forget_the_past(shape, entry)

    def summaries(self) -> tuple[StepSummary, ...]:
        """One summary per configuration with at least three measured steps, in order of configuration."""
        return self._summaries

    def _tell(self, shape: Configuration, entry: _Entry) -> None:
        count, told = len(entry.step_s), entry.told
        if count < _LEAST:
            return
        now = median(entry.step_s)
        if told is not None:
            moved = abs(now / told.step_s - 1) > max(_MOVED, _JITTER / math.sqrt(told.count))
            grown = count >= min(4 * told.count, self._window) > told.count
            if not (moved or grown):
                return
        replicas, nodes, micro_batch, accumulation = shape
        entry.told = StepSummary(
            replicas=replicas, nodes=nodes, micro_batch=micro_batch, accumulation=accumulation,
            step_s=now, count=count, sync_s=median(entry.sync_s),
        )  # fmt: skip
        self._retell(told, entry.told)

    def _forget_the_past(self, shape: Configuration, entry: _Entry) -> None:
        """Drop what no longer tells of this machine; what is dropped for its age is tried again ever more seldom."""
        sure = entry.told if len(entry.step_s) >= self._window // 2 else None
        now = None if sure is None else sure.step_s
        changed = now is not None and not 1 / _CHANGED < now / (entry.pace_s or now) < _CHANGED
        for other, kept in self._entries.items():
            if other == shape or not kept.step_s:
                continue
            here, age = other[:2] == shape[:2], (self._steps - kept.last) / 2**kept.forgotten
            old = age > (_KEPT if len(kept.step_s) < self._window else _STOOD)
            if changed and here:
                self._forget(other, _Entry())
            elif old or (here and age > _DOUBTED and _contradict(sure, kept.told)):
                self._forget(other, _Entry(forgotten=kept.forgotten + 1))
        entry.pace_s = now if changed else entry.pace_s or now

    def _forget(self, shape: Configuration, instead: _Entry) -> None:
        self._retell(self._entries[shape].told, None)
        self._entries[shape] = instead

    def _retell(self, before: StepSummary | None, after: StepSummary | None) -> None:
        rest = [summary for summary in self._summaries if summary is not before]
        rest = rest if after is None else [*rest, after]
        self._summaries = tuple(sorted(rest, key=lambda s: (s.replicas, s.nodes, s.micro_batch, s.accumulation)))

    def state_dict(self) -> dict[str, Any]:
        """Everything as lists and numbers, ready for JSON."""
        return {
            "entries": [
                {
                    "shape": list(shape),
                    "step_s": list(entry.step_s),
                    "sync_s": list(entry.sync_s),
                    "age": self._steps - entry.last,
                    "forgotten": entry.forgotten,
                    "pace_s": entry.pace_s,
                    "told": None if entry.told is None else [entry.told.step_s, entry.told.count, entry.told.sync_s],
                }
                for shape, entry in self._entries.items()
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved profile; the next step counts as a change of shape, for the process is a new one."""
        entries: dict[Configuration, _Entry] = {}
        try:
            for saved in state["entries"][-self._limit :]:
                replicas, nodes, micro_batch, accumulation = (int(number) for number in saved["shape"])
                step_s = [float(value) for value in saved["step_s"]][-self._window :]
                entry = _Entry(step_s, [float(value) for value in saved["sync_s"]][-self._window :])
                entry.last, entry.forgotten = -int(saved.get("age", 0)), int(saved.get("forgotten", 0))
                entry.pace_s = saved.get("pace_s")
                if saved["told"] is not None:
                    told_s, count, sync_s = saved["told"]
                    entry.told = StepSummary(
                        replicas=replicas, nodes=nodes, micro_batch=micro_batch, accumulation=accumulation,
                        step_s=float(told_s), count=int(count), sync_s=float(sync_s),
                    )  # fmt: skip
                entries[replicas, nodes, micro_batch, accumulation] = entry
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the saved step times cannot be read ({error!r}): expected what Profile.state_dict() gave. Leave them "
                "out of the checkpoint to measure anew; nothing else depends on them."
            ) from error
        self._entries, self._shape, self._leave_out, self._steps, self._summaries = entries, None, 0, 0, ()
        for entry in entries.values():
            if entry.told is not None:
                self._retell(None, entry.told)


def _contradict(one: StepSummary | None, other: StepSummary | None) -> bool:
    """Whether they tell of machines of different speed: more work took much less time, or far more than its share."""
    if one is None or other is None:
        return False
    for less, more in ((one, other), (other, one)):
        micro, accumulation = more.micro_batch / less.micro_batch, more.accumulation / less.accumulation
        if micro >= 1 and accumulation >= 1:
            quicker = less.step_s > _CONTRADICTS * more.step_s
            if quicker or more.step_s > _BEYOND * micro * accumulation * less.step_s:
                return True
    return False


def slowest(times: Iterable[StepTimes]) -> StepTimes:
    """One step's times from those of all its replicas: a step is over when its slowest replica is.

    The slowest waits least for the others, so the least waiting time is what the exchange itself took.

    >>> fast = StepTimes(replicas=2, nodes=1, micro_batch=8, accumulation=2, step_s=1.0, sync_s=0.6)
    >>> slow = StepTimes(replicas=2, nodes=1, micro_batch=8, accumulation=3, step_s=1.1, sync_s=0.1)
    >>> slowest([fast, slow])
    StepTimes(replicas=2, nodes=1, micro_batch=8, accumulation=3, step_s=1.1, sync_s=0.1)
    """
    told = list(times)
    if not told:
        raise ConfigError("no replica told its step's time; pass the times of at least one.")
    return StepTimes(
        replicas=max(one.replicas for one in told),
        nodes=max(one.nodes for one in told),
        micro_batch=max(one.micro_batch for one in told),
        accumulation=max(one.accumulation for one in told),
        step_s=max(one.step_s for one in told),
        sync_s=min(one.sync_s for one in told),
    )
