"""Checkpoints of a job: when to save, what, and where to resume."""

from __future__ import annotations

import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from swell.checkpoint.cadence import Cadence, Mark
from swell.checkpoint.rng import capture_rng, restore_rng
from swell.checkpoint.saver import AsyncSaver, SaveReport
from swell.checkpoint.store import Store
from swell.checkpoint.transfer import gather_values, share_state
from swell.core.events import Event, Saved, Warned
from swell.job.peers import Peers
from swell.job.run_state import RunState
from swell.runtime.process_groups import background_collective

if TYPE_CHECKING:
    from swell.checkpoint.sharded import ShardedStore

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Saving:
    """Saves the state of a run and brings it back; does neither without a run folder."""

    def __init__(
        self, state: RunState, peers: Peers, *, cadence: Cadence, keep: int, emit: Callable[[Event], None]
    ) -> None:
        self._state, self._peers, self._cadence, self._emit = state, peers, cadence, emit
        self._saver: AsyncSaver | None = None
        self._shards: ShardedStore | None = None
        if state.run_dir is not None:
            self._store = Store(state.run_dir, keep=keep, on_warning=self._warn, on_point=self._reach)
            self._saver = AsyncSaver(self._store, on_saved=self._saved, on_warning=self._warn)
        self._last = self._mark()

    def due(self, samples: int) -> bool:
        """Whether this replica would save once the step under way, of ``samples`` samples, is committed.

        One replica's vote is enough. While a save is being written no other one is due.
        """
        if self._saver is None:
            return False
        self._saver.poll()
        if self._saver.busy:
            return False
        now = self._mark()
        then = Mark(time_s=now.time_s, samples=now.samples + samples, step=now.step + 1)
        return self._cadence.due(then, last=self._last)

    @property
    def behind(self) -> bool:
        """Whether steps were committed since the last save, as far as this replica knows."""
        return self._saver is not None and self._state.steps > self._last.step

    def save(self, *, name: str | None = None, wait: bool = False, body_done: bool = False) -> None:
        """Save the state as of the last commit; every replica calls it, the first one writes.

        ``body_done`` says that the body of the epoch is done, so that a resumed run begins the next one. With ``wait``
        it returns on every replica when the checkpoint is on the disk, and raises if it cannot be written; otherwise a
        save that is still being written postpones this one. Raises ``WorldError`` where a replica is lost in it.
        """
        if self._saver is not None:
            state = {
                **self._state.capture(),
                "rng": gather_values(self._peers.collective, capture_rng(), destination=0),
            }
            state["ending"]["done"] = body_done
            about: dict[str, Any] = {"samples": self._state.samples, "step": self._state.steps, "name": name}
            if self._shards is None:
                about["world_size"] = self._peers.size
            writes = self._peers.is_first or self._shards is not None
            if writes and wait:
                self._saver.save(state, **about)
            elif writes and not self._saver.save_async(state, **about) and self._shards is not None:
                return  # a replica is still writing, as all of them know
            if wait:
                self._peers.collective.barrier()
        self._last = self._mark()

    def prepare(self) -> None:
        """After the first step: allocate the memory of a save, so that the first one holds training no longer."""
        writes = self._peers.is_first or self._shards is not None
        if self._saver is not None and writes and self._cadence != Cadence():
            learners = self._state.learners
            tensors = [
                {"model": each.model.state_dict(), "optimizer": each.optimizer.state_dict()} for each in learners
            ]
            self._saver.prepare({"trainees": tensors})

    def wait(self) -> None:
        """Return when nothing is being written any more; raises if the last save failed."""
        if self._saver is not None:
            self._saver.wait()

    def resume(self) -> bool:
        """Continue from the newest complete checkpoint, on any number of replicas; False without one."""
        if self._saver is None:
            return False
        self._open_shards()
        checkpoint = None
        if self._shards is not None:
            checkpoint = self._load_shards(self._shards)
        elif self._peers.is_first:
            newest = self._store.load_newest()
            checkpoint = None if newest is None else newest[1]
        collective = self._peers.collective
        if not collective.gather_numbers([float(checkpoint is not None)])[0][0]:
            return False
        if self._shards is None:
            checkpoint = share_state(checkpoint, collective=collective, source=0)
        assert checkpoint is not None
        self._restore(checkpoint)
        self._last = self._mark()
        return True

    def _restore(self, checkpoint: dict[str, Any]) -> None:
        rngs = checkpoint.pop("rng")
        changes = self._state.changed_settings(checkpoint) if self._peers.is_first else []
        self._state.restore(checkpoint)
        if changes:
            message = f"the run in {self._state.run_dir} started with other settings: {' '.join(changes)}"
            warnings.warn(f"{message} To start over, use another run folder.", stacklevel=_script_level())
            self._warn(message)
        self._state.pace.max_micro = None  # learnt on machines that may be others
        self.restore_rng(rngs)

    def _open_shards(self) -> None:
        """Before the first step: where replicas hold pieces of the model, each of them saves its own."""
        learners = self._state.learners
        if self._shards is not None or not any(learner.sharded for learner in learners):
            return
        from swell.checkpoint.sharded import ShardedStore  # only here, because it is slow to import

        background, group = background_collective(self._peers.collective)
        collective = self._peers.collective
        self._shards = ShardedStore(self._store, collective=collective, background=background, group=group)
        self._saver = AsyncSaver(self._shards, on_saved=self._saved, on_warning=self._warn)

    def _load_shards(self, shards: ShardedStore) -> dict[str, Any] | None:
        learners, newest = self._state.learners, shards.newest()
        if newest is None:
            return None
        present: Mapping[str, Any] = {"trainees": [learner.state_dict() for learner in learners]}
        optimizers = {f"trainees[{i}]['optimizer']": learner.optimizer for i, learner in enumerate(learners)}
        return shards.load(newest, present, optimizers=optimizers)

    def restore_rng(self, rngs: list[Any] | None) -> None:
        """The random numbers that this rank had; new ones, by rank and position, where the rank is new."""
        rank = self._peers.rank
        if rngs is not None and rank < len(rngs):
            restore_rng(rngs[rank])
        else:
            torch.manual_seed(zlib.crc32(f"{self._state.seed} {self._state.samples} {rank}".encode()))

    def poll(self) -> None:
        """Report saves that have ended since."""
        if self._saver is not None:
            self._saver.poll()

    def close(self) -> None:
        """Finish what is being written."""
        if self._saver is not None:
            self._saver.close()

    def _mark(self) -> Mark:
        return Mark(time_s=time.monotonic(), samples=self._state.samples, step=self._state.steps)

    def _reach(self, point: str) -> None:
        self._peers.reach("save", step=self._state.steps)

    def _saved(self, report: SaveReport) -> None:
        manifest = report.checkpoint.manifest
        self._emit(
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
        self._emit(Warned(time=time.time(), message=message))


def _script_level() -> int:
    """The ``stacklevel`` at which the caller's warning points at the script, the first frame outside this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
