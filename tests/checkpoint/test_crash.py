from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swell.checkpoint import Store
from swell.checkpoint.disk import ChecksumWriter
from tests.checkpoint.crashing import CALLS, call_before_each, state_at, step_of

ROOT = Path(__file__).parents[2]


def run_script(*args: object) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.checkpoint.crashing", *map(str, args)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.mark.distributed
def test_killed_before_any_call_of_the_file_system_a_run_comes_back_whole(tmp_path: Path) -> None:
    *killed, last = run_script("everywhere", tmp_path)
    steps = [outcome["step"] for outcome in killed]
    assert len(steps) > 30, "every write, sync, rename and removal of a save was a point to die at"
    assert steps == sorted(steps) and set(steps) == {2, 3}, "the old state up to the rename, the new one from then on"
    assert not any(outcome["leftovers"] for outcome in killed), "the next save removed them"
    assert (last["exit_code"], last["step"]) == (0, 3)


@pytest.mark.distributed
def test_killed_at_random_a_run_comes_back_with_all_it_had_reported(tmp_path: Path) -> None:
    outcomes = run_script("random", tmp_path, 12, 0)
    assert len(outcomes) == 12
    for outcome in outcomes:
        assert outcome["on_disk"] >= outcome["reported"]
    on_disk = [outcome["on_disk"] for outcome in outcomes]
    assert on_disk == sorted(set(on_disk)), "each process went on from where the previous one was killed"


class PowerCut:
    """What a disk holds for certain: a file's content as of its last sync, a folder's names as of its last sync."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.sync(root)

    def sync(self, path: Path) -> None:
        inode = path.stat().st_ino
        if path.is_dir():
            self.names[inode] = {child.name: child.stat().st_ino for child in path.iterdir()}
        else:
            self.contents[inode] = path.read_bytes()

    def restore(self, to: Path) -> Path:
        """A tree of the names and contents that were synced: the least that remains."""
        self._restore(self.root.stat().st_ino, to)
        return to

    def _restore(self, inode: int, to: Path) -> None:
        if inode in self.contents:
            to.write_bytes(self.contents[inode])
            return
        to.mkdir()
        for name, child in self.names.get(inode, {}).items():
            self._restore(child, to / name)

    def restore_names(self, to: Path) -> Path:
        """The tree with all names, but only the contents that were synced: names can reach the disk early."""
        for folder, _, files in os.walk(self.root):
            copy = to / Path(folder).relative_to(self.root)
            copy.mkdir(parents=True)
            for name in files:
                (copy / name).write_bytes(self.contents.get((Path(folder) / name).stat().st_ino, b""))
        return to


@pytest.fixture
def unpatched() -> Iterator[None]:
    saved = {name: getattr(os, name) for name in CALLS}
    write = ChecksumWriter.write
    yield
    for name, function in saved.items():
        setattr(os, name, function)
    ChecksumWriter.write = write


@pytest.mark.usefixtures("unpatched")
def test_a_power_cut_at_any_instant_leaves_a_whole_checkpoint_and_none_that_lies(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    cut = PowerCut(tmp_path / "disk")
    store = Store(cut.root / "runs" / "one", run_id="run", keep=99)  # nothing is deleted, so no inode is used twice
    saved, outcomes = 0, []

    def look(name: str, watching: list[bool] = [True]) -> None:  # noqa: B006
        if not watching[0] or name == "close":
            return
        watching[0] = False  # these calls are not part of the save
        for kind, restore in (("least", cut.restore), ("names", cut.restore_names)):
            copy = restore(tmp_path / f"{kind}{len(outcomes)}")
            messages: list[str] = []
            newest = Store(copy / "runs" / "one", run_id="run", on_warning=messages.append).load_newest()
            outcomes.append((kind, saved, 0 if newest is None else step_of(newest[1]), messages))
        watching[0] = True

    really_sync = os.fsync

    def sync(descriptor: int) -> None:
        really_sync(descriptor)
        cut.sync(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    os.fsync = sync
    call_before_each(look)
    for step in (1, 2, 3):
        store.save(state_at(step), samples=step, step=step)
        saved = step
        look("returned")
    assert len(outcomes) > 60
    for kind, reported, on_disk, messages in outcomes:
        assert reported <= on_disk <= reported + 1, f"{kind}: a checkpoint that save had returned is gone"
        assert not messages, "not even a torn one is visible"
    assert outcomes[-1][2] == 3
