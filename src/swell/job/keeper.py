"""Checkpoints of a job: when to save, what, and where to go on from."""

from __future__ import annotations

import os
import sys
import time
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import swell
from swell.checkpoint.cadence import Cadence, Mark
from swell.checkpoint.rng import capture_rng, restore_rng
from swell.checkpoint.saver import AsyncSaver, SaveReport
from swell.checkpoint.store import Store
from swell.checkpoint.transfer import gather_values, share_state
from swell.core.events import Saved, Warned
from swell.job import state as whole
from swell.job.given import differences
from swell.runtime.process_groups import background_collective

if TYPE_CHECKING:
    from swell.checkpoint.sharded import ShardedStore
    from swell.job.job import Job


class Keeper:
    """Saves the whole state of a job and brings it back; without a run folder it does neither."""

    def __init__(self, job: Job, run_dir: Path | None, *, cadence: Cadence, keep: int) -> None:
        self._job, self._cadence = job, cadence
        self._saver: AsyncSaver | None = None
        self._shards: ShardedStore | None = None
        if run_dir is not None:
            self._store = Store(
                run_dir, keep=keep, on_warning=self._warn, on_point=lambda point: job._elasticity.reach("save")
            )
            self._saver = AsyncSaver(self._store, on_saved=self._saved, on_warning=self._warn)
        self._last = self._mark()

    def due(self, samples: int) -> bool:
        """Whether this replica would save once the step under way, of so many samples, is committed.

        One replica's word is enough. While a save is being written no other one is due.
        """
        self.poll()
        if self._saver is None or self._saver.busy:
            return False
        now = self._mark()
        then = Mark(time_s=now.time_s, samples=now.samples + samples, step=now.step + 1)
        return self._cadence.due(then, last=self._last)

    @property
    def behind(self) -> bool:
        """Whether steps were committed since the last save, as far as this replica knows."""
        return self._saver is not None and self._job.steps > self._last.step

    def save(self, *, name: str | None = None, wait: bool = False, done: bool = False) -> None:
        """Save the state as of the last commit; every replica calls it, the first one writes.

        ``done`` says that the body of the epoch at hand is through, so that whoever resumes begins the next one.
        With ``wait`` it returns on every replica when the checkpoint is on the disk and raises if it cannot be written;
        otherwise a save that is still being written puts this one off. ``WorldError`` where a replica is lost in it.
        """
        if self._saver is not None:
            job = self._job
            state = {**whole.capture(job), "rng": gather_values(job.collective, capture_rng(), destination=0)}
            state["ending"]["done"] = done
            about: dict[str, Any] = {"samples": job.samples, "step": job.steps, "name": name}
            if self._shards is None:
                about["world_size"] = job.replicas
            writes = job.is_main or self._shards is not None
            if writes and wait:
                self._saver.save(state, **about)
            elif writes and not self._saver.save_async(state, **about) and self._shards is not None:
                return  # put off by a replica that is still writing, as all of them know
            if wait:
                job.collective.barrier()
        self._last = self._mark()

    def _open(self) -> None:
        """Before the first step: where replicas hold pieces of the model, all of them save, each its own."""
        job = self._job
        if self._saver is None or self._shards is not None or not any(trainee.sharded for trainee in job._trainees):
            return
        from swell.checkpoint.sharded import ShardedStore  # here, for it is slow to import

        background, group = background_collective(job.collective)
        self._shards = ShardedStore(self._store, collective=job.collective, background=background, group=group)
        self._saver = AsyncSaver(self._shards, on_saved=self._saved, on_warning=self._warn)

    def _load_shards(self, shards: ShardedStore) -> dict[str, Any] | None:
        job, found = self._job, shards.newest()
        if found is None:
            return None
        at_hand = {"trainees": [whole.capture_trainee(trainee) for trainee in job._trainees]}
        optimizers = {f"trainees[{i}]['optimizer']": trainee.optimizer for i, trainee in enumerate(job._trainees)}
        return shards.load(found, at_hand, optimizers=optimizers)

    def resume(self) -> bool:
        """Go on from the newest complete checkpoint, on however many replicas there are now; False without one."""
        if self._saver is None:
            return False
        self._open()
        job = self._job
        found = None
        if self._shards is not None:
            found = self._load_shards(self._shards)
        elif job.is_main:
            newest = self._store.load_newest()
            found = None if newest is None else newest[1]
        there = job.collective.gather_numbers([float(found is not None)])[0][0] > 0
        if not there:
            return False
        saved = found if self._shards is not None else share_state(found, collective=job.collective, source=0)
        assert saved is not None
        rngs = saved.pop("rng")
        others = differences(job, saved) if job.is_main else []
        whole.restore(job, saved)
        if others:
            message = f"the run in {job.run_dir} was begun with other settings: {' '.join(others)}"
            warnings.warn(f"{message} To begin anew, start in another run folder.", stacklevel=_users_level())
            self._warn(message)
        job._pace.max_micro = None  # what fitted into the memory of other machines, perhaps
        self.restore_rng(rngs)
        self._last = self._mark()
        return True

    def restore_rng(self, rngs: list[Any] | None) -> None:
        """This replica's own random numbers where its rank was there before; otherwise new ones, by rank and place."""
        rank = self._job.rank
        if rngs is not None and rank < len(rngs):
            restore_rng(rngs[rank])
        else:
            torch.manual_seed(zlib.crc32(f"{self._job._seed} {self._job.samples} {rank}".encode()))

    def poll(self) -> None:
        """Tell of saves that have ended since."""
        if self._saver is not None:
            self._saver.poll()

    def close(self) -> None:
        """Finish what is being written."""
        if self._saver is not None:
            self._saver.close()

    def _mark(self) -> Mark:
        return Mark(time_s=time.monotonic(), samples=self._job.samples, step=self._job.steps)

    def _saved(self, report: SaveReport) -> None:
        manifest = report.checkpoint.manifest
        self._job._emit(
            Saved(
                time=time.time(),
                step=manifest.step,
                samples=manifest.samples,
                path=str(report.checkpoint.path),
                held_s=report.held_s,
                bytes=manifest.num_bytes,
            )
        )

    def _warn(self, message: str) -> None:
        self._job._emit(Warned(time=time.time(), message=message))


def _users_level() -> int:
    """The ``stacklevel`` at which the caller's warning points at the script: of the first frame that is not ours."""
    own = os.path.dirname(swell.__file__) + os.sep
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame, level = frame.f_back, level + 1
    return level
