"""The latest epoch of a log and its last steps, without reading all of it."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from swell.core.events import EpochStarted, Event, Stepped
from swell.errors import ConfigError
from swell.telemetry.log_lines import LineReader, Torn
from swell.telemetry.log_parts import older_parts, open_log

_BLOCK = 2**18  # bytes that are read at once, from the end


def recent_events(path: str | os.PathLike[str], *, steps: int = 32) -> list[Event]:
    """The start of the latest epoch in a log and the steps after it, at most ``steps``; empty if there is none."""
    begin, last = _search(Path(path), steps)
    for part in reversed(older_parts(Path(path))):
        if begin is not None:
            break
        begin, earlier = _search(part, steps - len(last))
        last = [*earlier, *last]
    return last if begin is None else [begin, *last]


def _search(path: Path, steps: int) -> tuple[Event | None, list[Event]]:
    """The start of the latest epoch in one file, and the last steps after it."""
    try:
        with open_log(path) as file:
            content = file.read()
    except (OSError, EOFError):
        return None, []
    place = content.rfind(b'"event": "epoch_begin"')
    start = content.rfind(b"\n", 0, place) + 1 if place >= 0 else 0
    begin = _events(content[start:].split(b"\n", 1)[0]) if place >= 0 else []
    tail = max(start, len(content) - _BLOCK)
    found = deque((event for event in _events(content[tail:]) if isinstance(event, Stepped)), maxlen=max(0, steps))
    return next((event for event in begin if isinstance(event, EpochStarted)), None), list(found)


def _events(content: bytes) -> list[Event]:
    """The events in a piece of a log; lines that cannot be read, or that build on one before it, are left out."""
    reader, found = LineReader(), []
    for line in content.split(b"\n"):
        try:
            event = reader.read(line)
        except (Torn, ConfigError):
            continue
        if event is not None:
            found.append(event)
    return found
