"""Where the members of one generation meet: their connections to the supervisor, which passes on what each one says."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import FileStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from swell.runtime.supervisor_link import SupervisorLink

_NATIVE = "swell/native store"
_LOOK_S = 0.5


class SupersededError(Exception):
    """A newer generation was announced while this one was being formed."""


class RendezvousStore(Store):
    """A torch store over the link to the supervisor; waiting ends as soon as ``give_up`` is true.

    There is no server of its own, so no worker's death takes it down and nobody outside the run can reach it. What a
    member sets is sent to all of them, so reading takes no question. torch calls the methods by these names; a wait in
    a native store could not end before its time-out.
    """

    def __init__(self, link: SupervisorLink, number: int, *, give_up: Callable[[], bool], timeout_s: float) -> None:
        super().__init__()
        self._link, self._number = link, number
        self._give_up = give_up
        self._timeout_s = timeout_s

    def for_backend(self, backend: str, *, rank: int, file: str, address: str) -> Store:
        """The store for torch: NCCL reads its store from its own threads, which must not need the interpreter.

        It is ``file`` where all members are on the supervisor's machine. Otherwise the first member keeps it, at
        ``address``; its port is open to the network while the generation lives.
        """
        if backend != "nccl":
            return self
        timeout = timedelta(seconds=self._timeout_s)
        if file:
            store = FileStore(file, -1)
            store.set_timeout(timeout)
            return store
        if rank == 0:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.create_server((address, 0), family=family)
            port = listener.getsockname()[1]
            facts = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
            store = TCPStore(address, port, timeout=timeout, **facts)
            self.set(_NATIVE, f"{port} {address}")
            return store
        port, host = self.get(_NATIVE).decode().split(" ", 1)
        return TCPStore(host, int(port), is_master=False, timeout=timeout, wait_for_workers=False)

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value for the others."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._link.meet("set", number=self._number, key=key, value=base64.b64encode(data).decode())

    def get(self, key: str) -> bytes:
        """A value, as soon as it is present."""
        self.wait([key])
        return base64.b64decode(self._link.values(self._number)[key])

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it."""
        ticket = self._link.meet("add", number=self._number, key=key, amount=amount)
        self._wait(lambda: ticket in self._link.sums(self._number), f"the sum of {key}")
        return self._link.sums(self._number)[ticket]

    def check(self, keys: list[str]) -> bool:
        """Whether all the values are present."""
        values = self._link.values(self._number)
        return all(key in values for key in keys)

    def delete_key(self, key: str) -> bool:
        """Nothing is deleted: a generation's values are forgotten with it."""
        return False

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all the values are present.

        torch's ``timeout`` is ignored: it is meant for connecting, and here members wait for one another to end a step.
        """
        self._wait(lambda: self.check(keys), str(keys))

    def _wait(self, present: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not self._link.wait_for(lambda: present() or self._give_up(), timeout_s=_LOOK_S):
            self._link.main.poll()
            if time.monotonic() > deadline:
                raise TimeoutError(f"wait timeout: {what} did not appear within {self._timeout_s:g} s")
        if not present():
            raise SupersededError("a newer generation was announced")
