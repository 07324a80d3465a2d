"""Saving beside training: the training thread is held for the copy of the state, another one writes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from swell.checkpoint.reading import Checkpoint
from swell.checkpoint.worker_thread import Background
from swell.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """A checkpoint that is complete on the disk, and what it cost."""

    found: Checkpoint
    held_s: float  # how long the training thread waited
    write_s: float  # from the end of the copy until it was on the disk


class Stager(Protocol):
    """Copies states into memory that training does not touch."""

    def take(self, state: Mapping[str, Any]) -> Any:
        """A copy that the target can save; the one before must not be needed any more."""
        ...

    def room_for(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """What to call, on any thread, to have the memory for such a state at hand."""
        ...


class Target(Protocol):
    """Where checkpoints go: a ``Store``, or a ``ShardedStore``."""

    def stager(self) -> Stager: ...

    @property
    def save(self) -> Callable[..., Checkpoint]:
        """Saves a state, or what the stager took of one; takes samples, step and more by keyword."""
        ...

    def agreed(self, idle: bool) -> bool:
        """Whether every process that saves together is idle."""
        ...


class AsyncSaver:
    """Saves a store's checkpoints in the background, one at a time.

    While one is being written, ``save_async`` begins no other and returns False: training is never held for the disk,
    and a cadence that is still due asks again at the next step. ``save`` waits for the one under way, then saves at
    once.

    ``on_saved`` and ``on_warning`` are called on the thread that calls ``poll``, ``save_async``, ``save``, ``wait`` or
    ``close``, never on the writing one, so they need no locks. A save that failed is a warning; ``wait`` raises it too.
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
        self._background: Background[SaveReport] = Background("swell-checkpoint")
        self._preparing: Background[None] = Background("swell-checkpoint-memory")

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, or was and ``poll`` has not handed it over yet."""
        return self._background.busy

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Get memory for such a state in the background, so that the first save holds training no longer than others.

        The best moment is after the first step, when the optimizer has its state. Saving works without it too.
        """
        self._preparing.wait()
        self._preparing.take()
        if not self.busy:
            self._preparing.start(self._stager.room_for(state))

    def save_async(self, state: Mapping[str, Any], *, samples: int, step: int, **about: Any) -> bool:
        """Copy the state and write it in the background; False, and nothing done, while one is being written.

        ``about`` is what else the store's ``save`` takes: name, world_size, meta. A state that cannot be held raises
        ``CheckpointError`` here and now.
        """
        self.poll()
        if not self.store.agreed(not self.busy):
            return False
        began = time.perf_counter()
        self._preparing.wait()
        snapshot = self._stager.take(state)
        held_s = time.perf_counter() - began

        def write() -> SaveReport:
            written = time.perf_counter()
            found = self.store.save(snapshot, samples=samples, step=step, **about)
            return SaveReport(found=found, held_s=held_s, write_s=time.perf_counter() - written)

        self._background.start(write)
        return True

    def save(self, state: Mapping[str, Any], *, samples: int, step: int, **about: Any) -> Checkpoint:
        """Save now and return once it is on the disk; raises ``CheckpointError`` when it cannot be written."""
        began = time.perf_counter()
        self._background.wait()
        self.poll()
        written = time.perf_counter()
        found = self.store.save(state, samples=samples, step=step, **about)
        ended = time.perf_counter()
        self._on_saved(SaveReport(found=found, held_s=ended - began, write_s=ended - written))
        return found

    def poll(self) -> CheckpointError | None:
        """Hand over the outcome of a save that has ended since; its error, if it failed, is warned of and returned."""
        outcome = self._background.take()
        if outcome is None:
            return None
        if outcome.result is not None:
            self._on_saved(outcome.result)
            return None
        error = outcome.error
        if not isinstance(error, CheckpointError):
            cause = error
            error = CheckpointError(f"saving a checkpoint failed: {type(cause).__name__}: {cause}. Training can go on.")
            error.__cause__ = cause
        self._on_warning(str(error))
        return error

    def wait(self) -> None:
        """Return once nothing is being written; raises the ``CheckpointError`` of a save that failed since."""
        self._background.wait()
        error = self.poll()
        if error is not None:
            raise error

    def close(self) -> None:
        """Finish what is being written and let the buffers go; a failure is warned of, not raised."""
        self._preparing.wait()
        self._background.wait()
        self.poll()
        self._stager = self.store.stager()
