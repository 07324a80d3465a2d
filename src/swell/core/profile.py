"""Step times so far: one robust summary per configuration, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from swell.core.types import StepSummary, StepTimes
from swell.errors import CheckpointError, ConfigError

_NEW_SHAPE, _KNOWN_SHAPE = 2, 1  # steps left out after a change of shape: they compile, or warm caches
_LEAST = 3  # measured steps before a configuration has a summary
_MOVED, _JITTER = 0.02, 0.1  # a summary is renewed when its median moved by 2 %, or by more than few steps scatter
_REST = 16  # steps between two renewals at first, because the law of step times is fitted again after each; but at once
_SUDDEN = 1.25  # while little was measured of a configuration, or if its median moved by this factor
_PART = 16  # and later this part of all steps
_LOOK = 64  # a well-known configuration is looked at after _REST steps, and later after this part of all steps
_TOGETHER = 16  # steps that are taken in at once, unless somebody reads before
_TRIED, _USED = 512, 2048  # steps for which a configuration is remembered, if it was only tried, or used for a while
_CHANGED = 1.5  # a machine slower or faster by this factor is another machine: its earlier times are forgotten
_CONTRADICTED = 64  # steps for which times are remembered that contradict the present ones
_LONGER = 1.2  # they do if less work took longer by this factor,
_BEYOND_SHARE = 2.0  # or more work took longer than its share by this factor, which a missed cache does not explain

Configuration = tuple[int, int, int, int]  # replicas, nodes, micro-batch, accumulation


@dataclass
class _Entry:
    step_s: list[float] = field(default_factory=list)  # the newest, oldest first
    sync_s: list[float] = field(default_factory=list)
    summary: StepSummary | None = None
    last: int = 0  # the step it ran at last
    forgotten: int = 0  # how often it was forgotten for its age: each time it is remembered for longer
    pace_s: float | None = None  # its median when half a window was full, to notice a change of the machine


class Profile:
    """Collects the times of committed steps; a policy sees ``summaries()``.

    A summary is the median of a configuration's newest ``window`` steps. The first steps after a change of shape are
    left out: two if the shape is new, otherwise one. So compilation, warm-up and a rare stall do no harm. At most
    ``limit`` configurations are kept; the one that has not run for the longest time is dropped first.

    Machines change, so a configuration is forgotten when it has not run for long, sooner if it was only tried. So are
    configurations of this world that were measured at another speed: all of them when the present one becomes much
    slower or faster, otherwise those whose times contradict the present one's. The summaries stay the same tuple until
    something important changes, so results computed from them can be cached.

    >>> profile = Profile()
    >>> for seconds in (9.0, 0.5, 0.2, 0.2, 7.0, 0.2):
    ...     profile.add(StepTimes(replicas=1, nodes=1, micro_batch=32, accumulation=1, step_s=seconds))
    >>> [(summary.step_s, summary.count) for summary in profile.summaries()]
    [(0.2, 3)]
    """

    def __init__(self, *, window: int = 32, limit: int = 64) -> None:
        if window < _LEAST or limit < 1:
            raise ConfigError(
                f"window is {window} and limit is {limit}; expected a window of at least {_LEAST} steps and a limit of "
                "at least 1 configuration. Give for example window=32, limit=64."
            )
        self._window, self._limit = window, limit
        self._entries: dict[Configuration, _Entry] = {}  # the latest is at the end
        self._shape: Configuration | None = None
        self._leave_out = 0
        self._steps = 0
        self._renewed = 0  # the step at which the summaries changed last
        self._looked = 0  # the step at which a summary was last compared with the times
        self._summaries: tuple[StepSummary, ...] = ()
        self._latest: StepTimes | None = None
        self._waiting: list[tuple[Configuration, float, float]] = []  # steps that are taken in before anybody reads

    @property
    def latest(self) -> StepTimes | None:
        """The step that this process added last."""
        self._take_in()
        return self._latest

    def add(self, times: StepTimes) -> None:
        """Add one committed step; a time that is not finite and above 0 is ignored."""
        self.add_step((times.replicas, times.nodes, times.micro_batch, times.accumulation), times.step_s, times.sync_s)

    def add_step(self, shape: Configuration, step_s: float, sync_s: float = 0.0) -> None:
        """As ``add``; steps are taken in together, which takes less time, because mostly nobody reads after each."""
        self._waiting.append((shape, step_s, sync_s))
        if len(self._waiting) >= _TOGETHER:
            self._take_in()

    def _take_in(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for shape, step_s, sync_s in waiting:
            self._take(shape, step_s, sync_s)
        (replicas, nodes, micro_batch, accumulation), step_s, sync_s = waiting[-1]
        self._latest = StepTimes(
            replicas=replicas, nodes=nodes, micro_batch=micro_batch, accumulation=accumulation,
            step_s=step_s, sync_s=sync_s,
        )  # fmt: skip

    def _take(self, shape: Configuration, step_s: float, sync_s: float) -> None:
        self._steps += 1
        if shape != self._shape:
            self._shape = shape
            self._leave_out = _KNOWN_SHAPE if shape in self._entries else _NEW_SHAPE
            self._entries[shape] = self._entries.pop(shape, _Entry())
            while len(self._entries) > self._limit:
                self._swap(self._entries.pop(next(iter(self._entries))).summary, None)
        if not 0 < step_s < math.inf:
            return
        if self._leave_out:
            self._leave_out -= 1
            return
        entry = self._entries[shape]
        entry.last = self._steps
        entry.step_s.append(step_s)
        entry.sync_s.append(sync_s)
        if len(entry.step_s) > self._window:
            del entry.step_s[0], entry.sync_s[0]
        if not self._rests(entry, step_s):
            self._looked = self._steps
            self._summarize(shape, entry)
            self._forget_the_past(shape, entry)

    def _rests(self, entry: _Entry, step_s: float) -> bool:
        """Whether nothing can have changed that matters: much is known, and this step took about the usual time."""
        known = entry.summary
        if known is None or known.count < self._window or self._since(self._looked, part=_LOOK):
            return False
        return known.step_s < step_s * _SUDDEN and step_s < known.step_s * _SUDDEN

    def _since(self, step: int, *, part: int) -> bool:
        """Whether some steps have passed since that one: few early in a run, later one in ``part`` of all."""
        return self._steps - step >= max(_REST, self._steps // part)

    def summaries(self) -> tuple[StepSummary, ...]:
        """One summary per configuration with at least three measured steps, in order of configuration."""
        self._take_in()
        return self._summaries

    def _summarize(self, shape: Configuration, entry: _Entry) -> None:
        count, before = len(entry.step_s), entry.summary
        if count < _LEAST:
            return
        now = median(entry.step_s)
        if before is not None:
            moved = abs(now / before.step_s - 1) > max(_MOVED, _JITTER / math.sqrt(before.count))
            grown = count >= min(4 * before.count, self._window) > before.count
            sudden = not 1 / _SUDDEN < now / before.step_s < _SUDDEN
            soon = before.count < self._window or sudden or self._since(self._renewed, part=_PART)
            if not ((moved or grown) and soon):
                return
        replicas, nodes, micro_batch, accumulation = shape
        entry.summary = StepSummary(
            replicas=replicas, nodes=nodes, micro_batch=micro_batch, accumulation=accumulation,
            step_s=now, count=count, sync_s=median(entry.sync_s),
        )  # fmt: skip
        self._swap(before, entry.summary)

    def _forget_the_past(self, shape: Configuration, entry: _Entry) -> None:
        """Drop times that are no longer true of this machine; each time for their age, they are kept for longer."""
        sure = entry.summary if len(entry.step_s) >= self._window // 2 else None
        now = None if sure is None else sure.step_s
        changed = now is not None and not 1 / _CHANGED < now / (entry.pace_s or now) < _CHANGED
        for other, past in self._entries.items():
            if other == shape or not past.step_s:
                continue
            same_world, age = other[:2] == shape[:2], (self._steps - past.last) / 2**past.forgotten
            old = age > (_TRIED if len(past.step_s) < self._window else _USED)
            if changed and same_world:
                self._forget(other, _Entry())
            elif old or (same_world and age > _CONTRADICTED and _contradict(sure, past.summary)):
                self._forget(other, _Entry(forgotten=past.forgotten + 1))
        entry.pace_s = now if changed else entry.pace_s or now

    def _forget(self, shape: Configuration, instead: _Entry) -> None:
        self._swap(self._entries[shape].summary, None)
        self._entries[shape] = instead

    def _swap(self, before: StepSummary | None, after: StepSummary | None) -> None:
        rest = [summary for summary in self._summaries if summary is not before]
        rest = rest if after is None else [*rest, after]
        self._renewed = self._steps
        self._summaries = tuple(sorted(rest, key=lambda s: (s.replicas, s.nodes, s.micro_batch, s.accumulation)))

    def state_dict(self) -> dict[str, Any]:
        """Everything as lists and numbers, ready for JSON."""
        self._take_in()
        return {
            "entries": [
                {
                    "shape": list(shape),
                    "step_s": list(entry.step_s),
                    "sync_s": list(entry.sync_s),
                    "age": self._steps - entry.last,
                    "forgotten": entry.forgotten,
                    "pace_s": entry.pace_s,
                    "told": None if (known := entry.summary) is None else [known.step_s, known.count, known.sync_s],
                }
                for shape, entry in self._entries.items()
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved profile; the next step counts as a change of shape, because the process is new."""
        entries: dict[Configuration, _Entry] = {}
        try:
            for saved in state["entries"][-self._limit :]:
                replicas, nodes, micro_batch, accumulation = (int(number) for number in saved["shape"])
                step_s = [float(value) for value in saved["step_s"]][-self._window :]
                entry = _Entry(step_s, [float(value) for value in saved["sync_s"]][-self._window :])
                entry.last, entry.forgotten = -int(saved.get("age", 0)), int(saved.get("forgotten", 0))
                entry.pace_s = saved.get("pace_s")
                if saved["told"] is not None:
                    median_s, count, sync_s = saved["told"]
                    entry.summary = StepSummary(
                        replicas=replicas, nodes=nodes, micro_batch=micro_batch, accumulation=accumulation,
                        step_s=float(median_s), count=int(count), sync_s=float(sync_s),
                    )  # fmt: skip
                entries[replicas, nodes, micro_batch, accumulation] = entry
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the saved step times cannot be read ({error!r}); expected what Profile.state_dict() returned. Leave "
                "them out of the checkpoint to measure again; nothing else depends on them."
            ) from error
        self._entries, self._shape, self._leave_out, self._steps, self._summaries = entries, None, 0, 0, ()
        self._renewed = self._looked = 0
        self._waiting = []
        for entry in entries.values():
            if entry.summary is not None:
                self._swap(None, entry.summary)


def _contradict(one: StepSummary | None, other: StepSummary | None) -> bool:
    """Whether they cannot be of one machine: more work took much less time, or far more than its share."""
    if one is None or other is None:
        return False
    for less, more in ((one, other), (other, one)):
        micro, accumulation = more.micro_batch / less.micro_batch, more.accumulation / less.accumulation
        if micro >= 1 and accumulation >= 1:
            quicker = less.step_s > _LONGER * more.step_s
            if quicker or more.step_s > _BEYOND_SHARE * micro * accumulation * less.step_s:
                return True
    return False


def slowest(times: Iterable[StepTimes]) -> StepTimes:
    """One step's times from those of all its replicas: a step ends when its slowest replica does.

    The slowest waits least for the others, so the least waiting time is the time of the exchange itself.

    >>> fast = StepTimes(replicas=2, nodes=1, micro_batch=8, accumulation=2, step_s=1.0, sync_s=0.6)
    >>> slow = StepTimes(replicas=2, nodes=1, micro_batch=8, accumulation=3, step_s=1.1, sync_s=0.1)
    >>> slowest([fast, slow])
    StepTimes(replicas=2, nodes=1, micro_batch=8, accumulation=3, step_s=1.1, sync_s=0.1)
    """
    times = list(times)
    if not times:
        raise ConfigError("times is empty; expected those of at least one replica. Pass every replica's StepTimes.")
    return StepTimes(
        replicas=max(one.replicas for one in times),
        nodes=max(one.nodes for one in times),
        micro_batch=max(one.micro_batch for one in times),
        accumulation=max(one.accumulation for one in times),
        step_s=max(one.step_s for one in times),
        sync_s=min(one.sync_s for one in times),
    )
