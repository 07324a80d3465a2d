"""Checkpoints of arrays are whole or not there, by any crash, and damage is noticed; without Keras."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from swell.checkpoint import hidden_folders, inspect, verify
from swell.errors import CheckpointError
from swell.integrations.keras.array_store import FORMAT, ArrayStore


def saved(folder, *steps):
    store = ArrayStore(folder)
    for step in steps:
        store.save({"weight": np.full(3, step)}, {"epoch": step}, step=step, samples=8 * step)
    return store


def folders(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_restored_and_two_are_kept(tmp_path):
    saved(tmp_path, 1, 2, 10)
    newest = ArrayStore(tmp_path).newest()
    assert newest is not None
    assert (newest.values["epoch"], newest.arrays["weight"].tolist()) == (10, [10, 10, 10])
    assert folders(tmp_path) == ["keras-000000000002", "keras-000000000010"]


def test_a_step_that_is_saved_twice_is_replaced(tmp_path):
    store = saved(tmp_path, 1)
    store.save({"weight": np.zeros(1)}, {"epoch": 7}, step=1, samples=8)
    newest = store.newest()
    assert newest is not None and newest.values["epoch"] == 7
    assert folders(tmp_path) == ["keras-000000000001"]


def test_without_checkpoints_nothing_is_restored(tmp_path):
    assert ArrayStore(tmp_path / "absent").newest() is None


def test_a_manifest_says_what_every_swell_checkpoint_says(tmp_path):
    saved(tmp_path, 3)
    checkpoint = inspect(tmp_path / "keras-000000000003")
    verify(checkpoint)
    assert (checkpoint.step, checkpoint.samples) == (3, 24)
    assert [entry.path for entry in checkpoint.manifest.files] == ["arrays.npz", "state.json"]


def test_a_resumed_run_keeps_its_identity(tmp_path):
    saved(tmp_path, 1)
    resumed = ArrayStore(tmp_path)
    first = resumed.newest()
    resumed.save({}, {}, step=2, samples=16)
    second = ArrayStore(tmp_path).newest()
    assert first is not None and second is not None
    assert first.run_id == second.run_id is not None


@pytest.mark.parametrize("name", ["arrays.npz", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path, name, damage):
    store = saved(tmp_path, 1, 2)
    file = tmp_path / "keras-000000000002" / name
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content if damage == "changed" else content[: len(content) // 2])
    with pytest.warns(UserWarning, match="keras-000000000002 is damaged"):
        newest = store.newest()
    assert newest is not None and newest.values["epoch"] == 1


def test_a_newer_format_is_refused_and_not_passed_over(tmp_path):
    store = saved(tmp_path, 1)
    file = tmp_path / "keras-000000000001" / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": FORMAT + 1}))
    with pytest.raises(CheckpointError, match=f"format {FORMAT + 1}"):
        store.newest()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_checkpoint_that_may_not_be_read_is_refused_and_not_passed_over(tmp_path):
    store = saved(tmp_path, 1)
    (tmp_path / "keras-000000000001" / "arrays.npz").chmod(0)
    with pytest.raises(CheckpointError, match="permission"):
        store.newest()


def test_a_crash_in_a_save_leaves_the_older_ones_and_what_it_wrote_is_removed(tmp_path, monkeypatch):
    store = saved(tmp_path, 1)

    class Killed(BaseException):
        pass

    def die(folder):
        raise Killed

    monkeypatch.setattr("swell.integrations.keras.array_store.sync_folder", die)
    monkeypatch.setattr(hidden_folders.HiddenFolder, "remove", hidden_folders.HiddenFolder.release)  # nobody tidies up
    with pytest.raises(Killed):
        store.save({"weight": np.ones(3)}, {"epoch": 2}, step=2, samples=16)
    monkeypatch.undo()
    assert len(folders(tmp_path)) == 2
    newest = store.newest()
    assert newest is not None and newest.values["epoch"] == 1
    saved(tmp_path, 3)
    assert folders(tmp_path) == ["keras-000000000001", "keras-000000000003"]


def test_a_disk_that_cannot_be_written_is_explained_and_the_older_ones_stay(tmp_path, monkeypatch):
    store = saved(tmp_path, 1)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swell.integrations.keras.array_store.write_file", full)
    with pytest.raises(CheckpointError, match="space"):
        store.save({}, {}, step=2, samples=16)
    assert folders(tmp_path) == ["keras-000000000001"]
