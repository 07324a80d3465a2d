"""Files of a run's folder, opened with suspicion: regular ones only, and no link is followed for writing."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
}


class IrregularFileError(OSError):
    """What was to be opened is no regular file, or is reached through a link that somebody put there."""


def open_regular(path: str | os.PathLike[str], flags: int, mode: int = 0o644, *, follow: bool = False) -> int:
    """The descriptor of a regular file; never blocks, as opening a pipe would, and never touches a device.

    With ``follow`` the last part of the path may be a link; otherwise a link is refused. Links in the folders before it
    are followed: check those with ``require_own_folder``. Raises ``IrregularFileError``, or what ``os.open`` raises.

    >>> os.close(open_regular(__file__, os.O_RDONLY))
    >>> open_regular(os.devnull, os.O_RDONLY)
    Traceback (most recent call last):
    ...
    swell.core.regular_files.IrregularFileError: [Errno 22] it is a device; expected a regular file: '/dev/null'
    """
    path = os.fspath(path)
    if not follow:
        flags |= os.O_NOFOLLOW
    truncate = flags & os.O_TRUNC
    try:
        # Emptied only once it is known to be regular. O_NONBLOCK has no effect on regular files.
        descriptor = os.open(path, (flags & ~os.O_TRUNC) | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise _irregular("a symbolic link", path) from None
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a pipe that nobody reads, a socket; a folder
            raise _irregular(_kind(os.lstat(path).st_mode), path) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _irregular(_kind(status.st_mode), path)
        if truncate:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str], *, follow: bool = False, limit: int = 1 << 28) -> bytes:
    """The content of a regular file; a file of more than ``limit`` bytes is refused."""
    descriptor = open_regular(path, os.O_RDONLY, follow=follow)
    with open(descriptor, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise IrregularFileError(errno.EFBIG, f"it has more than {limit} bytes", os.fspath(path))
    return content


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    aside = path.with_suffix(f".new{os.getpid()}")
    with open(open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    aside.replace(path)


def require_own_folder(folder: Path) -> None:
    """Refuse a folder of a run that is a link: what is written into it would go somewhere else."""
    if folder.is_symlink():
        raise _irregular("a symbolic link", os.fspath(folder), expected="a folder")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _irregular(kind: str, path: str, *, expected: str = "a regular file") -> IrregularFileError:
    return IrregularFileError(errno.EINVAL, f"it is {kind}; expected {expected}", path)
