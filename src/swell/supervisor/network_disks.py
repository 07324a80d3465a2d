"""Which folders lie on a file system that other machines can mount too, where a lock may not reach them."""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_SHARED = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "gluster", "afs", "9p", "fuse", "pvfs", "orangefs")


def is_on_network_disk(folder: Path) -> bool:
    """Whether other machines may use the folder at the same time; False where that cannot be told.

    >>> is_on_network_disk(Path("/proc"))
    False
    """
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    return _shared_mount(lines, os.path.realpath(folder))


def _shared_mount(lines: list[str], path: str) -> bool:
    longest, shared = -1, False
    for line in lines:
        mount, _, kind = line.partition(" - ")
        fields = mount.split()
        if len(fields) < 5 or not kind:
            continue
        point = fields[4].encode(errors="surrogateescape").decode("unicode_escape", errors="replace").rstrip("/")
        if (path == point or path.startswith(f"{point}/")) and len(point) >= longest:
            longest, shared = len(point), kind.split()[0].startswith(_SHARED)
    return shared
