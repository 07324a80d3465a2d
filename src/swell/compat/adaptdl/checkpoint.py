"""State of the user's own in the job's checkpoints: a name, how to save it, how to load it."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, BinaryIO

from swell.compat.adaptdl.members import Kept
from swell.compat.adaptdl.session import current_session
from swell.errors import ConfigError, LoopError


class State:
    """Something to keep: override ``save`` and ``load``, and ``sync`` where replicas must first come together.

    States are part of the job's own checkpoints, written whole and checksummed together with model, optimizer and the
    position in the data, as often as the job saves. ``name`` must be free; creating a State takes it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        current_session().states.add(Kept(name, lambda: self.sync(), self._capture, self._restore))

    def save(self, fileobj: BinaryIO) -> None:
        """Write the state."""

    def load(self, fileobj: BinaryIO) -> None:
        """Read what ``save`` wrote."""

    def sync(self) -> None:
        """Called on every replica before a save."""

    def _capture(self) -> Any:
        """The state as plain values; what ``save`` writes, as bytes."""
        written = io.BytesIO()
        self.save(written)
        return written.getvalue()

    def _restore(self, saved: Any) -> None:
        """Go on from what ``_capture`` gave."""
        self.load(io.BytesIO(saved))


def save_all_states() -> None:
    """Save a checkpoint of everything now; every replica calls it. As often as you like: the original could once."""
    session = current_session()
    if session.job is None:
        raise LoopError(
            "adaptdl.checkpoint.save_all_states was called before training began, when there is nothing to save. Call "
            "it inside the loop over the training AdaptiveDataLoader, or after it."
        )
    session.save()


def save_state(state: State, checkpoint_dir: str | Path, sync: bool = True) -> None:
    """Write one state to ``checkpoint_dir/<name>``; rank 0 writes, whole or not at all."""
    if sync:
        state.sync()
    if current_session().collective.rank != 0:
        return
    folder = Path(checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if Path(state.name).name != state.name:
        raise ConfigError(f"a state named {state.name!r} cannot be a file; give it a name without slashes.")
    aside = folder / f".{state.name}.writing"
    with aside.open("wb") as file:
        state.save(file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / state.name)


def load_state(state: State) -> bool:
    """Load a state from the newest complete checkpoint; False where there is none, or none of this name."""
    return current_session().states.load(state.name)
