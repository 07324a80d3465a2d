"""The folder of a supervised run: control socket, logs and the record from which it is resumed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swell.errors import ConfigError

_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 108 bytes on Linux and 104 on macOS


class RunDir:
    """Paths inside a run's folder.

    Only its owner can enter ``control/``. It contains the supervisor's lock, the record of its command line and the
    control socket. Where the path is too long for a socket, it contains the address of one in a private folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.control = self.path / "control"
        self.logs = self.path / "logs"
        self._record = self.control / "run.json"  # how the run was started

    @contextmanager
    def lock(self) -> Iterator[Path]:
        """Lock the run for one supervisor; gives a private folder for sockets and rendezvous, removed afterwards."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self.control.mkdir(exist_ok=True)
            self.control.chmod(0o700)
            lock = os.open(self.control / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"--run-dir is {str(self.path)!r}; expected a folder you can write to ({error}). Give another one."
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"--run-dir {self.path} is in use by another `swell run`; expected a folder without an active run. "
                    f"Stop that run with `swell stop {self.path}`, or give another folder."
                ) from None
            private = Path(tempfile.mkdtemp(prefix="swell-"))
            try:
                yield private
            finally:
                with contextlib.suppress(OSError):
                    (self.control / "address").unlink()
                shutil.rmtree(private, ignore_errors=True)
        finally:
            os.close(lock)

    def place_socket(self, private: Path) -> Path:
        """The path for the control socket; it is written down for clients."""
        path = self.control.resolve() / "socket"
        if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            path = private / "socket"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # left behind by a supervisor that was killed; we hold the lock
        _write_private(self.control / "address", str(path))
        return path

    def find_socket(self) -> Path:
        """The control socket of this run's supervisor."""
        try:
            return Path((self.control / "address").read_text())
        except PermissionError:
            raise ConfigError(
                f"run folder {self.path} belongs to another user; expected one of your own. Ask its owner to control "
                f"the run."
            ) from None
        except OSError:
            raise ConfigError(f"no run is active in {self.path}; expected one to control. {self._advice()}") from None

    def _advice(self) -> str:
        """What to do where no supervisor is active."""
        if self._record.exists():
            return f"It has ended or was stopped: bring it back with `swell resume {self.path}`."
        if (self.path / "events.jsonl").exists():
            return (
                "Its run was not started by `swell run`, so it has no supervisor: read its log with `swell explain "
                f"{self.path}`, or start its script again to resume it."
            )
        problem = "There is no run in it" if self.path.exists() else "There is no such folder"
        return f"{problem}: give the --run-dir of a `swell run`."

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Remember how the run was started."""
        _write_private(self._record, json.dumps(record, indent=2) + "\n")

    def read_record(self) -> dict[str, Any]:
        """How the run was started."""
        path = self._record
        try:
            record = json.loads(path.read_text())
            if isinstance(record, dict):
                return record
            raise ValueError("not a JSON object")
        except FileNotFoundError:
            raise ConfigError(
                f"run folder {self.path} has no {path.name}; expected a run that can be resumed. Give the --run-dir of "
                f"a `swell run`."
            ) from None
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error}); expected the record of a run. Start the run again with `swell run "
                f"--run-dir {self.path}`; its checkpoints are not affected."
            ) from error


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    aside = path.with_suffix(".new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    aside.replace(path)
