"""Signals as bytes on a socket, so that a loop handles them like everything else."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


@contextmanager
def signals_as_bytes() -> Iterator[socket.socket]:
    """The socket on which the numbers of signals arrive inside the block, instead of what they do otherwise."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores some
    previous = {number: signal.signal(number, lambda *_: None) for number in numbers}
    descriptor = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
    try:
        yield near
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in previous.items():
            signal.signal(number, handler)
        near.close()
        far.close()
