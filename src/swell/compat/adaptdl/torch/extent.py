"""How many batches a training loop has: those that came, and those to come if the batch stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swell.compat.adaptdl.session import Session
from swell.core.planning import plan_remainder
from swell.core.types import Plan
from swell.job import Job
from swell.loop.statistics import Statistics

_LEAST_GAIN = 1e-3  # of a whole step, so that a rule that sees no progress at all does not make a loop endless


@dataclass(slots=True)
class Tally:
    """What a loader's training loops handed out."""

    came: int = 0  # batches of the loop under way, or of the last one
    under_way: bool = False
    through_in: int | None = None  # the epoch in which the last loop came to its end
    _kept: tuple[Any, int] = field(default=(None, 0))  # the last forecast, and what it hung on

    def begin(self) -> None:
        """A loop begins."""
        self.came, self.under_way, self.through_in = 0, True, None

    def total(self, key: tuple[Any, ...], ahead: Callable[[], int]) -> int:
        """Batches that came and will come; worked out anew only where what it hangs on has changed.

        Scripts ask for it at every batch, and a long epoch has many steps to go through.
        """
        key = (self.under_way, *key)
        if key != self._kept[0]:
            self._kept = (key, self.came * self.under_way + ahead())
        return max(self._kept[1], self.came * self.under_way)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the batches to come hang on, as it is now; functions take the samples of a step, or its number."""

    length: int  # samples of a pass
    drop_last: bool
    batch: int  # at most a pass
    lay_out: Callable[[int], Plan]
    rank: int
    gain: Callable[[int], float]
    splits: Callable[[int], bool]  # whether a step of one batch is cut in two to be measured

    def ahead(self, *, position: int, progress: float, step: int, target: float | None) -> int:
        """Batches from here to the end of the pass; with a target, pass after pass until the progress is there."""
        found, whole, worth = 0, self.lay_out(self.batch), max(self.gain(self.batch), _LEAST_GAIN)
        alone, mine = whole.num_micro_batches == 1 and self.batch > 1, len(whole.shares[self.rank])
        while target is None or progress < target:
            left = self.length - position
            if left >= self.batch:
                found += mine + (alone and self.splits(step))
                position, progress, step = position + self.batch, progress + worth, step + 1
            elif left and not self.drop_last:
                found += len(self.lay_out(left).shares[self.rank])  # what an epoch's end cut short is not split
                position, progress, step = self.length, progress + self.gain(left), step + 1
            elif target is None:
                break
            else:
                position = 0
        return found


def batches_of_loop(here: Session, tally: Tally, job: Job, *, autoscaled: bool, drop_last: bool) -> int:
    """Batches of the loop under way, of the one that came to its end in this epoch, or of the next one."""
    if not tally.under_way and here.in_epoch and tally.through_in == here.epoch:
        return tally.came
    pace, ledger, current = job._pace, job._ledger, job._stepping._current
    forecast, awaited = _forecast(job, drop_last=drop_last)
    target = job._passes.target if tally.under_way else _target(here, job) if autoscaled else None

    def ahead() -> int:
        if not tally.under_way or current is None or current.ended:
            position = 0 if job._stepping.through or _begins_anew(here, autoscaled) else ledger.cursor
            return forecast.ahead(position=position, progress=pace.progress, step=pace.step, target=target)
        count = current.plan.global_batch
        progress = pace.progress + forecast.gain(count)
        rest = forecast.ahead(position=current.stop, progress=progress, step=pace.step + 1, target=target)
        return len(current.mine) - 1 - current.index + rest

    place = (here.ended_loops, here.epoch) if tally.under_way else (ledger.samples, here.epoch, here.in_epoch)
    layout = (forecast.batch, pace.layout, pace.max_micro, job.replicas, job.rank)
    return tally.total((*place, *layout, awaited, round(forecast.gain(forecast.batch), 2)), ahead)


def batches_of_first_loop(settings: dict[str, Any], here: Session, *, base: int, length: int, drop_last: bool) -> int:
    """The same before there is a job: an autoscaled epoch at the base batch, with nothing measured yet."""
    measuring = settings.get("statistics", Statistics())
    forecast = Forecast(
        length=length,
        drop_last=drop_last,
        batch=min(base, length),
        lay_out=lambda count: plan_remainder(count, here.collective.size),
        rank=here.collective.rank,
        gain=lambda count: min(1.0, count / base),
        splits=lambda step: measuring.splits(step, awaited=True),
    )
    return forecast.ahead(position=0, progress=0.0, step=0, target=length / base)


def _forecast(job: Job, *, drop_last: bool) -> tuple[Forecast, bool]:
    pace, trainee, settings = job._pace, job._trainees[0], job._stepping._statistics
    awaited, window, length = job._stepping.awaited, trainee.noise.window, job._ledger.length
    batch = job._stepping._batch if job._stepping.under_way else pace.batch

    def gain(count: int) -> float:
        place = {"progress": pace.progress, "samples": job.samples}
        return trainee.rule.gain(trainee.states(scale=count / pace.base, **place)[1])

    forecast = Forecast(
        length=length,
        drop_last=drop_last,
        batch=min(batch, length),
        lay_out=lambda count: pace.lay_out(batch, count, replicas=job.replicas, split=False),
        rank=job.rank,
        gain=gain,
        splits=lambda step: settings is not None and settings.splits(step, batch / pace.base, window, awaited=awaited),
    )
    return forecast, awaited


def _target(here: Session, job: Job) -> float:
    """Where the next loop would end, in base steps."""
    worth = job._ledger.length / job._pace.base  # base steps of an epoch
    return (here.epoch + 1) * worth if here.in_epoch else job.progress + worth


def _begins_anew(here: Session, autoscaled: bool) -> bool:
    """Whether the next loop begins at the first sample, for the last one was left early in an earlier epoch."""
    return not autoscaled and here.left_in is not None and here.left_in != here.epoch
