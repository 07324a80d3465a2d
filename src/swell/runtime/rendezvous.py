"""Where the members of one generation meet: files in the supervisor's private folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from torch.distributed import FileStore, Store  # pyright: ignore[reportPrivateImportUsage]

_POLL_S = 0.002


class SupersededError(Exception):
    """A newer generation was announced while this one was being formed."""


class RendezvousStore(Store):
    """A torch store over files that only the run's owner can open; waiting ends as soon as ``give_up`` is true.

    There is no server, so no worker's death takes it down and no other user of the machine can reach it. Each value is
    a file of its own, which appears at once and whole: a worker that is killed while it writes leaves nothing that
    others could stumble over. torch's own ``FileStore`` appends to one file, and a reader of a record that was cut
    short spins for ever (2.13). torch calls the methods by these names; a wait in a native store could not end before
    its time-out.
    """

    def __init__(self, path: str, *, give_up: Callable[[], bool], timeout_s: float) -> None:
        super().__init__()
        self._folder = Path(path)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._give_up = give_up
        self._timeout_s = timeout_s

    def for_backend(self, backend: str) -> Store:
        """The store for torch: NCCL reads its store from its own threads, which must not need the interpreter."""
        if backend != "nccl":
            return self
        native = FileStore(str(self._folder / "native"), -1)
        native.set_timeout(timedelta(seconds=self._timeout_s))
        return native

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value for the others."""
        descriptor, hidden = tempfile.mkstemp(dir=self._folder, prefix=".")
        with os.fdopen(descriptor, "wb") as file:
            file.write(value.encode() if isinstance(value, str) else bytes(value))
        os.replace(hidden, self._place(key))

    def get(self, key: str) -> bytes:
        """A value, as soon as it is present."""
        self.wait([key])
        return self._place(key).read_bytes()

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it."""
        lock = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel if this process is killed
            before = int(self._place(key).read_bytes()) if self.check([key]) else 0
            self.set(key, str(before + amount))
        finally:
            os.close(lock)
        return before + amount

    def check(self, keys: list[str]) -> bool:
        """Whether all the values are present."""
        return all(self._place(key).exists() for key in keys)

    def delete_key(self, key: str) -> bool:
        """Remove a value; whether there was one."""
        with contextlib.suppress(FileNotFoundError):
            self._place(key).unlink()
            return True
        return False

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all the values are present.

        torch's ``timeout`` is ignored: it is meant for connecting, and here members wait for one another to end a step.
        """
        deadline = time.monotonic() + self._timeout_s
        while not self.check(keys):
            if self._give_up():
                raise SupersededError("a newer generation was announced")
            if time.monotonic() > deadline:
                raise TimeoutError(f"wait timeout: {keys} did not appear within {self._timeout_s:g} s")
            time.sleep(_POLL_S)

    def _place(self, key: str) -> Path:
        return self._folder / hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
