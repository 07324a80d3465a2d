"""Who writes a run's folder: a small file that the next writer replaces, with the token that makes it the newest."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from swell.core.regular_files import open_regular, read_regular
from swell.supervisor.process_identity import own_identity

FILE_NAME = "writer.json"
_LONGEST = 1 << 16  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRecord:
    """The writer of a folder; each has a higher token than the one before it."""

    token: int
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    process: str = field(default_factory=own_identity)
    since: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S %Z"))
    supervisor: str = ""  # its identity; empty for a script that was started by itself
    supervisor_lock: str = ""
    generation: int = 0  # of the world whose first replica writes
    released: bool = False  # whether the writer has ended in order

    @property
    def is_own(self) -> bool:
        """Whether this process wrote it."""
        return (self.host, self.process) == (socket.gethostname(), own_identity())

    def __str__(self) -> str:
        started = "a worker of `swell run`" if self.supervisor else "a script"
        return f"process {self.pid} on {self.host} ({started}, since {self.since}, token {self.token})"


def read_record(path: Path) -> WriterRecord | None:
    """The record in a file; None if there is none, or none that can be read."""
    try:
        values = json.loads(read_regular(path, limit=_LONGEST))
        record = WriterRecord(**values)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    kinds = {"str": str, "int": int, "bool": bool}
    sound = all(type(getattr(record, each.name)) is kinds[str(each.type)] for each in fields(record))
    return record if sound and 0 < record.token < 1 << 63 else None


def write_record(path: Path, record: WriterRecord) -> int:
    """Replace the record by one rename; a descriptor of the new file, so that its inode is not used again."""
    aside = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    descriptor = open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(descriptor, json.dumps(asdict(record), indent=1).encode())
        os.rename(aside, path)
    except BaseException:
        os.close(descriptor)
        aside.unlink(missing_ok=True)
        raise
    return descriptor
