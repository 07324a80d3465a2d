"""Files that are complete and on the disk before anyone sees them: checksummed while they are written, then synced."""

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
from swell.core.regular_files import open_regular
from swell.errors import CheckpointError

_CHUNK = 4 << 20


class ChecksumWriter:
    """Writes to a file, and keeps the checksum and the length of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write the data; a failure is kept in ``error``, because torch.save raises another error instead of it."""
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
    """Create a file from what ``write`` writes; returns once its content is on the disk (sync the folder later)."""
    with open(folder / name, "xb") as file:
        writer = ChecksumWriter(file)
        try:
            write(writer)
        except Exception as error:
            raise writer.error or error from error
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(path=name, bytes=writer.num_bytes, sha256=writer.hexdigest())


def sync_file(path: Path) -> None:
    """Bring the content of a file that others wrote to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum_file(folder: Path, name: str) -> FileEntry:
    """Length and checksum of an existing file."""
    digest = hashlib.sha256()
    length = 0
    with open(open_regular(folder / name, os.O_RDONLY, follow=True), "rb", buffering=0) as file:
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
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


class FolderLock:
    """Held by the process that writes a folder; the kernel releases it when that process dies."""

    def __init__(self, folder: Path) -> None:
        """Take the lock; raises ``BlockingIOError`` if another process holds it."""
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        os.close(self._descriptor)


def remove_folder(folder: Path) -> None:
    """Delete a folder that nobody needs; no error if it is already being deleted."""
    shutil.rmtree(folder, ignore_errors=True)


def disk_error(error: OSError, *, doing: str, folder: Path) -> CheckpointError:
    """What went wrong on the disk, in the user's terms."""
    number = error.errno
    if number in (errno.ENOSPC, errno.EDQUOT):
        reason = (
            f"no space is left on the disk ({_free_space(folder)}). Free some, keep fewer checkpoints or choose "
            f"another disk"
        )
    elif number in (errno.EACCES, errno.EPERM):
        reason = f"permission was denied for user {os.geteuid()}. Make the folder writable or choose another run folder"
    elif number == errno.EROFS:
        reason = "the file system is read-only. Mount it writable or choose another run folder"
    elif number in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        reason = "the folder has vanished: it was moved, deleted or unmounted. Restore it or choose another run folder"
    else:
        reason = f"{error.strerror or error}. Check the disk and the system's log"
    return CheckpointError(
        f"{doing} in {folder} failed: {reason}. Older checkpoints are untouched; training can go on, and the next save "
        f"will try again."
    )


def _free_space(folder: Path) -> str:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return "free space unknown"
    return f"{disk.f_bavail * disk.f_frsize / 1e6:.1f} MB free"
