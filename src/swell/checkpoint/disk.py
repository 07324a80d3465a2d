"""Files that are whole and on the disk before anybody sees them: checksummed as they are written, then synced."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from swell.checkpoint.manifest import FileEntry
from swell.errors import CheckpointError

_CHUNK = 4 << 20


class Checksummed:
    """A file to write to that keeps the checksum and the length of what went through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Pass the data on; a failure is kept, since torch.save covers it with one of its own."""
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._hash.update(data)
        self.num_bytes += len(data)
        return written

    def flush(self) -> None:
        self._file.flush()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def write_file(folder: Path, name: str, write: Callable[[Any], None]) -> FileEntry:
    """Make a new file of what ``write`` writes, and return once it is on the disk; the folder's entry is not yet."""
    with open(folder / name, "xb") as file:
        checked = Checksummed(file)
        try:
            write(checked)
        except Exception as error:
            raise checked.error or error from error
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(path=name, bytes=checked.num_bytes, sha256=checked.hexdigest())


def sync_file(path: Path) -> None:
    """Bring the content of a file that somebody else wrote to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum_file(folder: Path, name: str) -> FileEntry:
    """Length and checksum of a file that is there."""
    digest = hashlib.sha256()
    length = 0
    with open(folder / name, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            length += len(chunk)
    return FileEntry(path=name, bytes=length, sha256=digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that have no such thing
            raise
    finally:
        os.close(descriptor)


class FolderLock:
    """Held by who writes a folder, and let go by the kernel when that process dies, however it dies."""

    def __init__(self, folder: Path) -> None:
        """Take the lock; raises ``BlockingIOError`` when somebody else holds it."""
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        os.close(self._descriptor)


def remove_folder(folder: Path) -> None:
    """Delete a folder that nobody will look at again; one that is already going is no error."""
    shutil.rmtree(folder, ignore_errors=True)


def explained(error: OSError, *, doing: str, folder: Path) -> CheckpointError:
    """What went wrong while saving, in the user's terms."""
    number = error.errno
    if number in (errno.ENOSPC, errno.EDQUOT):
        why = (
            f"no space is left on the disk ({_free(folder)}). Free some, keep fewer checkpoints or choose another disk"
        )
    elif number in (errno.EACCES, errno.EPERM):
        why = f"permission was denied for user {os.geteuid()}. Make the folder writable or choose another run folder"
    elif number == errno.EROFS:
        why = "the file system is read-only. Mount it writable or choose another run folder"
    elif number in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        why = "the folder has vanished: it was moved, deleted or unmounted. Bring it back or choose another run folder"
    else:
        why = f"{error.strerror or error}. Look at the disk and at the system's log"
    return CheckpointError(
        f"{doing} in {folder} failed: {why}. Older checkpoints are untouched; training can go on, and the next save "
        f"will try again."
    )


def _free(folder: Path) -> str:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return "how much is free cannot be told"
    return f"{disk.f_bavail * disk.f_frsize / 1e6:.1f} MB free"
