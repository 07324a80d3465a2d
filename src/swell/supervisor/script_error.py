"""The error that ended a worker's script, as its log has it, and what to do about those that are known."""

from __future__ import annotations

import re
from pathlib import Path

_TAIL = 2**16  # bytes at the end of a log that are searched
_BEGIN = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[rank\d+\]: ?")  # what torch puts before each line
_FINAL = re.compile(r"SyntaxError: |.*: error: |.*: Error while finding module ")  # of Python and of argparse
_ADDRESS = re.compile(r"0x[0-9a-f]{4,}")

# What torch says where a script wants a process group of its own, in words of several versions.
_OWN_GROUP = ("environment variable RANK expected", "Default process group has not been initialized")


def script_error(log: Path, start: int) -> str:
    """The last traceback that a log has after byte ``start``; empty if it has none.

    A syntax error, an unknown module and wrong arguments have none: their last line counts. Addresses are left out, so
    that the same error twice gives the same text.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    last = text.rstrip().rpartition("\n")[2]
    return last_traceback(text) or (last if _FINAL.match(last) else "")


def last_traceback(text: str) -> str:
    """The last traceback in a text.

    >>> last_traceback("epoch 1\\nTraceback (most recent call last):\\n  File 'a.py', line 1\\nKeyError: 3\\nbye")
    "Traceback (most recent call last):\\n  File 'a.py', line 1\\nKeyError: 3"
    """
    lines = [_RANK.sub("", line) for line in text.splitlines()]
    begins = [number for number, line in enumerate(lines) if line.startswith(_BEGIN)]
    if not begins:
        return ""
    end = begins[-1] + 1
    while end < len(lines) and (lines[end].startswith(" ") or not lines[end]):
        end += 1
    return _ADDRESS.sub("0x...", "\n".join(lines[begins[-1] : end + 1]))


def refusal_of(error: str) -> str | None:
    """What to tell a user whose script cannot work under ``swell run`` in place; None for any other error.

    >>> refusal_of("ValueError: environment variable RANK expected, but not set") is None
    False
    """
    if not any(words in error for words in _OWN_GROUP):
        return None
    return (
        "the script makes a process group of its own, as FSDP2 (fully_shard), init_device_mesh and init_process_group "
        "do; expected none under `swell run` in place, which forms the world again whenever workers come and go, while "
        "a lost worker would take its shards with it. Use `swell run --engine torchrun`, which resumes from the newest "
        "checkpoint on any number of workers; or leave the process group out, if the model is not sharded."
    )
