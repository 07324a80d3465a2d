"""Starting over in a folder that was used: what is in it is moved out of the way, and nothing is deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from swell.checkpoint.disk import sync_folder

NAME = "set-aside-"


def set_aside(paths: Iterable[Path], *, folder: Path) -> Path | None:
    """Move what exists of ``paths``, all below ``folder``, into a new folder there; None if nothing exists.

    >>> folder = getfixture("tmp_path")
    >>> _ = (folder / "events.jsonl").write_text("old")
    >>> set_aside([folder / "events.jsonl", folder / "checkpoints"], folder=folder).name
    'set-aside-1'
    """
    existing = [path for path in paths if os.path.lexists(path)]
    if not existing:
        return None
    number = 1
    while True:
        target = folder / f"{NAME}{number}"
        try:
            target.mkdir()
            break
        except FileExistsError:
            number += 1
    for path in existing:
        os.rename(path, target / path.name)
    sync_folder(folder)
    return target
