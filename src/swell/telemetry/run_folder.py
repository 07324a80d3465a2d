"""Runs by their folders: which there are, and what state each is in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from swell.errors import ConfigError
from swell.supervisor.run_dir import RunDir
from swell.telemetry.log_reader import LOG_NAME, LogReader
from swell.telemetry.run_model import RunModel

_DEEPEST = 4
_SILENT_S = 120.0


class RunFolder:
    """One run: its model, which ``poll`` brings up to date, and its state."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.reader = LogReader(self.path)
        self.model = RunModel()

    def poll(self) -> bool:
        """Read what is new; whether there was anything."""
        events = self.reader.poll()
        self.model.take_all(events)
        return bool(events)

    def state(self, now: float | None = None) -> str:
        """ "running", "finished", "stopped", "silent" (no event for two minutes and no end), or "empty"."""
        model = self.model
        if self.supervised():
            return "running"
        if model.last_time is None:
            return "empty"
        if model.ended is not None:
            return "finished" if model.ended.reason == "finished" else "stopped"
        silent_s = (time.time() if now is None else now) - model.last_time
        step_s = model.latest.step_s if model.latest is not None else 0.0
        return "running" if silent_s < max(_SILENT_S, 20 * step_s) else "silent"

    def supervised(self) -> bool:
        """Whether a ``swell run`` is active in the folder."""
        try:
            return RunDir(self.path).find_socket().exists()
        except (ConfigError, OSError):
            return False


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """The folders of runs in ``folder`` and below it, newest event first; links are not followed."""
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(
            f"{root} is not a folder; expected one with runs in it. Give the folder that holds your run folders, for "
            f"example runs."
        )
    return sorted(_logs(root, 0), key=_changed_at, reverse=True)


def _logs(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    if any(entry.name == LOG_NAME and entry.is_file(follow_symlinks=False) for entry in entries):
        yield folder
        return
    if depth < _DEEPEST:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _logs(Path(entry.path), depth + 1)


def _changed_at(folder: Path) -> float:
    try:
        return (folder / LOG_NAME).stat().st_mtime
    except OSError:
        return 0.0
