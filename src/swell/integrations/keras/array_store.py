"""Checkpoints of arrays and plain values, whole or not at all, without torch: a NumPy archive, JSON and a manifest."""

from __future__ import annotations

import io
import json
import os
import platform
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swell.checkpoint.damage import damage_error
from swell.checkpoint.disk import checksum_file, disk_error, sync_folder, write_file
from swell.checkpoint.hidden_folders import HiddenFolder, hide_and_remove, remove_leftovers, revoke_drafts
from swell.checkpoint.manifest import FILE_NAME, Manifest, PartEntry, from_json, to_json
from swell.checkpoint.set_aside import set_aside
from swell.core.regular_files import read_regular
from swell.errors import CheckpointError, DamagedCheckpointError
from swell.version import __version__

FORMAT = 2  # of the values; in format 1 there was no manifest, and the checksum of the arrays stood among the values
_ARRAYS, _VALUES = "arrays.npz", "state.json"
_KEEP = 2


@dataclass(frozen=True, kw_only=True)
class SavedArrays:
    """What a checkpoint holds, and where it is."""

    path: Path
    run_id: str | None  # None in format 1, which did not say
    values: dict[str, Any]
    arrays: dict[str, np.ndarray]


class ArrayStore:
    """A folder of checkpoints ``keras-<step>``; the newest two are kept.

    A checkpoint is written into a hidden folder, synced and renamed, so a crash at any moment leaves the older ones
    untouched. Its manifest names every file with its length and SHA-256. The archive is read without pickle, so loading
    runs no code. Arrays are stored whole, so they can be restored on any backend and any number of devices.

    >>> store = ArrayStore(getfixture("tmp_path"))
    >>> saved = store.save({"weight": np.ones(2)}, {"epoch": 3}, step=10, samples=320)
    >>> newest = store.newest()
    >>> newest.path.name, newest.values["epoch"], newest.arrays["weight"].tolist()
    ('keras-000000000010', 3, [1.0, 1.0])
    """

    def __init__(self, folder: str | os.PathLike[str], *, before_commit: Callable[[], None] = lambda: None) -> None:
        self.folder = Path(folder)
        self._before_commit = before_commit  # raises if this process may not write any more
        self._run_id: str | None = None

    def save(
        self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], *, step: int, samples: int
    ) -> tuple[Path, Manifest]:
        """Write a checkpoint and return once it is on the disk; an older one of the same step is replaced."""
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # pyright: ignore[reportArgumentType]
        text = json.dumps({"format": FORMAT, **values})
        target = self.folder / f"keras-{step:012d}"
        draft: HiddenFolder | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
            draft = HiddenFolder(self.folder)
            self._before_commit()  # after the folder is made, because a newer writer takes away what is there
            archive = write_file(draft.path, _ARRAYS, lambda file: file.write(packed.getbuffer()))
            record = write_file(draft.path, _VALUES, lambda file: file.write(text.encode()))
            manifest = Manifest(
                run_id=self._known_run_id(),
                samples=samples,
                step=step,
                parts=(
                    PartEntry(name="arrays", kind="npz", files=(archive,)),
                    PartEntry(name="state", kind="json", files=(record,)),
                ),
                versions={"swell": __version__, "numpy": np.__version__, "python": platform.python_version()},
            )
            write_file(draft.path, FILE_NAME, lambda file: file.write(to_json(manifest).encode()))
            sync_folder(draft.path)
            self._before_commit()
            if target.exists():
                hide_and_remove(target)
            draft.path.rename(target)
            sync_folder(self.folder)
        except OSError as error:
            with suppress(OSError):
                self._before_commit()  # where another process took the draft away, this says so
            raise disk_error(error, doing="saving a checkpoint", folder=self.folder) from error
        finally:
            if draft is not None:
                draft.remove()
        for old in self._folders()[:-_KEEP]:
            with suppress(OSError):
                hide_and_remove(old)
        return target, manifest

    def newest(self) -> SavedArrays | None:
        """The newest checkpoint that is whole, every byte checked; None if there is none.

        A damaged one is named in a warning and passed over. If all are damaged, or one is of a newer format, this
        raises ``CheckpointError``.
        """
        damage: list[str] = []
        for path in reversed(self._folders()):
            try:
                saved = _read(path)
            except DamagedCheckpointError as error:
                warnings.warn(f"{error} It is passed over.", stacklevel=2)
                damage.append(str(error))
            else:
                self._run_id = saved.run_id
                return saved
        refusal = damage_error(damage, self.folder)
        if refusal is not None:
            raise refusal
        return None

    def take_over(self) -> None:
        """Take away what other processes are saving; for the process that has just become the folder's one writer."""
        revoke_drafts(self.folder)

    def set_aside(self, *more: Path) -> Path | None:
        """Move all checkpoints and ``more`` files of the folder into a new one there; where they are then."""
        self._run_id = None
        return set_aside([*self._folders(), *more], folder=self.folder)

    def _folders(self) -> list[Path]:
        return sorted(self.folder.glob("keras-*"))

    def _known_run_id(self) -> str:
        self._run_id = self._run_id or uuid.uuid4().hex[:12]
        return self._run_id


def _read(path: Path) -> SavedArrays:
    with _explained(path):
        values = json.loads(read_regular(path / _VALUES, follow=True))
        if values["format"] > FORMAT:
            raise CheckpointError(
                f"checkpoint {path} is of format {values['format']}; expected {FORMAT} or lower. Upgrade swell, or "
                "give another directory. Nothing was changed."
            )
        run_id = None
        if values["format"] == 1:
            changed = [_ARRAYS] if checksum_file(path, _ARRAYS).sha256 != values["sha256"] else []
        else:
            manifest = from_json(read_regular(path / FILE_NAME, follow=True), where=str(path))
            changed = [entry.path for entry in manifest.files if checksum_file(path, entry.path) != entry]
            run_id = manifest.run_id
        if changed:
            raise _damaged(path, f"{changed[0]} does not have the content that was written")
        with np.load(path / _ARRAYS, allow_pickle=False) as packed:
            arrays = {name: packed[name] for name in packed.files}
        return SavedArrays(path=path, run_id=run_id, values=values, arrays=arrays)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns an error of the file system or of a file's content into what it means for the checkpoint."""
    try:
        yield
    except PermissionError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read: permission denied for {error.filename}. Make it readable for this "
            "user; starting without it would repeat work."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, zipfile.BadZipFile) as error:
        raise _damaged(path, f"it cannot be read ({type(error).__name__}: {error})") from error


def _damaged(path: Path, reason: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"checkpoint {path} is damaged: {reason}.")
