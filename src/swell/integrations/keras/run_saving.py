"""When a Keras run is saved, by which process, and how it continues from its newest checkpoint."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from swell.checkpoint.disk import disk_error
from swell.checkpoint.run_lock import RunLock
from swell.errors import CheckpointError
from swell.integrations.keras.array_store import ArrayStore
from swell.integrations.keras.processes import Processes
from swell.integrations.keras.run_events import RunEvents
from swell.integrations.keras.step_sequence import StepSequence
from swell.telemetry import LOG_NAME


class RunSaving:
    """Saves a model, its optimizer and the run's counts, and restores them; without a store it does nothing."""

    def __init__(
        self, store: ArrayStore | None, events: RunEvents, *, every: int | None, lock: RunLock | None, fresh: bool
    ) -> None:
        self._store, self._events, self._every = store, events, every
        self._lock, self._fresh = lock, fresh
        if store is not None and lock is not None:
            lock.on_taken = store.take_over
        self._restored = False

    def is_due(self, step: int) -> bool:
        """Whether the run is saved after this step, besides the end of its epoch."""
        return self._every is not None and step % self._every == 0

    def save(self, model: Any, steps: StepSequence, processes: Processes) -> None:
        """Write a checkpoint if this is the chief process."""
        if self._store is None:
            return
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        if not processes.chief:
            steps.drain()  # as the chief does below: all must plan by the same figures
            return
        start = time.perf_counter()
        state, variables = steps.state_dict(), _variables(model)
        self._events.flush()  # a run that is resumed from here does not do these steps again
        arrays = {f"{kind}/{i}": _numpy(v) for kind, held in variables.items() for i, v in enumerate(held)}
        names = {kind: [_name(variable) for variable in held] for kind, held in variables.items()}
        path, manifest = self._store.save(
            arrays, {"names": names, "state": state}, step=steps.trained.pace.step, samples=steps.trained.ledger.samples
        )
        self._events.saved(manifest, path, held_s=time.perf_counter() - start)

    def restore(self, model: Any, steps: StepSequence, processes: Processes) -> None:
        """Continue from the newest checkpoint, once; every process reads it for itself.

        The chief process becomes the folder's one writer before, or raises ``RunFolderError`` if another run is.
        """
        if self._store is None:
            return
        if processes.chief and self._lock is not None:
            try:
                self._lock.acquire()
                if self._fresh and self._lock.begins and not self._restored:
                    self._store.set_aside(self._store.folder / LOG_NAME)
            except OSError as error:
                raise disk_error(error, doing="locking the run", folder=self._store.folder) from error
        if self._restored:
            return
        self._restored = True
        processes.numbers(0.0)  # nobody reads before the chief has the folder
        saved = self._store.newest()
        if saved is not None:
            variables = _variables(model)
            for kind, held in variables.items():
                _check_shapes(saved.path, kind, held, saved.arrays)
            for kind, held in variables.items():
                for i, variable in enumerate(held):
                    variable.assign(saved.arrays[f"{kind}/{i}"])
            steps.load_state_dict(saved.values["state"])
            ledger = steps.trained.ledger
            model._initial_epoch = ledger.epoch + (1 if ledger.remaining == 0 else 0)
        numbers = sorted(set(processes.numbers(steps.trained.pace.step)))
        if len(numbers) > 1:
            raise CheckpointError(
                f"the processes have read checkpoints of steps {', '.join(f'{n:.0f}' for n in numbers)} in "
                f"{self._store.folder}; expected one step. Give a directory that all processes share."
            )

    def release(self) -> None:
        """A fit is over: let others write the folder."""
        if self._lock is not None:
            self._lock.release()


def _variables(model: Any) -> dict[str, list[Any]]:
    return {"model": list(model.variables), "optimizer": list(model.optimizer.inner.variables)}


def _check_shapes(path: Path, kind: str, variables: Sequence[Any], arrays: Mapping[str, np.ndarray]) -> None:
    saved = [array.shape for name, array in arrays.items() if name.startswith(f"{kind}/")]
    shapes = [tuple(variable.shape) for variable in variables]
    if saved != shapes:
        first = next((i for i, (a, b) in enumerate(zip(saved, shapes, strict=False)) if a != b), len(saved))
        raise CheckpointError(
            f"this run has {len(shapes)} {kind} variables; expected the {len(saved)} of {path}, from which they differ "
            f"at number {first}. Build the same model and optimizer as before, or give another directory."
        )


def _numpy(variable: Any) -> np.ndarray:
    array = np.asarray(keras.ops.convert_to_numpy(variable))
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", getattr(variable, "name", "")))
