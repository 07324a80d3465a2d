"""Checkpoints of a job: when to save, what, and where to resume."""

from __future__ import annotations

import errno
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swell.checkpoint.cadence import Cadence, Mark
from swell.checkpoint.damage import damage_error
from swell.checkpoint.disk import disk_error
from swell.checkpoint.numbering import Numbering
from swell.checkpoint.rng import capture_rng
from swell.checkpoint.run_lock import RunLock
from swell.checkpoint.saver import AsyncSaver, SaveReport
from swell.checkpoint.set_aside import set_aside
from swell.checkpoint.store import Store
from swell.checkpoint.transfer import gather_values, share_state
from swell.core.events import Event, Saved, Warned
from swell.errors import CheckpointError, RunFolderError
from swell.job.peers import Peers
from swell.job.random_streams import RandomStreams
from swell.job.run_state import RunState
from swell.job.script_line import script_level
from swell.runtime.process_groups import background_collective
from swell.telemetry.log_parts import older_parts
from swell.telemetry.log_reader import LOG_NAME

if TYPE_CHECKING:
    from swell.checkpoint.sharded import ShardedStore

FIRST_S = 60.0  # the first save of a run that saves by the clock, unless its first epoch ends sooner
_AGAIN_S = 30.0  # from a save that failed to the next attempt
_ROOM_S = 60.0  # how long a save that is waited for tries again, where the disk takes nothing and no deadline is near
_NEVER = {errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}  # can be written
_RETRY_S, _LAST_S = 1.0, 5.0  # between two such attempts, and from the last one to a notice's deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingOptions:
    """Where a run is saved, when, and how many checkpoints are kept."""

    lock: RunLock | None  # the right to write the run's folder; None without one
    cadence: Cadence
    keep: int
    fresh: bool  # whether to move what the folder holds aside and start from the beginning


class Saving:
    """Saves the state of a run and brings it back; does neither without a run folder."""

    def __init__(
        self,
        state: RunState,
        peers: Peers,
        random: RandomStreams,
        options: SavingOptions,
        *,
        emit: Callable[[Event], None],
        flush: Callable[[], None],
    ) -> None:
        self._state, self._peers, self._cadence = state, peers, options.cadence
        self._emit, self._flush = emit, flush
        self._random, self._lock, self._fresh = random, options.lock, options.fresh
        self._saver: AsyncSaver | None = None
        self._shards: ShardedStore | None = None
        self.numbering = Numbering(None)
        if options.lock is not None:
            self._store = Store(
                options.lock.folder,
                keep=options.keep,
                on_warning=self._warn,
                on_point=self._reach,
                before_commit=options.lock.require,
            )
            options.lock.on_taken = self._store.take_over
            self._saver = AsyncSaver(self._store, on_saved=self._saved, on_warning=self._failed)
            self.numbering = Numbering(self._store)
        self.requested = False  # whether a facade's script has asked for a save after the next step
        self._failed_at: float | None = None  # when the last save failed, where no later one has succeeded
        self._last, self._saved_once = self._mark(), False

    def due(self, samples: int) -> bool:
        """Whether this replica would save once the step under way, of ``samples`` samples, is committed.

        One replica's vote is enough. While a save is being written no other one is due.
        """
        if self._saver is None:
            return False
        self._saver.poll()
        if self._saver.busy:
            return False
        if self.requested:
            return True
        now = self._mark()
        if self._failed_at is not None and now.time_s - self._failed_at >= _AGAIN_S and self._cadence != Cadence():
            return True
        then = Mark(time_s=now.time_s, samples=now.samples + samples, step=now.step + 1)
        return self._cadence.due(then, last=self._last) or self._first_due(now, samples)

    def _first_due(self, now: Mark, samples: int) -> bool:
        """Whether the run has no checkpoint yet and should have one, so that losing all workers early costs little."""
        if self._saved_once or self._cadence.every_s is None:
            return False
        ledger, size = self._state.ledger, self._state.data.epoch_size
        epoch_done = ledger.epoch > 0 or (size is not None and ledger.cursor + samples >= size)
        return epoch_done or now.time_s - self._last.time_s >= FIRST_S

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
            self._flush()  # a run that is resumed from here does not do these steps again
            state["ending"]["done"] = body_done
            about: dict[str, Any] = {"samples": self._state.samples, "step": self._state.steps, "name": name}
            if self._shards is None:
                about["world_size"] = self._peers.size
            writes = self._peers.is_first or self._shards is not None
            if not self._peers.is_first:
                self.numbering.count()
            self._peers.mark("saving")
            if writes and wait:
                self._save_now(self._saver, state, about)
            elif writes and not self._saver.save_async(state, **about) and self._shards is not None:
                return  # a replica is still writing, as all of them know
            if wait:
                self._peers.collective.barrier()
        self._last, self._saved_once, self.requested = self._mark(), True, False

    def _save_now(self, saver: AsyncSaver, state: dict[str, Any], about: dict[str, Any]) -> None:
        """Save and wait; where the disk takes nothing, try again for some time, because room may be made on it."""
        notice, patience_s = self._peers.notice(), _ROOM_S
        if notice is not None and notice.deadline is not None:
            patience_s = notice.seconds_left() - _LAST_S
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                saver.save(state, **about)
                return
            except CheckpointError as error:
                disk = isinstance(error.__cause__, OSError) and self._shards is None
                if not disk or time.monotonic() >= give_up_at:
                    raise
                self._failed(str(error))
            time.sleep(_RETRY_S)
            self._peers.mark("saving")

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

    def take_folder(self) -> RunFolderError | None:
        """Become the writer of the run's folder, if this is the first replica; why not, if it cannot be.

        A folder that cannot be written now (a full disk) is asked for again by the next save. Before the first step one
        that never can be is refused, because hours later nothing would be saved.
        """
        if self._lock is None or not self._peers.is_first:
            return None
        try:
            self._lock.acquire(generation=self._peers.generation)
        except RunFolderError as refusal:
            return refusal
        except OSError as error:
            if self._state.steps == 0 and error.errno in _NEVER:
                return RunFolderError(
                    f"run folder {self._lock.folder} cannot be written ({error.strerror}: {error.filename}); expected "
                    f"a folder of this user's own. Give another one, or change its owner or permissions."
                )
            warnings.warn(
                f"{disk_error(error, doing='locking the run', folder=self._lock.folder)} Until then nothing is logged.",
                stacklevel=script_level(),
            )
        return None

    def resume(self) -> bool:
        """Continue from the newest complete checkpoint, on any number of replicas; False without one.

        Raises ``CheckpointError`` on every replica if there are checkpoints and all of them are damaged.
        """
        if self._saver is None:
            return False
        self._open_shards()
        checkpoint, refusal, collective = None, None, self._peers.collective
        if self._peers.is_first:
            self._start_over()
        if self._shards is not None:
            checkpoint = self._load_shards(self._shards)
        elif self._peers.is_first:
            newest = self._store.load_newest()
            if newest is not None:
                self.numbering.reach(newest[0].number)
                checkpoint = newest[1]
        if self._peers.is_first and checkpoint is None:
            refusal = damage_error(self._store.damage, self._store.root)
        facts = [float(checkpoint is not None), float(refusal is not None), *self.numbering.place()]
        found, damaged, *place = collective.gather_numbers(facts)[0]
        self.numbering.follow(place, writes=self._peers.is_first)
        if damaged:
            raise refusal or CheckpointError("the first replica was refused the run's checkpoints: see its message.")
        if not found:
            return False
        if self._shards is None:
            checkpoint = share_state(checkpoint, collective=collective, source=0)
        assert checkpoint is not None
        self._restore(checkpoint)
        self._last, self._saved_once = self._mark(), True
        return True

    def _start_over(self) -> None:
        """Where the user asked for it, move what is in the folder aside; once, not when workers are replaced."""
        if not self._fresh or self._lock is None or not self._lock.begins:
            return
        folder, self._fresh = self._lock.folder, False
        try:
            self._lock.require()
            log = folder / LOG_NAME
            moved = set_aside([self._store.root, log, *older_parts(log)], folder=folder)
        except OSError as error:
            raise disk_error(error, doing="starting over", folder=folder) from error
        self._store.forget()
        if moved is not None:
            self._warn(f"the run starts over, as was asked; what it had is in {moved}.")

    def _restore(self, checkpoint: dict[str, Any]) -> None:
        rngs = checkpoint.pop("rng")
        changes = self._state.changed_settings(checkpoint) if self._peers.is_first else []
        self._state.restore(checkpoint)
        if changes:
            message = f"the run in {self._state.run_dir} started with other settings: {' '.join(changes)}"
            message += (
                ' To use the values of the script, give job.wrap(..., on_resume="script"), and to keep those of the '
                'run on_resume="saved"; to start over, use another run folder.'
            )
            warnings.warn(message, stacklevel=script_level())
            self._warn(message)
        self._state.pace.max_micro = None  # learnt on machines that may be others
        self._random.resume(rngs, samples=self._state.samples)

    def _open_shards(self) -> None:
        """Before the first step: where replicas hold pieces of the model, each of them saves its own."""
        learners = self._state.learners
        if self._shards is not None or not any(learner.sharded for learner in learners):
            return
        from swell.checkpoint.sharded import ShardedStore  # only here, because it is slow to import

        background, group = background_collective(self._peers.collective)
        collective = self._peers.collective
        self._shards = ShardedStore(self._store, collective=collective, background=background, group=group)
        self._saver = AsyncSaver(self._shards, on_saved=self._saved, on_warning=self._failed)

    def _load_shards(self, shards: ShardedStore) -> dict[str, Any] | None:
        learners, newest = self._state.learners, shards.newest()
        if newest is None:
            return None
        present: Mapping[str, Any] = {"trainees": [learner.state_dict() for learner in learners]}
        optimizers = {f"trainees[{i}]['optimizer']": learner.optimizer for i, learner in enumerate(learners)}
        return shards.load(newest, present, optimizers=optimizers)

    def poll(self) -> None:
        """Report saves that have ended since."""
        if self._saver is not None:
            self._saver.poll()

    def close(self) -> None:
        """Finish what is being written."""
        if self._saver is not None:
            self._saver.close()

    def leave_folder(self) -> None:
        """Let others write the run's folder."""
        if self._lock is not None:
            self._lock.release()

    def _mark(self) -> Mark:
        return Mark(time_s=time.monotonic(), samples=self._state.samples, step=self._state.steps)

    def _reach(self, point: str) -> None:
        self._peers.reach("save", step=self._state.steps)

    def _saved(self, report: SaveReport) -> None:
        if self._failed_at is not None:
            self._failed_at = None
            self._peers.trouble("saving", "")
        manifest = report.checkpoint.manifest
        self.numbering.reach(report.checkpoint.number)
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

    def _failed(self, message: str) -> None:
        """A save failed: training goes on, the next attempt follows soon, and the owner of the run is told."""
        if self._failed_at is None:
            self._warn(message)
        self._failed_at = time.monotonic()
        self._peers.trouble("saving", message)

    def _warn(self, message: str) -> None:
        self._emit(Warned(time=time.time(), message=message))
