"""A checkpoint while it is written: a hidden folder that one rename makes visible once it is complete on the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from swell.checkpoint.disk import sync_folder, write_file
from swell.checkpoint.folder_names import folder_name, numbered_folders
from swell.checkpoint.hidden_folders import HiddenFolder, hide_and_remove, remove_leftovers
from swell.checkpoint.manifest import FILE_NAME, FileEntry, Manifest, PartEntry, to_json
from swell.checkpoint.reading import Checkpoint

__all__ = ["Draft", "remove_leftovers", "retire"]

_LONGEST_NAME = 100  # of a file, before its ending


class Draft:
    """A new hidden folder below ``root``, locked so that nobody removes it, until ``publish`` or ``abandon``.

    The order of writing is: every part and its sync, the manifest and its sync, the folder's sync, the rename, the sync
    of ``root``. A crash at any point leaves either a hidden folder that is ignored or a complete checkpoint.

    ``before_commit`` raises if this process may not write any more. It is called once the folder is made and before the
    rename. A newer writer takes the folder away after it got the right, so the rename cannot succeed after that. The
    checkpoint's number is ``above`` and those below ``root``.
    """

    def __init__(
        self, root: Path, *, on_point: Callable[[str], None], before_commit: Callable[[], None], above: int = 0
    ) -> None:
        self._hidden, self._above = HiddenFolder(root), above
        self.folder = self._hidden.path
        self._before_commit = before_commit
        try:
            before_commit()
        except BaseException:
            self._hidden.remove()
            raise
        self._root = root
        self._on_point = on_point
        self._parts: list[PartEntry] = []
        self._stems: set[str] = set()  # of the files so far, in one case

    def add_state(self, name: str, tree: Any) -> None:
        """Write one part's encoded state."""
        file = self._file_name(name)
        entry = write_file(self.folder, file, lambda writer: torch.save(tree, writer))
        self._parts.append(PartEntry(name=name, kind="torch", files=(entry,)))
        self._on_point(f"part {name}")

    def add_files(self, name: str, *, kind: str, files: Iterable[FileEntry]) -> None:
        """Add a part whose files others have written into the folder, checksummed and synced."""
        self._parts.append(PartEntry(name=name, kind=kind, files=tuple(files)))
        self._on_point(f"part {name}")

    def publish(self, **fields: Any) -> Checkpoint:
        """Write the manifest of the parts, with ``fields`` as its other fields, and make the checkpoint visible."""
        manifest = Manifest(parts=tuple(self._parts), **fields)
        write_file(self.folder, FILE_NAME, lambda writer: writer.write(to_json(manifest).encode()))
        self._on_point("manifest")
        for folder, _, _ in os.walk(self.folder, topdown=False):
            sync_folder(Path(folder))
        self._on_point("synced")
        number, path = self._rename(manifest)
        self._on_point("renamed")
        sync_folder(self._root)
        self._hidden.release()
        self._on_point("published")
        return Checkpoint(path=path, number=number, manifest=manifest)

    def abandon(self) -> None:
        """Remove what was written; nothing to do once it is published."""
        self._hidden.remove()

    def _rename(self, manifest: Manifest) -> tuple[int, Path]:
        number = max((self._above, *(number for number, _ in numbered_folders(self._root)))) + 1
        while True:
            path = self._root / folder_name(number=number, samples=manifest.samples, step=manifest.step)
            self._before_commit()
            try:
                os.rename(self.folder, path)
                return number, path
            except OSError as error:
                if error.errno == errno.ENOENT:
                    self._before_commit()  # says who took the folder away
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                number += 1  # another process has taken the number since

    def _file_name(self, part: str) -> str:
        """The part's name, changed where a file cannot have it; unique on disks that do not distinguish A from a."""
        stem = quote(part, safe=" ")[:_LONGEST_NAME].lstrip(".") or "part"
        name, count = stem, 1
        while name.casefold() in self._stems:
            count += 1
            name = f"{stem}-{count}"
        self._stems.add(name.casefold())
        return f"{name}.pt"


def retire(found: Checkpoint) -> None:
    """Delete a checkpoint; hidden by one rename first, so that a crash in between leaves no torn one to be seen."""
    hide_and_remove(found.path)
