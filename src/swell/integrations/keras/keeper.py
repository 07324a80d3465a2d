"""When a Keras run is saved, by which process, and how it goes on from what was saved."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import time
from typing import Any

from swell.errors import CheckpointError
from swell.integrations.keras.announcer import Announcer
from swell.integrations.keras.checkpoints import Checkpoints
from swell.integrations.keras.conductor import Conductor


class Keeper:
    """Saves and restores a model, its optimizer and the run's counts; does nothing without a directory."""

    def __init__(self, directory: str | os.PathLike[str] | None, announcer: Announcer) -> None:
        self._directory, self._announcer = directory, announcer
        self._checkpoints = None if directory is None else Checkpoints(directory)
        self._restored = False

    def save(self, model: Any, conductor: Conductor, peers: Any) -> None:
        """Write a checkpoint, where this is the first of the processes."""
        if self._checkpoints is None:
            return
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        if peers is not None and not peers.chief:
            conductor.drain()
            return
        begun = time.perf_counter()
        state = conductor.state_dict()
        path = self._checkpoints.save(conductor.step, state, model.variables, model.optimizer.inner.variables)
        self._announcer.saved(conductor, path, held_s=time.perf_counter() - begun)

    def restore(self, model: Any, conductor: Conductor, peers: Any) -> None:
        """Go on from the newest checkpoint, once; every process reads it for itself."""
        if self._checkpoints is None or self._restored:
            return
        self._restored = True
        state = self._checkpoints.restore(model.variables, model.optimizer.inner.variables)
        if state is not None:
            conductor.load_state_dict(state)
            complete = conductor.ledger.remaining == 0
            model._initial_epoch = conductor.ledger.epoch + (1 if complete else 0)
        found = [conductor.step] if peers is None else peers.numbers(conductor.step)
        if len(set(found)) > 1:
            raise CheckpointError(
                f"the processes found checkpoints of different steps in {self._directory}: {sorted(set(found))}. "
                "Give a directory that all of them see, on a shared file system."
            )
