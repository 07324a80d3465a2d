"""The place where the members of one generation meet: a file of the supervisor's private folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import FileStore, Store  # pyright: ignore[reportPrivateImportUsage]

_POLL_S = 0.002


class SupersededError(Exception):
    """A newer generation was announced while this one was being formed."""


class RendezvousStore(Store):
    """A torch store over a file that only the run's owner can open, which gives up as soon as waiting is in vain.

    No server, so no worker's death takes it down and nobody else on the machine can reach it. torch calls the methods
    by these names; a native store could not be left before its time-out.
    """

    def __init__(self, path: str, *, in_vain: Callable[[], bool], timeout_s: float) -> None:
        super().__init__()
        self._file = FileStore(path, -1)
        self._file.set_timeout(timedelta(seconds=timeout_s))
        self._in_vain = in_vain
        self._timeout_s = timeout_s

    def for_backend(self, backend: str) -> Store:
        """What to hand to torch: NCCL asks its store from threads of its own, which must not need the interpreter."""
        return self._file if backend == "nccl" else self

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value down for the others."""
        self._file.set(key, value)  # pyright: ignore[reportArgumentType] (torch's stub leaves bytes out)

    def get(self, key: str) -> bytes:
        """A value, once it is there."""
        self.wait([key])
        return self._file.get(key)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it."""
        return self._file.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Whether all the values are there."""
        return self._file.check(keys)

    def delete_key(self, key: str) -> bool:
        """Strike a value out."""
        return self._file.delete_key(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all the values are there.

        Torch's own ``timeout`` is for connecting and short; here members wait for one another to end a step.
        """
        deadline = time.monotonic() + self._timeout_s
        while not self._file.check(keys):
            if self._in_vain():
                raise SupersededError("a newer generation was announced")
            if time.monotonic() > deadline:
                raise TimeoutError(f"wait timeout: {keys} did not appear within {self._timeout_s:g} s")
            time.sleep(_POLL_S)
