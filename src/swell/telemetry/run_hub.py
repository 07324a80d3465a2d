"""The runs below a folder, kept up to date for everyone who looks at them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from swell.telemetry.run_document import RunDocument
from swell.telemetry.run_folder import RunFolder, find_runs
from swell.telemetry.run_listing import name_below, row_of

_LOOK_S = 2.0  # for new runs, and for news of runs that nobody watches
_POLL_S = 0.2
_LOG_BYTES = 65_536


class RunHub:
    """One reader for each run, whatever the number of viewers; may be called from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[RunFolder, RunDocument]] = {}
        self._looked_at = -1e9
        self._polled_at: dict[str, float] = {}

    def listing(self) -> list[dict[str, Any]]:
        """A row for each run, newest first."""
        with self._lock:
            self._look()
            return [{"id": name, **row_of(run, name=name)} for name, (run, _) in self._runs.items()]

    def whole(self, name: str) -> dict[str, Any] | None:
        """The document of a run; None if there is no such run."""
        with self._lock:
            found = self._fresh(name)
            if found is None:
                return None
            run, document = found
            return {"id": name, **document.whole(state=run.state(), problem=run.reader.problem), **_live(run)}

    def since(self, name: str, steps: int, rewinds: int) -> dict[str, Any] | None:
        """What is new since a viewer had ``steps`` steps: new rows, or the whole document if steps were taken back."""
        with self._lock:
            found = self._fresh(name)
            if found is None:
                return None
            run, document = found
            model = run.model
            tail = {**document.tail(state=run.state(), problem=run.reader.problem), **_live(run)}
            if model.rewinds == rewinds and model.num_steps >= steps:
                return {"id": name, "rows": document.rows(steps) if model.num_steps > steps else None, "tail": tail}
            return {"run": {"id": name, **document.whole(state=run.state()), **_live(run)}, "tail": tail}

    def path(self, name: str) -> Path | None:
        """The folder of a run; None if there is no such run."""
        with self._lock:
            self._look()
            return self._runs[name][0].path if name in self._runs else None

    def logs(self, name: str) -> list[str]:
        """The names of the run's log files."""
        path = self.path(name)
        if path is None or (path / "logs").is_symlink():
            return []
        files = (path / "logs").glob("*.log")
        return sorted((file.name for file in files if file.is_file() and not file.is_symlink()), key=_by_number)

    def log(self, name: str, file: str) -> str | None:
        """The end of one of them; None if there is no such file."""
        path = self.path(name)
        if path is None or file not in self.logs(name):
            return None
        with (path / "logs" / file).open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - _LOG_BYTES))
            return log.read().decode(errors="replace")

    def _look(self) -> None:
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        runs: dict[str, tuple[RunFolder, RunDocument]] = {}
        for path in find_runs(self.folder):
            name = name_below(path, self.folder)
            if name not in self._runs:
                run = RunFolder(path)
                self._runs[name] = run, RunDocument(run.model, name=name)
            runs[name] = self._runs[name]
            runs[name][0].poll()
        self._runs = runs

    def _fresh(self, name: str) -> tuple[RunFolder, RunDocument] | None:
        self._look()
        found = self._runs.get(name)
        if found is not None and time.monotonic() - self._polled_at.get(name, -1e9) > _POLL_S:
            self._polled_at[name] = time.monotonic()
            found[0].poll()
        return found


def _live(run: RunFolder) -> dict[str, Any]:
    return {"supervised": run.supervised()}


def _by_number(name: str) -> tuple[str, int]:
    stem, _, number = name.removesuffix(".log").rpartition("-")
    return (stem, int(number)) if number.isdigit() else (name, -1)
