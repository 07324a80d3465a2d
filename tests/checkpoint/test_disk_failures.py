from __future__ import annotations

import builtins
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from swell.checkpoint import Store, disk
from swell.errors import CheckpointError
from tests.checkpoint.states import same

STATE = {"model": {"weight": torch.randn(100_000)}, "loop": {"step": 1}}
POINTS = ["begun", "part model", "part loop", "manifest", "synced"]


def saved(store: Store, step: int) -> Any:
    return store.save(STATE, samples=step, step=step)


def assert_untouched_and_usable(store: Store, steps: list[int]) -> None:
    assert [checkpoint.step for checkpoint in store.all()] == steps
    assert not [name for name in os.listdir(store.root) if name.startswith(".")], "no half-written folder is left"
    loaded = store.load_newest()
    assert loaded is not None and same(loaded[1], STATE)
    saved(store, 99)


MESSAGES = {
    errno.ENOSPC: "no space.* MB free",
    errno.EDQUOT: "no space",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "read-only",
    errno.ENOENT: "vanished",
    errno.ESTALE: "vanished",
    errno.EIO: "Input/output error",
}


@pytest.mark.parametrize("number", MESSAGES, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("point", POINTS)
def test_a_disk_that_fails_costs_only_this_save(tmp_path: Path, number: int, point: str) -> None:
    broken = [False]

    def fail(reached: str) -> None:
        if broken[0] and reached == point:
            broken[0] = False
            raise OSError(number, os.strerror(number))

    store = Store(tmp_path, keep=9, on_point=fail)
    saved(store, 1)
    broken[0] = True
    with pytest.raises(CheckpointError, match=MESSAGES[number]) as failure:
        saved(store, 2)
    assert "Older checkpoints are untouched" in str(failure.value)
    assert str(store.root) in str(failure.value)
    assert_untouched_and_usable(store, [1])


def test_a_full_disk_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    saved(store, 1)

    def full(path: Any, mode: str, *args: Any) -> Any:
        return builtins.open("/dev/full" if Path(path).name == "model.pt" else path, mode.replace("x", "w"), *args)

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="no space"):
        patch.setattr(disk, "open", full, raising=False)
        saved(store, 2)
    assert_untouched_and_usable(store, [1])


@contextmanager
def powerless() -> Iterator[None]:
    """Without the rights of root, who can open every folder."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everyone can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_without_permission_nothing_is_saved_and_nothing_lost(public: Path) -> None:
    store = Store(public)
    saved(store, 1)
    store.root.chmod(0o555)
    with powerless(), pytest.raises(CheckpointError, match="permission"):
        saved(store, 2)
    store.root.chmod(0o755)
    assert_untouched_and_usable(store, [1])


def test_a_new_run_in_a_forbidden_place_says_so(public: Path) -> None:
    public.chmod(0o555)
    with powerless(), pytest.raises(CheckpointError, match="permission"):
        saved(Store(public / "run"), 1)
    public.chmod(0o755)


@pytest.mark.parametrize("locked", ["manifest.json", "model.pt", "."])
def test_a_checkpoint_that_may_not_be_read_is_not_passed_over(public: Path, locked: str) -> None:
    store = Store(public)
    saved(store, 1)
    path = saved(store, 2).path / locked
    path.chmod(0o000)
    with powerless(), pytest.raises(CheckpointError, match="permission"):
        store.newest()
    path.chmod(0o755)


def test_checkpoints_that_may_not_be_listed_are_not_taken_for_none(public: Path) -> None:
    store = Store(public)
    saved(store, 1)
    store.root.chmod(0o000)
    with powerless(), pytest.raises(CheckpointError, match="cannot be listed"):
        store.newest()
    store.root.chmod(0o755)


def test_a_run_folder_that_vanished_is_not_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    saved(store, 1)
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="vanished"):
        saved(store, 2)
    assert not (tmp_path / "run").exists()
    (tmp_path / "moved").rename(tmp_path / "run")
    assert_untouched_and_usable(store, [1])


def test_the_folder_of_checkpoints_may_be_deleted_to_start_afresh(tmp_path: Path) -> None:
    store = Store(tmp_path)
    saved(store, 1)
    shutil.rmtree(store.root)
    saved(store, 2)
    assert [checkpoint.step for checkpoint in store.all()] == [2]


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a folder")
    with pytest.raises(CheckpointError, match="checkpoints"):
        saved(Store(tmp_path, run_id="run"), 1)


def test_an_old_checkpoint_that_cannot_be_deleted_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    store = Store(tmp_path, keep=1, on_warning=messages.append)
    saved(store, 1)

    def refuse(checkpoint: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("swell.checkpoint.store.retire", refuse)
    saved(store, 2)
    assert [checkpoint.step for checkpoint in store.all()] == [1, 2]
    assert "cannot be deleted: Permission denied" in messages[0]
