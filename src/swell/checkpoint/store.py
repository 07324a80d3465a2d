"""The checkpoints of a run: saving one, finding the newest complete one, deleting old ones."""

from __future__ import annotations

import platform
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swell.checkpoint.disk import disk_error, sync_folder
from swell.checkpoint.folder_names import FOLDER, numbered_folders
from swell.checkpoint.hidden_folders import revoke_drafts
from swell.checkpoint.reading import Checkpoint, inspect, read_parts, verify
from swell.checkpoint.snapshot import HostBuffers, Snapshot, take
from swell.checkpoint.writing import Draft, remove_leftovers, retire
from swell.core.regular_files import require_own_folder
from swell.errors import CheckpointError, ConfigError, DamagedCheckpointError
from swell.version import __version__


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


class Store:
    """The checkpoints below a run's folder. One process saves at a time; any number can read.

    A checkpoint is a folder ``checkpoints/000007-samples12800-step100`` with a file for each part and a
    ``manifest.json`` that names every file with its length and SHA-256. It is written into a hidden folder and renamed
    once it is on the disk, so a visible one is complete; checksums detect what a disk damages later. No file points to
    the newest one: it is the complete one with the highest number.

    The last ``keep`` are kept, and the newest of each name. ``on_warning`` is called once for each damaged checkpoint.
    ``on_point`` is called with the name of each point that a save reaches ("begun", "part model", …, "manifest",
    "synced", "renamed", "published"), so that tests can fail there. ``before_commit`` raises if this process may not
    save any more; it is asked when a save begins and before its rename. All are called on the thread that saves or
    reads. Without ``run_id`` it is read from the checkpoints; a new run gets a new one.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp(), run_id="demo")
    >>> saved = store.save({"model": {"weight": torch.ones(2)}, "epoch": {"number": 3}}, samples=128, step=1)
    >>> saved.path.name
    '000001-samples128-step1'
    >>> store.load(store.newest())
    {'model': {'weight': tensor([1., 1.])}, 'epoch': {'number': 3}}
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        run_id: str | None = None,
        keep: int = 3,
        on_warning: Callable[[str], None] = _warn,
        on_point: Callable[[str], None] = lambda point: None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        if keep < 1:
            raise ConfigError(f"keep is {keep}; expected 1 or more. Give the number of checkpoints to keep.")
        self.root = Path(folder) / FOLDER
        self.keep = keep
        self._on_warning = on_warning
        self._on_point = on_point
        self._before_commit = before_commit
        self.damage: list[str] = []  # of the checkpoints that were passed over, newest first
        self._warned: set[str] = set()
        self._root_made = False
        self._has_own_id = run_id is not None
        self.last = 0  # the highest number that the run is known to have used, also on other machines' disks
        self.run_id = run_id or self._run_id_on_disk() or uuid.uuid4().hex[:12]

    def save(
        self,
        state: Mapping[str, Any] | Snapshot,
        *,
        samples: int,
        step: int,
        name: str | None = None,
        world_size: int = 1,
    ) -> Checkpoint:
        """Save a state, given as parts by name, and delete old checkpoints; returns once it is on the disk.

        A part is made of the kinds in ``swell.checkpoint.encoding.HELD``. A checkpoint with a ``name`` is kept until
        another one gets the name. Raises ``CheckpointError`` if it cannot be written; older ones are then untouched.
        """
        snapshot = state if isinstance(state, Snapshot) else take(state)
        fields = self.manifest_fields(samples=samples, step=step, name=name, world_size=world_size)
        with self.draft() as draft:
            snapshot.settle()
            for part, tree in snapshot.parts.items():
                draft.add_state(part, tree)
            checkpoint = draft.publish(**fields)
        self.prune()
        return checkpoint

    def stager(self) -> HostBuffers:
        """Buffers for saving in the background."""
        return HostBuffers()

    def agreed(self, idle: bool) -> bool:
        """Whether every process that saves together is idle; here there is only this one."""
        return idle

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """A checkpoint to fill and publish; an error removes it, and one of the disk is explained."""
        draft = None
        try:
            self._make_root()
            remove_leftovers(self.root)
            draft = Draft(self.root, on_point=self._on_point, before_commit=self._before_commit, above=self.last)
            self._on_point("begun")
            yield draft
        except OSError as error:
            with suppress(OSError):
                self._before_commit()  # where another process took the draft away, this says so
            raise disk_error(error, doing="saving a checkpoint", folder=self.root) from error
        finally:
            if draft is not None:
                draft.abandon()

    def manifest_fields(self, *, samples: int, step: int, name: str | None, world_size: int) -> dict[str, Any]:
        """The fields of a manifest that do not depend on the files."""
        if samples < 0 or step < 0:
            raise ConfigError(
                f"samples is {samples} and step is {step}; expected 0 or more of each. Give the numbers committed."
            )
        return {
            "run_id": self.run_id,
            "samples": int(samples),
            "step": int(step),
            "name": name,
            "world_size": world_size,
            "versions": _versions(),
        }

    def newest(self) -> Checkpoint | None:
        """The last saved checkpoint that is complete, every byte checked; None if there is none.

        A damaged one is named in a warning and passed over. One of another run or of a newer format raises
        ``CheckpointError``, because going on without it could overwrite someone's work.
        """
        return next(self._complete(), None)

    def named(self, name: str) -> Checkpoint | None:
        """The last complete checkpoint saved under this name, every byte checked; None if there is none."""
        return next(self._complete(lambda checkpoint: checkpoint.name == name), None)

    def all(self) -> list[Checkpoint]:
        """Every checkpoint that passes a quick check (manifest and lengths), oldest first."""
        return list(self._inspected(numbered_folders(self.root), ignored=CheckpointError))

    def load(
        self,
        checkpoint: Checkpoint,
        *,
        map_location: Any = "cpu",
        parts: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """The saved state, or only the named parts of it; every byte is checked first."""
        self.check_run(checkpoint)
        verify(checkpoint)
        return read_parts(checkpoint, map_location=map_location, names=parts)

    def load_newest(self, *, map_location: Any = "cpu") -> tuple[Checkpoint, dict[str, Any]] | None:
        """The newest complete checkpoint and its state; None if there is none."""
        for checkpoint in self._inspected(reversed(numbered_folders(self.root))):
            try:
                return checkpoint, self.load(checkpoint, map_location=map_location)
            except DamagedCheckpointError as error:
                self._pass_over(error)
        return None

    def prune(self) -> list[Path]:
        """Delete all but the last ``keep`` and the named ones; returns the deleted. The newest always stays."""
        complete = self.all()
        newest_of_name = {checkpoint.name: checkpoint.path for checkpoint in complete if checkpoint.name}
        deleted = []
        for checkpoint in complete[: -self.keep]:
            path = checkpoint.path
            if checkpoint.manifest.run_id == self.run_id and path not in newest_of_name.values():
                try:
                    retire(checkpoint)
                    deleted.append(path)
                except OSError as error:
                    self._warn_once(f"old checkpoint {path} cannot be deleted: {error.strerror}. Delete it by hand.")
        return deleted

    def check_run(self, checkpoint: Checkpoint) -> None:
        """Raise ``CheckpointError`` for a checkpoint of another run."""
        if checkpoint.manifest.run_id != self.run_id:
            raise CheckpointError(
                f"checkpoint {checkpoint.path} is of run {checkpoint.manifest.run_id!r}; expected run {self.run_id!r}. "
                f"Choose another run folder."
            )

    def _complete(self, condition: Callable[[Checkpoint], bool] = lambda checkpoint: True) -> Iterator[Checkpoint]:
        for checkpoint in filter(condition, self._inspected(reversed(numbered_folders(self.root)))):
            self.check_run(checkpoint)
            try:
                verify(checkpoint)
            except DamagedCheckpointError as error:
                self._pass_over(error)
            else:
                yield checkpoint

    def _inspected(
        self, folders: Iterable[tuple[int, Path]], ignored: type[CheckpointError] = DamagedCheckpointError
    ) -> Iterator[Checkpoint]:
        for _, path in folders:
            try:
                yield inspect(path)
            except ignored as error:
                if path.exists():  # otherwise it was deleted in the meantime
                    self._pass_over(error)

    def take_over(self) -> None:
        """Continue the run as the folder's one writer: take away what other processes are saving, keep the run's id."""
        if not self.root.is_symlink():  # otherwise saving is refused
            revoke_drafts(self.root)
        if not self._has_own_id:
            self.run_id = self._run_id_on_disk() or self.run_id

    def forget(self) -> None:
        """Begin as in an empty folder: its checkpoints were moved away."""
        self.damage.clear()
        self.run_id = uuid.uuid4().hex[:12]

    def _make_root(self) -> None:
        require_own_folder(self.root)
        # Only the first save makes the run's folder: one that vanishes later may be on a disk that was unmounted.
        folders = [self.root] if self._root_made else [*reversed(self.root.parents), self.root]
        for folder in folders:
            if not folder.exists():
                folder.mkdir(exist_ok=True)
                sync_folder(folder.parent)
        self._root_made = True

    def _run_id_on_disk(self) -> str | None:
        for _, path in reversed(numbered_folders(self.root)):
            try:
                return inspect(path).manifest.run_id
            except CheckpointError:
                continue
        return None

    def _pass_over(self, error: CheckpointError) -> None:
        if str(error) not in self.damage:
            self.damage.append(str(error))
        self._warn_once(f"{error} It is passed over; delete it if you need the space.")

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._on_warning(message)


def _versions() -> dict[str, str]:
    return {
        "swell": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
