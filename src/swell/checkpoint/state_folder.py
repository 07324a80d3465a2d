"""The checkpoints on a machine's disk as files: which there are, and taking one from elsewhere, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from swell.checkpoint.disk import FolderLock, disk_error, remove_folder, sync_folder, write_file
from swell.checkpoint.folder_names import FOLDER, number_of, numbered_folders
from swell.checkpoint.hidden_folders import hide_and_remove
from swell.checkpoint.manifest import FILE_NAME, from_json
from swell.checkpoint.set_aside import set_aside
from swell.core.regular_files import read_regular, require_own_folder
from swell.errors import CheckpointError, DamagedCheckpointError
from swell.supervisor.run_dir import RunDir
from swell.supervisor.saved_state import OpenFile, SavedState

# Not the prefix of a folder that a worker writes: a new writer takes those away.
_COPYING = ".copying-"
_CHUNK = 1 << 20


class DiskStates:
    """Implements ``swell.supervisor.saved_state.StateFolder`` for the folder of a run; needs no torch.

    A state that comes from elsewhere is written into a hidden folder, compared with the checksums of its manifest,
    synced and renamed, as a checkpoint is when it is saved. A crash leaves a hidden folder that the next one removes.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = RunDir(run_dir)
        self._known: dict[str, SavedState] = {}

    @property
    def root(self) -> Path:
        """The folder of the checkpoints."""
        return self._run_dir.job_folder / FOLDER

    def states(self) -> list[SavedState]:
        """All that are complete, oldest first; of each the manifest and the lengths are checked, once."""
        present: dict[str, SavedState] = {}
        for number, folder in numbered_folders(self.root):
            with suppress(OSError, CheckpointError):  # deleted in this moment, or damaged, as its reader will say
                known = self._known.get(folder.name)
                present[folder.name] = self._inspect(number, folder) if known is None else known
        self._known = present
        return list(present.values())

    def manifest(self, state: SavedState) -> bytes:
        """The manifest of a state; ``OSError`` if it is gone."""
        return read_regular(self.root / state.name / FILE_NAME)

    def files(self, state: SavedState) -> list[tuple[Path, int]]:
        """Its other files, in the manifest's order, and their lengths."""
        manifest = from_json(self.manifest(state), where=state.name)
        return [(self.root / state.name / entry.path, entry.bytes) for entry in manifest.files]

    def receive(self, state: SavedState, manifest: bytes, open_file: OpenFile) -> None:
        """Take a state from elsewhere, completely or not at all; every byte is compared with the checksums."""
        try:
            self._receive(state, manifest, open_file)
        except OSError as error:
            raise disk_error(error, doing=f"copying state {state.name}", folder=self.root) from error

    def remove(self, names: Collection[str]) -> None:
        """Delete states that are not needed any more."""
        for name in names:
            if number_of(name) is not None:
                with suppress(OSError):  # its own writer has deleted it
                    hide_and_remove(self.root / name)

    def set_aside(self, names: Collection[str]) -> Path | None:
        """Move states out of the way and delete nothing; where they are now."""
        paths = [self.root / name for name in names if number_of(name) is not None]
        return set_aside(paths, folder=self.root.parent)

    def _inspect(self, number: int, folder: Path) -> SavedState:
        text = read_regular(folder / FILE_NAME)
        manifest = from_json(text, where=str(folder))
        for entry in manifest.files:
            if os.stat(folder / entry.path).st_size != entry.bytes:
                raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {entry.path} has another length.")
        return SavedState(
            name=folder.name,
            number=number,
            digest=hashlib.sha256(text).hexdigest(),
            run_id=manifest.run_id,
            named=manifest.name is not None,
        )

    def _receive(self, state: SavedState, manifest: bytes, open_file: OpenFile) -> None:
        entries = from_json(manifest, where=state.name)
        if hashlib.sha256(manifest).hexdigest() != state.digest or number_of(state.name) != state.number:
            raise DamagedCheckpointError(
                f"the copy of {state.name} is not the state that was announced; it is refused."
            )
        root, target = self.root, self.root / state.name
        require_own_folder(root)
        root.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(root)
        hidden = root / f"{_COPYING}{uuid.uuid4().hex}"
        hidden.mkdir()
        lock = FolderLock(hidden)
        try:
            for entry in entries.files:
                path = hidden / entry.path
                path.parent.mkdir(parents=True, exist_ok=True)

                def copy(writer: Any, path: str = entry.path, length: int = entry.bytes) -> None:
                    with open_file(path, length) as source:
                        shutil.copyfileobj(source, writer, _CHUNK)

                if write_file(hidden, entry.path, copy) != entry:
                    raise DamagedCheckpointError(f"the copy of {state.name} is damaged: {entry.path}; it is refused.")
            write_file(hidden, FILE_NAME, lambda writer: writer.write(manifest))
            for folder, _, _ in os.walk(hidden, topdown=False):
                sync_folder(Path(folder))
            os.rename(hidden, target)
            sync_folder(root)
        finally:
            lock.release()
            remove_folder(hidden)


def _remove_leftovers(root: Path) -> None:
    """Delete what processes that are dead now were copying."""
    for folder in root.glob(f"{_COPYING}*"):
        with suppress(OSError):
            FolderLock(folder).release()
            remove_folder(folder)
