"""The user's own states in the job's checkpoints: a name, how to save, how to load."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, BinaryIO

from swell.compat.adaptdl.members import NamedState
from swell.compat.adaptdl.saved_states import checkpoint_folder, read_states, save_states
from swell.compat.adaptdl.session import current_session
from swell.errors import ConfigError


class State:
    """A state to save: override ``save`` and ``load``, and ``sync`` if replicas must exchange values before a save.

    States are part of the job's own checkpoints, which also hold model, optimizer and the position in the data and are
    written whole and checksummed. ``name`` must be unique.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        current_session().states.add(NamedState(name, lambda: self.sync(), self._capture, self._restore))

    def save(self, fileobj: BinaryIO) -> None:
        """Write the state."""

    def load(self, fileobj: BinaryIO) -> None:
        """Read what ``save`` wrote."""

    def sync(self) -> None:
        """Called on every replica before a save."""

    def _capture(self) -> Any:
        file = io.BytesIO()
        self.save(file)
        return file.getvalue()

    def _restore(self, saved: Any) -> None:
        self.load(io.BytesIO(saved))


def save_all_states() -> None:
    """Save a checkpoint of everything now; every replica calls it, as often as you like.

    Before training begins it saves the states and models that exist. Without a folder for checkpoints it only calls
    ``sync`` of every state.
    """
    session = current_session()
    if session.job is not None:
        session.save()
    else:
        session.states.sync()
        session.merge_sums()
        folder = session.folder if session.opened else checkpoint_folder()
        if folder is not None:
            save_states(session, folder)
    session.states.keep(session.states.capture())


def save_state(state: State, checkpoint_dir: str | Path, sync: bool = True) -> None:
    """Write one state to the file ``checkpoint_dir/<name>``, whole or not at all; only rank 0 writes."""
    if sync:
        state.sync()
    if current_session().collective.rank != 0:
        return
    folder = Path(checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if Path(state.name).name != state.name:
        raise ConfigError(f"name is {state.name!r}; expected one without slashes, for a file. Choose another name.")
    draft = folder / f".{state.name}.writing"
    with draft.open("wb") as file:
        state.save(file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / state.name)


def load_state(state: State) -> bool:
    """Load a state from the newest complete checkpoint; False if there is none, or none with this name.

    This is the checkpoint from which the run started, or the latest of ``save_all_states``. Before
    ``init_process_group`` each replica reads it by itself.
    """
    states, folder = current_session().states, checkpoint_folder()
    if not current_session().opened and not states.read and folder is not None:
        saved = read_states(folder)
        states.keep({} if saved is None else saved["states"])
    return states.load(state.name)
