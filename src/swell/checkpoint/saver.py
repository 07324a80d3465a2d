"""Saving beside training: the training thread waits while the state is copied, another thread writes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from swell.checkpoint.reading import Checkpoint
from swell.checkpoint.worker_thread import WorkerThread
from swell.errors import CheckpointError, RunFolderError


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """A checkpoint that is complete on the disk, and what it cost."""

    checkpoint: Checkpoint
    held_s: float  # how long the training thread waited
    write_s: float  # from the end of the copy until it was on the disk


class Stager(Protocol):
    """Copies states into memory that training does not touch."""

    def take(self, state: Mapping[str, Any]) -> Any:
        """A copy that the target can save; it overwrites the previous one."""
        ...

    def room_for(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """A function, for any thread, that allocates the memory for a state of this size."""
        ...


class Target(Protocol):
    """Where checkpoints go: a ``Store``, or a ``ShardedStore``."""

    def stager(self) -> Stager: ...

    @property
    def save(self) -> Callable[..., Checkpoint]:
        """Saves a state, or a stager's copy of one; takes samples, step and more by keyword."""
        ...

    def agreed(self, idle: bool) -> bool:
        """Whether every process that saves together is idle."""
        ...


class AsyncSaver:
    """Saves a store's checkpoints in the background, one at a time.

    While one is being written, ``save_async`` starts no other and returns False: training never waits for the disk, and
    a cadence that is still due asks again at the next step. ``save`` waits for the one being written, then saves at
    once.

    ``on_saved`` and ``on_warning`` are called on the thread that calls ``poll``, ``save_async``, ``save``, ``wait`` or
    ``close``, never on the writing thread, so they need no locks. A failed save is a warning; ``wait`` raises it too.
    Where another process has become the folder's writer, all of them but ``close`` raise ``RunFolderError``.
    """

    def __init__(
        self,
        store: Target,
        *,
        on_saved: Callable[[SaveReport], None],
        on_warning: Callable[[str], None],
    ) -> None:
        self.store = store
        self._on_saved = on_saved
        self._on_warning = on_warning
        self._stager = store.stager()
        self._writer: WorkerThread[SaveReport] = WorkerThread("swell-checkpoint")
        self._allocator: WorkerThread[None] = WorkerThread("swell-checkpoint-memory")

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, or was and ``poll`` has not reported it yet."""
        return self._writer.busy

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Allocate memory for such a state in the background, so that the first save is as short as the others.

        Call it once, after the first step, when the optimizer has its state, on every replica that writes. Only the
        sizes of the tensors are read, so small parts can be missing. It never raises: a state that cannot be saved is
        refused when it is saved, and memory that cannot be allocated is asked for again then.
        """
        self._allocator.wait()
        self._allocator.collect()
        if self.busy:
            return
        try:
            allocate = self._stager.room_for(state)
        except CheckpointError:
            return
        self._allocator.start(allocate)

    def save_async(self, state: Mapping[str, Any], *, samples: int, step: int, **fields: Any) -> bool:
        """Copy the state and write it in the background; False, and nothing done, while one is being written.

        ``fields`` are the other arguments of the store's ``save``: name, world_size. A state that cannot be saved
        raises ``CheckpointError`` at once.
        """
        self.poll()
        if not self.store.agreed(not self.busy):
            return False
        start = time.perf_counter()
        self._allocator.wait()
        snapshot = self._stager.take(state)
        held_s = time.perf_counter() - start

        def write() -> SaveReport:
            start = time.perf_counter()
            checkpoint = self.store.save(snapshot, samples=samples, step=step, **fields)
            return SaveReport(checkpoint=checkpoint, held_s=held_s, write_s=time.perf_counter() - start)

        self._writer.start(write)
        return True

    def save(self, state: Mapping[str, Any], *, samples: int, step: int, **fields: Any) -> Checkpoint:
        """Save now and return once it is on the disk; raises ``CheckpointError`` if it cannot be written."""
        start = time.perf_counter()
        self._writer.wait()
        self.poll()
        write_start = time.perf_counter()
        checkpoint = self.store.save(state, samples=samples, step=step, **fields)
        end = time.perf_counter()
        self._on_saved(SaveReport(checkpoint=checkpoint, held_s=end - start, write_s=end - write_start))
        return checkpoint

    def poll(self) -> CheckpointError | None:
        """Report a save that has ended since; if it failed, its error is warned of and returned."""
        completion = self._writer.collect()
        if completion is None:
            return None
        if completion.result is not None:
            self._on_saved(completion.result)
            return None
        error = completion.error
        if isinstance(error, RunFolderError):
            raise error
        if not isinstance(error, CheckpointError):
            cause = error
            error = CheckpointError(f"saving a checkpoint failed: {type(cause).__name__}: {cause}. Training can go on.")
            error.__cause__ = cause
        self._on_warning(str(error))
        return error

    def wait(self) -> None:
        """Return once nothing is being written; raises the ``CheckpointError`` of a save that failed since."""
        self._writer.wait()
        error = self.poll()
        if error is not None:
            raise error

    def close(self) -> None:
        """Finish the save that is being written and free the memory; a failure is warned of, not raised."""
        self._allocator.wait()
        self._writer.wait()
        try:
            self.poll()
        except RunFolderError as error:
            self._on_warning(str(error))
        self._stager = self.store.stager()
