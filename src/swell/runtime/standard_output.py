"""Standard output that never raises: a disk that takes no more costs lines of a log, not the run."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE, errno.EPIPE)


class PatientOutput(io.RawIOBase):
    """Writes to a descriptor; what cannot be written because of the disk is dropped and counted."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.dropped = 0  # bytes

    def write(self, data: Any, /) -> int:
        """Write all of it, or drop the rest."""
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self.dropped += len(left)
                break
        return size

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True


def make_output_patient() -> None:
    """Replace standard output and error by ones that drop what the disk does not take.

    Not where the script has put something of its own in their place.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
            continue
        try:
            stream.flush()
            raw = PatientOutput(stream.fileno())
        except (OSError, ValueError):
            continue
        patient = io.TextIOWrapper(raw, encoding=stream.encoding, errors=stream.errors, write_through=True)  # type: ignore[arg-type]
        setattr(sys, name, patient)
