"""What is wrong around a run that goes on all the same: shown when it begins, when it ends, and in its status."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_LEAST_BYTES = 2**16  # free space below which a disk counts as full


class Troubles:
    """Present troubles by name, each in words; ``log`` is told when one begins, changes or ends."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._present: dict[str, str] = {}

    def report(self, name: str, text: str) -> None:
        """Something is wrong, in words; an empty text says that it is right again."""
        before = self._present.pop(name, "")
        if text:
            self._present[name] = text
        if text and text != before:
            self._log(text)
        elif before and not text:
            self._log(f"no longer so: {before.partition(': ')[0]}")

    def texts(self) -> list[str]:
        """What is wrong now."""
        return list(self._present.values())


def disk_trouble(folder: Path) -> str:
    """Why nothing can be written into a folder, in words; empty where it can be, as far as the system says.

    >>> disk_trouble(getfixture("tmp_path"))
    ''
    """
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return (
            f"the run folder {folder} cannot be reached ({error.strerror}): training goes on without logs and "
            "checkpoints. Bring it back, and saving goes on"
        )
    if disk.f_flag & os.ST_RDONLY:
        problem = "is read-only"
    elif disk.f_bavail * disk.f_frsize < _LEAST_BYTES:
        problem = "is full"
    elif disk.f_files and not disk.f_favail:
        problem = "has no inodes left"
    else:
        return ""
    return (
        f"the disk of {folder} {problem}: training goes on without logs and checkpoints. Make room, and saving goes on"
    )
