"""A script's states on the disk: in the job's checkpoints, and beside them what was saved before training began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swell.checkpoint.store import Store
from swell.compat.adaptdl.session import PART, Session
from swell.errors import DamagedCheckpointError
from swell.runtime.adaptdl_environment import read_adaptdl_environment
from swell.runtime.environment import read_environment

_BEFORE = "before-training"  # the folder, below the run's, of what was saved before there was a job


def checkpoint_folder() -> Path | None:
    """The folder of the checkpoints by the environment; None to keep none."""
    path = read_adaptdl_environment().checkpoint_path or read_environment().swell_run_dir
    return None if path is None else Path(path)


def read_states(folder: Path) -> dict[str, Any] | None:
    """The session's part of the newest complete checkpoint in ``folder``; None if there is none.

    What was saved before training is newer if no checkpoint of the job was written since.
    """
    name, saved = _newest(folder)
    _, early = _newest(folder / _BEFORE)
    if early is not None and early["after"] == name:
        return early
    return saved


def save_states(session: Session, folder: Path) -> None:
    """Save every state, and the models as they are, before there is a job; every replica calls it, rank 0 writes."""
    if session.collective.rank == 0:
        models = {model.name: model.weights() for model in session.models}
        state = {**session.state_dict(), "after": _newest(folder)[0], "models": models}
        Store(folder / _BEFORE, keep=1).save({"registered": {PART: state}}, samples=0, step=0)
    session.collective.barrier()  # whoever returns finds the checkpoint


def _newest(folder: Path) -> tuple[str | None, dict[str, Any] | None]:
    """The name of the newest complete checkpoint in a folder, and the session's part of it."""
    store = Store(folder, on_warning=lambda message: None)  # the job reads the same checkpoint and warns
    for checkpoint in reversed(store.all()):
        try:
            return checkpoint.path.name, store.load(checkpoint, parts=["registered"])["registered"].get(PART)
        except DamagedCheckpointError:
            continue
    return None, None
