"""The folder of a supervised run: control socket, logs and the record from which it is resumed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swell.core.regular_files import open_regular, read_regular, require_own_folder, write_private
from swell.errors import ConfigError
from swell.supervisor.private_folder import PrivateFolder, remove_leftovers

_LONGEST_RECORD, _LONGEST_PATH = 1 << 20, 4096  # bytes


class RunDir:
    """Paths inside a run's folder.

    Only its owner can enter ``control/``. It contains the supervisor's lock, the record of its command line and the
    control socket. Where its file system takes no socket, it contains the address of one in a private folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.control = self.path / "control"
        self.logs = self.path / "logs"
        self.lock_file = self.control / "lock"  # locked by the supervisor while it lives
        self.token_file = self.control / "token"  # of a run on several machines
        self._listens_at = self.control / "listens_at"  # where its supervisor can be reached from other machines
        self._record = self.control / "run.json"  # how the run was started
        self._supervised_in = self.control / "supervised_in"  # the folder that its supervisor uses, if it is another
        self._head = self.control / "head"  # which supervisor uses this folder now, on whichever machine
        self._whereabouts = self.control / "states.json"  # where the newest state was when machines last heard of it
        self._saved_in = self.control / "saved_in"  # the folder that its job uses, if it is another

    @contextmanager
    def lock(self) -> Iterator[PrivateFolder]:
        """Lock the run for one supervisor; gives a private folder for rendezvous, removed afterwards."""
        try:
            for folder in (self.logs, self.control):
                require_own_folder(folder)
                folder.mkdir(parents=True, exist_ok=True)
            self.control.chmod(0o700)
            lock = open_regular(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"--run-dir is {str(self.path)!r}; expected a folder you can write to ({error}). Give another one."
            ) from error
        try:
            try:
                _lock_soon(lock)
            except OSError:
                raise ConfigError(
                    f"--run-dir {self.path} is in use by another `swell run`; expected a folder without an active run. "
                    f"Stop that run with `swell stop {self.path}`, or give another folder."
                ) from None
            remove_leftovers(self.control)
            private = PrivateFolder(self.control)
            try:
                yield private
            finally:
                for left_over in (self.control / "address", self._listens_at):
                    with contextlib.suppress(OSError):
                        left_over.unlink()
                private.close()
        finally:
            os.close(lock)

    def write_address(self, socket: Path) -> None:
        """Write down for clients where the control socket is."""
        write_private(self.control / "address", os.fsencode(str(socket)))

    def write_listening(self, address: str) -> None:
        """Write down for other machines that see this folder where the supervisor can be reached."""
        write_private(self._listens_at, os.fsencode(address))

    def listening(self) -> str | None:
        """Where the supervisor can be reached from other machines; None if it does not listen."""
        if (elsewhere := _named_in(self._supervised_in)) is not None and not self._record.exists():
            return RunDir(elsewhere).listening()
        try:
            return read_regular(self._listens_at, limit=_LONGEST_PATH).decode()
        except (OSError, UnicodeDecodeError):
            return None

    def write_head(self, name: str) -> None:
        """Write down which supervisor uses this folder, so that an agent can tell whether it is the agent's too."""
        write_private(self._head, os.fsencode(name))

    def is_of_head(self, name: str) -> bool:
        """Whether this is the very folder of that supervisor, and not one of the same path on another disk."""
        try:
            return read_regular(self._head, limit=_LONGEST_PATH).decode() == name
        except (OSError, UnicodeDecodeError):
            return False

    def write_whereabouts(self, facts: Mapping[str, Any]) -> None:
        """Write down where the newest state of the run is."""
        write_private(self._whereabouts, os.fsencode(json.dumps(facts) + "\n"))

    def read_whereabouts(self) -> dict[str, Any]:
        """Where the newest state was when this machine last heard of it; empty if it never did."""
        try:
            facts = json.loads(read_regular(self._whereabouts, limit=_LONGEST_RECORD))
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) and isinstance(facts.get("number"), int) else {}

    def prepare(self, record: Mapping[str, Any], token: bytes) -> None:
        """Write down what a resume on this machine needs, though the run was started on another."""
        require_own_folder(self.control)
        self.control.mkdir(parents=True, exist_ok=True)
        self.control.chmod(0o700)
        self.write_record(record)
        write_private(self.token_file, os.fsencode(token.hex() + "\n"))

    def connect(self, job_folder: Path) -> None:
        """Let commands find the run by the job's folder too: both folders name each other."""
        other = RunDir(job_folder)
        with contextlib.suppress(OSError):  # the run itself does not need it
            other.control.mkdir(parents=True, exist_ok=True)
            other.control.chmod(0o700)
            write_private(other._supervised_in, os.fsencode(str(self.path.resolve())))
            write_private(self._saved_in, os.fsencode(str(job_folder.resolve())))

    @property
    def job_folder(self) -> Path:
        """Where the run's job keeps its log and its checkpoints."""
        return _named_in(self._saved_in) or self.path

    def find_socket(self) -> Path:
        """The control socket of this run's supervisor."""
        if (elsewhere := _named_in(self._supervised_in)) is not None and not self._record.exists():
            return RunDir(elsewhere).find_socket()
        try:
            # Not resolve(), which raises RuntimeError for a loop of links.
            socket = Path(os.path.realpath(self.control)) / "socket"
            if socket.is_socket():
                return socket
            return Path(os.fsdecode(read_regular(self.control / "address", limit=_LONGEST_PATH)))
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
                "Its run was not started by `swell run`, so it has no supervisor: look at it with `swell watch "
                f"{self.path}`, or start its script again to resume it."
            )
        problem = "There is no run in it" if self.path.exists() else "There is no such folder"
        return f"{problem}: give the --run-dir of a `swell run`."

    def _refuse_foreign(self, record: Path) -> None:
        """Refuse to run what others can have written."""
        for path in (self.control, record):
            status = path.lstat()
            if status.st_uid != os.geteuid():
                owner = f"belongs to user {_user_name(status.st_uid)}"
            elif status.st_mode & 0o022:
                owner = "can be written by other users"
            else:
                continue
            raise ConfigError(
                f"{path} {owner}; expected one that only you can write, because the command line in it would run as "
                f"you. Read it first; then give --trust to run it, or start its script again with `swell run`."
            )

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Remember how the run was started."""
        write_private(self._record, os.fsencode(json.dumps(record, indent=2) + "\n"))

    def read_record(self, *, trust: bool = False) -> dict[str, Any]:
        """How the run was started; without ``trust`` only if nobody but this user can have written that."""
        if (elsewhere := _named_in(self._supervised_in)) is not None and not self._record.exists():
            return RunDir(elsewhere).read_record(trust=trust)
        path = self._record
        try:
            if not trust:
                self._refuse_foreign(path)
            record = json.loads(read_regular(path, limit=_LONGEST_RECORD))
            if isinstance(record, dict):
                return record
            raise ValueError("not a JSON object")
        except ConfigError:
            raise
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


def _lock_soon(descriptor: int) -> None:
    """Lock a file that others may look at for a moment (``is_locked``); ``OSError`` if it stays locked."""
    for _ in range(4):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.05)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _named_in(path: Path) -> Path | None:
    """The folder that a file names; None if there is no such file."""
    try:
        return Path(os.fsdecode(read_regular(path, limit=_LONGEST_PATH)))
    except OSError:
        return None


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"number {number}"
