"""The head of a trainer's run: ``swell run --engine ray`` in a process beside the driver, and its end with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from swell.supervisor.relaunch import environment_with
from swell.supervisor.worker_process import end_with_parent

_LAST_LINES = 12


def run_head(arguments: Sequence[str], *, folder: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run ``swell`` with these arguments and print what it says; its exit status and its last lines.

    It is a process of its own because it needs the main thread, which a notebook or a tuner may not give. An interrupt
    asks it to save and stop, a second one ends it; so does the end of this process, however it comes.
    """
    head = subprocess.Popen(
        [sys.executable, "-m", "swell", *arguments],
        cwd=folder,
        env=environment_with(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=end_with_parent(os.getpid(), signal.SIGTERM),
    )
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    with head:
        try:
            _pass_on(head, lines)
        except BaseException as error:
            head.send_signal(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            with contextlib.suppress(KeyboardInterrupt):
                _pass_on(head, lines)
            head.send_signal(signal.SIGINT)  # it has ended, or is to end at once
            raise
    return head.returncode, "\n".join(lines)


def _pass_on(head: subprocess.Popen[str], lines: deque[str]) -> None:
    assert head.stdout is not None
    for text in head.stdout:
        lines.append(text.rstrip())
        print(text, end="", flush=True)
