"""Where the members of one generation meet: a file in the supervisor's private folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import FileStore, Store  # pyright: ignore[reportPrivateImportUsage]

_POLL_S = 0.002


class SupersededError(Exception):
    """A newer generation was announced while this one was being formed."""


class RendezvousStore(Store):
    """A torch store over a file that only the run's owner can open; waiting ends as soon as ``give_up`` is true.

    There is no server, so no worker's death takes it down and no other user of the machine can reach it. torch calls
    the methods by these names; a wait in a native store could not end before its time-out.
    """

    def __init__(self, path: str, *, give_up: Callable[[], bool], timeout_s: float) -> None:
        super().__init__()
        self._file = FileStore(path, -1)
        self._file.set_timeout(timedelta(seconds=timeout_s))
        self._give_up = give_up
        self._timeout_s = timeout_s

    def for_backend(self, backend: str) -> Store:
        """The store for torch: NCCL reads its store from its own threads, which must not need the interpreter."""
        return self._file if backend == "nccl" else self

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value for the others."""
        self._file.set(key, value)  # pyright: ignore[reportArgumentType] (torch's stub leaves bytes out)

    def get(self, key: str) -> bytes:
        """A value, as soon as it is present."""
        self.wait([key])
        return self._file.get(key)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it."""
        return self._file.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Whether all the values are present."""
        return self._file.check(keys)

    def delete_key(self, key: str) -> bool:
        """Remove a value."""
        return self._file.delete_key(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all the values are present.

        torch's ``timeout`` is ignored: it is meant for connecting, and here members wait for one another to end a step.
        """
        deadline = time.monotonic() + self._timeout_s
        while not self._file.check(keys):
            if self._give_up():
                raise SupersededError("a newer generation was announced")
            if time.monotonic() > deadline:
                raise TimeoutError(f"wait timeout: {keys} did not appear within {self._timeout_s:g} s")
            time.sleep(_POLL_S)
