"""Checkpoints of a Keras run: weights, optimizer state and counts as one atomic, checksummed whole, without torch."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swell.errors import CheckpointError, DamagedCheckpointError

_FORMAT = 1
_KEEP = 2


class Checkpoints:
    """A directory of checkpoints ``keras-<step>``, each written aside, synced and renamed; the newest two are kept.

    Inside are ``arrays.npz`` (read without pickle, so no code is ever run from it) and ``state.json`` with its sha256.
    Arrays are stored whole, so they are restored on any backend and any number of devices.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    def save(self, step: int, state: dict[str, Any], model: Sequence[Any], optimizer: Sequence[Any]) -> Path:
        """Write a checkpoint; a crash at any moment leaves the older ones and at most a directory that is ignored."""
        arrays = {f"model/{i}": _numpy(v) for i, v in enumerate(model)}
        arrays |= {f"optimizer/{i}": _numpy(v) for i, v in enumerate(optimizer)}
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # pyright: ignore[reportArgumentType]
        content = packed.getvalue()
        record = {
            "format": _FORMAT,
            "sha256": hashlib.sha256(content).hexdigest(),
            "names": {"model": [_name(v) for v in model], "optimizer": [_name(v) for v in optimizer]},
            "state": state,
        }
        target = self._directory / f"keras-{step:012d}"
        aside = self._directory / f".aside-{uuid.uuid4().hex}"
        try:
            aside.mkdir(parents=True)
            _write(aside / "arrays.npz", content)
            _write(aside / "state.json", json.dumps(record).encode())
            _sync(aside)
            if target.exists():
                shutil.rmtree(target)
            aside.rename(target)
            _sync(self._directory)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint {target} could not be written ({error}). Free some space or give a directory that can "
                "be written; training may go on from memory."
            ) from error
        for old in self._complete()[:-_KEEP]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def restore(self, model: Sequence[Any], optimizer: Sequence[Any]) -> dict[str, Any] | None:
        """Give the variables the newest whole checkpoint's values and return its state; None where there is none.

        A damaged one is named in a warning and passed over.
        """
        for path in reversed(self._complete()):
            try:
                record, arrays = _read(path)
            except DamagedCheckpointError as error:
                warnings.warn(f"{error} An older one is tried.", stacklevel=2)
                continue
            for kind, variables in (("model", model), ("optimizer", optimizer)):
                _fit(path, kind, variables, arrays)
            for kind, variables in (("model", model), ("optimizer", optimizer)):
                for i, variable in enumerate(variables):
                    variable.assign(arrays[f"{kind}/{i}"])
            return record["state"]
        return None

    def _complete(self) -> list[Path]:
        return sorted(self._directory.glob("keras-*")) if self._directory.is_dir() else []


def _fit(path: Path, kind: str, variables: Sequence[Any], arrays: dict[str, np.ndarray]) -> None:
    saved = [array.shape for name, array in arrays.items() if name.startswith(f"{kind}/")]
    here = [tuple(v.shape) for v in variables]
    if saved != here:
        different = next((i for i, (a, b) in enumerate(zip(saved, here, strict=False)) if a != b), len(saved))
        raise CheckpointError(
            f"{path} holds {len(saved)} {kind} variables and this run has {len(here)}; they first differ at number "
            f"{different}. Build the same model and optimizer as before, or give another directory."
        )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        record = json.loads((path / "state.json").read_bytes())
        content = (path / "arrays.npz").read_bytes()
        if hashlib.sha256(content).hexdigest() != record["sha256"]:
            raise ValueError("its arrays do not match their checksum")
        with np.load(io.BytesIO(content), allow_pickle=False) as packed:
            return record, {name: packed[name] for name in packed.files}
    except (OSError, ValueError, KeyError) as error:
        raise DamagedCheckpointError(f"the checkpoint {path} is torn or corrupt: {error}.") from error


def _numpy(variable: Any) -> np.ndarray:
    import keras

    array = np.asarray(keras.ops.convert_to_numpy(variable))
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", getattr(variable, "name", "")))


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot sync a directory
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
