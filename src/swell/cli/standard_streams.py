"""Standard streams that were closed before the command started, or that nobody reads."""

from __future__ import annotations

import os
import select
import sys


def open_closed_streams() -> None:
    """Connect closed standard streams (``>&-``) to the null device.

    Otherwise the next files that are opened get their descriptors, and what is printed goes into those files.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def write_out(text: str) -> None:
    """Write to the descriptor itself: a thread that is stuck in a file object's lock would spoil Python's exit."""
    try:
        descriptor, encoding = sys.stdout.fileno(), sys.stdout.encoding
    except (AttributeError, OSError, ValueError):  # there is none, or a test or a notebook has put another in its place
        print(text, end="", flush=True)
        return
    data = text.encode(encoding, errors="replace")
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # somebody who shares the terminal made it non-blocking
            select.select([], [descriptor], [])
