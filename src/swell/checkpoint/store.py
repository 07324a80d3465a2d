"""The checkpoints of a run: saved whole or not at all, the newest complete one found again, old ones let go."""

from __future__ import annotations

import json
import platform
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swell.checkpoint.disk import explained, sync_folder
from swell.checkpoint.reading import Checkpoint, check_model, inspect, numbered_folders, read_parts, verify
from swell.checkpoint.snapshot import HostBuffers, Snapshot, take
from swell.checkpoint.writing import Draft, remove_leftovers, retire
from swell.errors import CheckpointError, ConfigError, DamagedCheckpointError
from swell.version import __version__

FOLDER = "checkpoints"  # below the run's folder


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


class Store:
    """The checkpoints below a run's folder. One process saves at a time; any number may look.

    A checkpoint is a folder ``checkpoints/000007-samples12800-step100`` with a file for each part and a
    ``manifest.json`` that names every file with its length and SHA-256. It is written aside and renamed once it is on
    the disk, so what can be seen is complete; what a disk damages later is told by its checksum. There is no pointer to
    the newest one: it is the highest number that is whole.

    The last ``keep`` are kept, and of each name the newest one that has it. ``on_warning`` hears of damaged
    checkpoints, once each. ``on_point`` is called with the name of each point a save reaches ("begun", "part model", …,
    "manifest", "synced", "renamed", "published"), so that tests can fail there. Both are called on the thread that
    saves or looks. Without ``run_id`` the run's own is read from its checkpoints, or made when there is none.

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
    ) -> None:
        if keep < 1:
            raise ConfigError(f"keep is {keep}, expected the number of checkpoints to keep, at least 1.")
        self.root = Path(folder) / FOLDER
        self.keep = keep
        self._on_warning = on_warning
        self._on_point = on_point
        self._warned: set[str] = set()
        self._made = False
        self.run_id = run_id or self._run_id_on_disk() or uuid.uuid4().hex[:12]

    def save(
        self,
        state: Mapping[str, Any] | Snapshot,
        *,
        samples: int,
        step: int,
        name: str | None = None,
        world_size: int = 1,
        meta: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Save the named parts of a state as one whole, and let old checkpoints go; returns once it is on the disk.

        A part is made of what ``swell.checkpoint.encoding.HELD`` lists. The part "model" says which model it is.
        ``name`` keeps the checkpoint however old it gets, until another takes the name. ``meta`` goes into the manifest
        as JSON. Raises ``CheckpointError`` when it cannot be written; what was there before is then untouched.
        """
        snapshot = state if isinstance(state, Snapshot) else take(state)
        about = self.about(snapshot, samples, step, name, world_size, meta)
        with self.draft() as draft:
            snapshot.settle()
            for part, tree in snapshot.parts.items():
                draft.add_state(part, tree)
            found = draft.publish(**about)
        self.prune()
        return found

    def stager(self) -> HostBuffers:
        """Buffers for saving in the background."""
        return HostBuffers()

    def agreed(self, idle: bool) -> bool:
        """Whether all who save together are idle: there is one."""
        return idle

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """A checkpoint to fill and publish; abandoned when left by an error, which is explained."""
        draft = None
        try:
            self._make_root()
            remove_leftovers(self.root)
            draft = Draft(self.root, on_point=self._on_point)
            self._on_point("begun")
            yield draft
        except OSError as error:
            raise explained(error, doing="saving a checkpoint", folder=self.root) from error
        finally:
            if draft is not None:
                draft.abandon()

    def about(
        self,
        snapshot: Snapshot,
        samples: int,
        step: int,
        name: str | None,
        world_size: int,
        meta: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The fields of a manifest that do not depend on the files."""
        if samples < 0 or step < 0:
            raise ConfigError(f"samples is {samples} and step is {step}, expected how many were committed: 0 or more.")
        try:
            held = json.loads(json.dumps(dict(meta or {})))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"meta cannot be written as JSON: {error}. Give plain numbers, text and lists."
            ) from error
        return {
            "run_id": self.run_id,
            "samples": int(samples),
            "step": int(step),
            "name": name,
            "world_size": world_size,
            "model": dict(snapshot.model),
            "meta": held,
            "versions": _versions(),
        }

    def newest(self) -> Checkpoint | None:
        """The last checkpoint saved that is complete, every byte checked; None when there is none.

        Damaged ones are named in a warning and passed over. One of another run or of a newer format raises
        ``CheckpointError``: to go on without it would be to start again over somebody's work.
        """
        return next(self._complete(), None)

    def named(self, name: str) -> Checkpoint | None:
        """The last complete checkpoint saved under this name, every byte checked; None when there is none."""
        return next(self._complete(lambda found: found.name == name), None)

    def all(self) -> list[Checkpoint]:
        """Every checkpoint that is complete by a quick look (manifest and lengths), oldest first."""
        return list(self._looked_at(numbered_folders(self.root), passed_over=CheckpointError))

    def load(
        self,
        found: Checkpoint,
        *,
        map_location: Any = "cpu",
        parts: Collection[str] | None = None,
        model: Any = None,
        of_another_run: bool = False,
    ) -> dict[str, Any]:
        """The state that was saved, or those of its parts that are named; every byte is checked first.

        ``model`` is the state of the model at hand (``model.state_dict()``): names, shapes and types must agree before
        anything is read. A checkpoint of another run is refused unless ``of_another_run`` says that it is meant.
        """
        self.check_run(found, of_another_run=of_another_run)
        if model is not None:
            check_model(found, model)
        verify(found)
        return read_parts(found, map_location=map_location, parts=parts)

    def load_newest(self, *, map_location: Any = "cpu", model: Any = None) -> tuple[Checkpoint, dict[str, Any]] | None:
        """The newest complete checkpoint and its state, in one reading; None when there is none."""
        for found in self._looked_at(reversed(numbered_folders(self.root))):
            try:
                return found, self.load(found, map_location=map_location, model=model)
            except DamagedCheckpointError as error:
                self._pass_over(error)
        return None

    def prune(self) -> list[Path]:
        """Delete all but the last ``keep`` and the named ones; returns what was deleted. The newest always stays."""
        complete = self.all()
        protected = {found.name: found.path for found in complete if found.name}.values()  # the newest of each name
        deleted = []
        for found in complete[: -self.keep]:
            if found.manifest.run_id == self.run_id and found.path not in protected:
                try:
                    retire(found)
                    deleted.append(found.path)
                except OSError as error:
                    self._warn_once(
                        f"old checkpoint {found.path} cannot be deleted: {error.strerror}. Delete it by hand."
                    )
        return deleted

    def _complete(self, wanted: Callable[[Checkpoint], bool] = lambda found: True) -> Iterator[Checkpoint]:
        for found in filter(wanted, self._looked_at(reversed(numbered_folders(self.root)))):
            self.check_run(found, of_another_run=False)
            try:
                verify(found)
            except DamagedCheckpointError as error:
                self._pass_over(error)
            else:
                yield found

    def _looked_at(
        self, folders: Iterable[tuple[int, Path]], passed_over: type[CheckpointError] = DamagedCheckpointError
    ) -> Iterator[Checkpoint]:
        for _, path in folders:
            try:
                yield inspect(path)
            except passed_over as error:
                if path.exists():  # otherwise it was deleted while we looked
                    self._pass_over(error)

    def check_run(self, found: Checkpoint, *, of_another_run: bool) -> None:
        """Raise ``CheckpointError`` for a checkpoint of another run, unless that is meant."""
        if found.manifest.run_id != self.run_id and not of_another_run:
            raise CheckpointError(
                f"checkpoint {found.path} is of run {found.manifest.run_id!r}, this is run {self.run_id!r}. Choose "
                f"another run folder, or load it on purpose with of_another_run=True."
            )

    def _make_root(self) -> None:
        # Only the first save makes the run's folder: one that vanishes later may be a disk that was unmounted.
        folders = [self.root] if self._made else [*reversed(self.root.parents), self.root]
        for folder in folders:
            if not folder.exists():
                folder.mkdir(exist_ok=True)
                sync_folder(folder.parent)
        self._made = True

    def _run_id_on_disk(self) -> str | None:
        for _, path in reversed(numbered_folders(self.root)):
            try:
                return inspect(path).manifest.run_id
            except CheckpointError:
                continue
        return None

    def _pass_over(self, error: CheckpointError) -> None:
        self._warn_once(f"{error} It is passed over; delete it when you need the space.")

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
