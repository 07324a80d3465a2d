"""The lock on a run's folder: one writer at a time, and nobody writes who has lost it to a newer one."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from swell.checkpoint.heartbeat import BEAT_S, Heartbeat, is_beating
from swell.checkpoint.lock_file import LockFile
from swell.checkpoint.writer_record import FILE_NAME, WriterRecord, read_record, write_record
from swell.errors import RunFolderError
from swell.supervisor.network_disks import is_on_network_disk
from swell.supervisor.process_identity import is_running
from swell.supervisor.run_dir import RunDir
from swell.supervisor.supervision import Supervision, is_locked

LOCK_NAME = "writer.lock"
_WAIT_S = 2.0  # for a process that is about to end


class RunLock:
    """The right of this process to write checkpoints and events below a folder.

    Whoever acquires it replaces ``writer.json`` by a record with the next token; the record names the writer. Where
    that file is not this process's any more, the right is lost for good: ``holds`` is False, ``require`` raises. So a
    worker that was stopped while its run went on elsewhere can do no harm when it continues.

    A script of its own keeps ``writer.lock`` locked, so nobody can acquire the right while it lives; the kernel unlocks
    it when the process dies. Workers of one supervisor follow one another, each in a newer generation, while the
    supervisor keeps its own lock; those that outlive it follow one another too, until a newer run has written. Where a
    file system is shared with other machines the record's time is a sign of life too, because locks may not reach them.

    Without ``supervision`` a process is refused while a supervisor has the folder, also before its workers write;
    ``supervised`` says that this one is a worker of it all the same.

    ``on_taken`` is called when the right is this process's: take away then what others could still publish.

    >>> folder = getfixture("tmp_path")
    >>> lock = RunLock(folder)
    >>> lock.acquire()
    >>> lock.token, lock.holds()
    (1, True)
    >>> newer = RunLock(folder)  # in the same process it takes over
    >>> newer.acquire()
    >>> newer.token, newer.holds(), lock.holds()
    (2, True, False)
    >>> newer.release()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        supervision: Supervision | None = None,
        supervised: bool = False,
        on_warning: Callable[[str], None] = lambda message: None,
        wait_s: float = _WAIT_S,
        beat_s: float = BEAT_S,
        is_shared: Callable[[Path], bool] = is_on_network_disk,
    ) -> None:
        self.folder = Path(folder)
        self.token = 0  # 0 until it was acquired
        self.begins = True  # whether the writer before this one belonged to another start of the run
        self.on_taken: Callable[[], None] = lambda: None
        self._path = self.folder / FILE_NAME
        self._text_path = str(self._path)  # asked for at every event, and quicker as text
        self._supervision, self._on_warning = supervision, on_warning
        self._supervised = supervised or supervision is not None  # otherwise a supervisor of the folder is a stranger
        self._wait_s, self._beat_s, self._is_shared = wait_s, beat_s, is_shared
        self._generation = 0
        self._lock: LockFile | None = None
        self._key = self._lock_key = (0, 0)  # device and inode of the record and of the lock's file
        self._descriptor: int | None = None  # of the record
        self._heartbeat: Heartbeat | None = None
        self._pid = 0
        self._mutex = threading.RLock()

    def acquire(self, *, generation: int = 0) -> None:
        """Become the folder's writer; does nothing if this process is.

        Raises ``RunFolderError`` if another process is, and ``OSError`` if the folder cannot be written now: then
        ``require`` tries again.
        """
        with self._mutex:
            if self.holds():
                return
            self._generation = generation
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = LockFile(self.folder / LOCK_NAME)
            try:
                locked = lock.take(wait_s=self._wait_s)
            except BlockingIOError:
                raise self._refusal(read_record(self._path)) from None
            self._become_writer(lock, locked)
        self.on_taken()

    def holds(self) -> bool:
        """Whether this process is the folder's writer; one look at the disk."""
        if self._descriptor is None:
            return False
        try:
            status = os.stat(self._text_path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._key and self._pid == os.getpid()

    def may_write(self) -> bool:
        """Whether this process is the folder's writer; becomes it if the folder could not be written before."""
        if self.holds():
            return True
        if not self.token:
            with suppress(OSError):
                self.require()
        return self.holds()

    def may_write_elsewhere(self) -> bool:
        """Whether this process may write about the run to another folder.

        Also while it cannot become this folder's writer because the disk takes nothing, but not once another is.
        """
        return self.may_write() or not self.token

    def require(self) -> None:
        """Raise ``RunFolderError`` unless this process may write; ``OSError`` if that cannot be made sure now.

        Reads the record, so that a file server is asked again. Call it at the moment that counts: before a rename.
        """
        with self._mutex:
            if self.holds():
                record = read_record(self._path)
                if record is not None and record.token == self.token and record.is_own:
                    return
            if self.token and self._pid == os.getpid() and not self._was_forgotten():
                raise self._loss()
            self.acquire(generation=self._generation)

    def release(self) -> None:
        """Let others write; may be called twice."""
        with self._mutex:
            if self._heartbeat is not None:
                self._heartbeat.stop()
                self._heartbeat = None
            if self.holds():
                record = read_record(self._path)
                with suppress(OSError):
                    if record is not None:
                        os.close(write_record(self._path, replace(record, released=True)))
            self._forget()
            self.token = 0
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def __del__(self) -> None:
        if self._heartbeat is None:  # otherwise its thread keeps the file
            self._forget()

    def _become_writer(self, lock: LockFile, locked: bool) -> None:
        try:
            previous, shared = read_record(self._path), self._is_shared(self.folder)
            self._refuse_beside(previous, locked=locked, shared=shared)
            token = max(self.token, 0 if previous is None else previous.token) + 1
            supervision = self._supervision
            record = WriterRecord(
                token=token,
                supervisor="" if supervision is None else supervision.identity,
                supervisor_lock="" if supervision is None else supervision.lock,
                generation=self._generation,
            )
            descriptor = write_record(self._path, record)
        except BaseException:
            lock.close()
            raise
        self._forget()
        status = os.fstat(descriptor)
        self._descriptor, self._key, self._lock_key = descriptor, (status.st_dev, status.st_ino), lock.key
        self.token, self._pid = token, os.getpid()
        self.begins = previous is None or not record.supervisor or previous.supervisor != record.supervisor
        if not locked:
            self._on_warning(
                f"run folder {self.folder} is on a file system without locks; expected one with them. A second run in "
                f"it is recognised by its signs of life, every {self._beat_s:g} s: do not start two at the same moment."
            )
        if (shared or not locked) and self._heartbeat is None:
            self._heartbeat = Heartbeat(descriptor, every_s=self._beat_s)
        if supervision is None:
            self._lock = lock
        else:
            lock.close()  # the supervisor's lock says that its workers live

    def _refuse_beside(self, previous: WriterRecord | None, *, locked: bool, shared: bool) -> None:
        """Raise if the last writer is alive, if it is newer than this process, or if a supervisor has the folder."""
        locks = [str(RunDir(self.folder).lock_file), "" if previous is None else previous.supervisor_lock]
        if not self._supervised and any(is_locked(lock) for lock in locks if lock):  # its workers may only be starting
            alive = previous is not None and previous.supervisor and not previous.released
            raise self._refusal(previous if alive else None, otherwise="an active `swell run`")
        if previous is None or previous.is_own:
            return
        here, mine = previous.host == socket.gethostname(), self._supervision
        if mine is not None and previous.supervisor == mine.identity:
            if previous.generation >= self._generation:
                raise self._loss()
            return
        if mine is not None and not is_running(mine.local):
            raise self._loss()  # another run had the folder since, even if it has ended: its steps must stay
        if previous.released:
            return
        if mine is not None and here and previous.supervisor_lock == mine.lock:
            return  # this worker's supervisor has the lock of the one before, so that one is dead
        if not previous.supervisor and locked and (here or not shared):
            return  # it would hold the lock
        if here or not shared:
            alive = is_running(previous.supervisor or previous.process) if here else False
            alive = alive or (bool(previous.supervisor_lock) and is_locked(previous.supervisor_lock))
        else:
            alive = is_beating(self._path, every_s=self._beat_s)
        if alive:
            raise self._refusal(previous)

    def _was_forgotten(self) -> bool:
        """Whether only the record was deleted, and nobody else can have become the writer."""
        if self._path.exists():
            return False
        try:
            status = os.stat(self.folder / LOCK_NAME)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "the run's folder was deleted", str(self.folder)) from None
        return (status.st_dev, status.st_ino) == self._lock_key

    def _forget(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _refusal(self, holder: WriterRecord | None, *, otherwise: str = "another process") -> RunFolderError:
        who = otherwise if holder is None else str(holder)
        stop = f"Stop it (kill {holder.pid})" if holder is not None and not holder.supervisor else "Stop that run"
        return RunFolderError(
            f"run folder {self.folder} is being written by {who}; expected a folder that no active run writes. {stop}, "
            f"wait until it has ended, or give another folder."
        )

    def _loss(self) -> RunFolderError:
        holder = read_record(self._path)
        who = "another process" if holder is None else str(holder)
        return RunFolderError(
            f"run folder {self.folder} was taken over by {who}; expected this process (token {self.token}), which was "
            f"stopped or cut off meanwhile and may write no checkpoint and no event there any more. End it: the run "
            f"goes on without it."
        )
