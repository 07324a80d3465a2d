"""The states of a run in an object store: brought there after every save, fetched from there where a disk is new.

Any store that ``fsspec`` has a file system for. An object is there as a whole or not at all, and the manifest of a
state is written last and deleted first: a state counts once its manifest is there and all files have its lengths.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from swell.checkpoint.folder_names import FOLDER, number_of
from swell.checkpoint.manifest import FILE_NAME, Manifest, from_json
from swell.errors import CheckpointError, ConfigError, SwellError
from swell.supervisor.saved_state import Readable, SavedState, StateFolder

_RECORD = "run.json"


def is_url(text: str) -> bool:
    """Whether a text names a place in an object store, and not a folder.

    >>> is_url("s3://bucket/runs"), is_url("runs/digits"), is_url("memory://runs")
    (True, False, True)
    """
    return "://" in text


class ObjectStore:
    """The states below a URL, and the record of how their run was started."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                f"--mirror is {url!r}, which needs fsspec; expected it installed. Install swell[objects], and the file "
                f"system of your store (s3fs, gcsfs, adlfs)."
            ) from error
        if not is_url(url):
            raise ConfigError(f"--mirror is {url!r}; expected a URL, as in s3://bucket/runs/digits.")
        try:
            self._files, self._root = fsspec.url_to_fs(url.rstrip("/"))
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"--mirror is {url!r}, which fsspec cannot open ({error}); expected the URL of an object store. "
                f"Install its file system (s3fs, gcsfs, adlfs), or correct the URL."
            ) from error

    def begin(self, folder: StateFolder, record: Mapping[str, Any], *, fresh: bool) -> None:
        """A run starts: take the newest state if this disk lacks it, and leave the record of the run.

        ``ConfigError`` where the store has the states of another run.
        """
        with self._explained("looking for states"):
            there, here = self.states(), [] if fresh else folder.states()
            run_ids = {state.run_id for state in here[-1:]} or {state.run_id for state in there[-1:]}
            if there and (fresh or {state.run_id for state in there} != run_ids):
                raise ConfigError(
                    f"--mirror {self.url} has states of another run; expected none, or those of this one. Give another "
                    f"URL, or delete what is there."
                )
            newest = there[-1] if there else None
            if newest is not None and newest.number > (here[-1].number if here else 0):
                self.fetch(newest, folder)
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(f"{self._root}/{_RECORD}", json.dumps(record).encode())

    def states(self) -> list[SavedState]:
        """All that are complete, oldest first."""
        found = []
        for name in self._names(f"{self._root}/{FOLDER}"):
            number = number_of(name)
            if number is not None and (read := self._manifest(name)) is not None:
                text, manifest = read
                facts = {"run_id": manifest.run_id, "named": manifest.name is not None}
                found.append(SavedState(name=name, number=number, digest=hashlib.sha256(text).hexdigest(), **facts))
        return sorted(found, key=lambda state: state.number)

    def update(self, folder: StateFolder) -> None:
        """Bring the store up to what the folder has; older states without a name that it has deleted go here too."""
        with self._explained("bringing states"):
            here, there = folder.states(), self.states()
            digests = {state.digest for state in there}
            for state in here:
                if state.digest not in digests:
                    self._put(state, folder)
            names = {state.name for state in here}
            for state in there:
                if here and state.number < here[-1].number and state.name not in names and not state.named:
                    self._remove(state.name)

    def fetch(self, state: SavedState, folder: StateFolder) -> None:
        """Take a state onto this disk, every byte compared with its checksums."""

        @contextmanager
        def open_file(path: str, length: int) -> Iterator[Readable]:
            with self._files.open(f"{self._root}/{FOLDER}/{state.name}/{path}", "rb") as file:
                yield file

        manifest = self._files.cat_file(f"{self._root}/{FOLDER}/{state.name}/{FILE_NAME}")
        folder.receive(state, manifest, open_file)

    def record(self) -> dict[str, Any]:
        """How the run was started; ``ConfigError`` if the store has no run."""
        try:
            with self._explained("reading the record"):
                record = json.loads(self._files.cat_file(f"{self._root}/{_RECORD}"))
        except (CheckpointError, ValueError) as error:
            raise ConfigError(
                f"{self.url} has no record of a run ({error}); expected the --mirror of a `swell run`. Check the URL."
            ) from error
        return record

    def _put(self, state: SavedState, folder: StateFolder) -> None:
        place, manifest = f"{self._root}/{FOLDER}/{state.name}", folder.manifest(state)
        self._remove(state.name)  # what an upload that was cut off has left
        entries = from_json(manifest, where=state.name).files
        for entry, (path, _) in zip(entries, folder.files(state), strict=True):
            target = f"{place}/{entry.path}"
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(path), target)
        self._files.pipe_file(f"{place}/{FILE_NAME}", manifest)

    def _remove(self, name: str) -> None:
        place = f"{self._root}/{FOLDER}/{name}"
        if self._files.exists(f"{place}/{FILE_NAME}"):
            self._files.rm_file(f"{place}/{FILE_NAME}")  # from now on it does not count
        if self._files.exists(place):
            self._files.rm(place, recursive=True)

    def _manifest(self, name: str) -> tuple[bytes, Manifest] | None:
        """The manifest of a state that is complete; None for any other."""
        place = f"{self._root}/{FOLDER}/{name}"
        try:
            text = self._files.cat_file(f"{place}/{FILE_NAME}")
            manifest = from_json(text, where=place)
            if all(self._files.size(f"{place}/{entry.path}") == entry.bytes for entry in manifest.files):
                return text, manifest
        except (FileNotFoundError, CheckpointError):
            pass
        return None

    def _names(self, place: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            return [str(path).rstrip("/").rpartition("/")[2] for path in self._files.ls(place, detail=False)]
        except FileNotFoundError:
            return []

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Turns whatever a store's file system raises into what it means."""
        try:
            yield
        except (SwellError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise CheckpointError(
                f"{doing} in {self.url} failed ({type(error).__name__}: {error}); expected a store that answers. Check "
                f"the URL, the network and the credentials. The states on this machine's disk are not affected."
            ) from error
