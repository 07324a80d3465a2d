"""The latest epoch of a log and its last steps, without reading all of it."""

from __future__ import annotations

import os
from pathlib import Path

from swell.core.events import EpochStarted, Event, Stepped
from swell.errors import ConfigError
from swell.telemetry.log_lines import LineReader, Torn
from swell.telemetry.log_parts import older_parts, open_log

_BLOCK = 2**18  # bytes that are read at once, from the end


def recent_events(path: str | os.PathLike[str], *, steps: int = 32) -> list[Event]:
    """The start of the latest epoch in a log and the last steps, at most ``steps``, in the log's order.

    Steps are written a moment after they were taken, so there may be none after that start yet. Empty if the log has
    neither.
    """
    events = _search(Path(path), steps)
    for part in reversed(older_parts(Path(path))):
        if any(isinstance(event, EpochStarted) for event in events):
            break
        events = [*_search(part, steps - len(events)), *events]
    return events


def _search(path: Path, steps: int) -> list[Event]:
    """The start of the latest epoch in one file and its last steps."""
    try:
        with open_log(path) as file:
            content = file.read()
    except (OSError, EOFError):
        return []
    tail = content.rfind(b"\n", 0, max(0, len(content) - _BLOCK)) + 1
    place = content.rfind(b'"event": "epoch_begin"')
    events = _events(content[tail:])
    if 0 <= place < tail:
        start = content.rfind(b"\n", 0, place) + 1
        events = [*_events(content[start:].split(b"\n", 1)[0]), *events]
    latest = next((event for event in reversed(events) if isinstance(event, EpochStarted)), None)
    last = [event for event in events if isinstance(event, Stepped)]
    kept = {id(event) for event in [latest, *last[max(0, len(last) - steps) :]]}
    return [event for event in events if id(event) in kept]


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
