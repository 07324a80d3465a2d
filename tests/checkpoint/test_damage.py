from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.checkpoint import Checkpoint, Store
from swell.checkpoint.disk import checksum_file
from swell.checkpoint.manifest import FILE_NAME, Manifest, PartEntry, from_json, to_json
from swell.errors import CheckpointError, DamagedCheckpointError
from tests.checkpoint.states import same

STATES = [{"model": {"weight": torch.full((5,), float(i))}, "loop": {"step": i, "note": "x" * i}} for i in range(2)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    store = Store(folder, run_id="run")
    for step, state in enumerate(STATES):
        store.save(state, samples=step, step=step)
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def opened(folder: Path) -> tuple[Store, list[str]]:
    messages: list[str] = []
    return Store(folder, run_id="run", on_warning=messages.append), messages


def last(folder: Path) -> Path:
    return sorted((folder / "checkpoints").iterdir())[-1]


def assert_nothing_wrong_is_loaded(folder: Path, harmless: bool = False) -> None:
    store, messages = opened(folder)
    loaded = store.load_newest()
    assert loaded is not None
    if same(loaded[1], STATES[1]):
        assert harmless and store.newest() == loaded[0]
        return
    assert same(loaded[1], STATES[0])
    assert len(messages) == 1 and str(last(folder)) in messages[0] and "damaged" in messages[0]
    assert store.newest() == loaded[0]
    assert len(messages) == 1, "only once"


files = st.sampled_from(["model.pt", "loop.pt", FILE_NAME])


@settings(max_examples=150)
@given(file=files, place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_noticed_and_the_checkpoint_before_is_taken(
    original: Path, tmp_path_factory: pytest.TempPathFactory, file: str, place: float, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(original, folder, dirs_exist_ok=True)
    path = last(folder) / file
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    harmless = file == FILE_NAME and _parsed_equal(path, last(original) / file)
    assert_nothing_wrong_is_loaded(folder, harmless)
    shutil.rmtree(folder)


def _parsed_equal(one: Path, other: Path) -> bool:
    """Whether the flip hit white space between the values."""
    try:
        return json.loads(one.read_bytes()) == json.loads(other.read_bytes())
    except ValueError:
        return False


def test_no_flipped_bit_of_a_manifest_changes_what_it_says(original: Path) -> None:
    text = (last(original) / FILE_NAME).read_bytes()
    true = from_json(text, where="")
    for place in range(len(text)):
        for bit in range(8):
            flipped = text[:place] + bytes([text[place] ^ 1 << bit]) + text[place + 1 :]
            try:
                assert from_json(flipped, where="") == true  # white space
            except DamagedCheckpointError:
                continue


@settings(max_examples=60)
@given(file=files, kept=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_is_noticed(
    original: Path, tmp_path_factory: pytest.TempPathFactory, file: str, kept: float
) -> None:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(original, folder, dirs_exist_ok=True)
    path = last(folder) / file
    os.truncate(path, int(kept * path.stat().st_size))
    assert_nothing_wrong_is_loaded(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("file", ["model.pt", "loop.pt", FILE_NAME])
def test_a_missing_file_is_noticed_and_named(run: Path, file: str) -> None:
    (last(run) / file).unlink()
    assert_nothing_wrong_is_loaded(run)
    store, messages = opened(run)
    assert [checkpoint.step for checkpoint in store.all()] == [0]
    assert f"{file} is missing" in messages[0]


def test_files_of_two_checkpoints_are_not_mixed(run: Path) -> None:
    first, second = sorted((run / "checkpoints").iterdir())
    shutil.copy(first / "model.pt", second / "model.pt")
    assert_nothing_wrong_is_loaded(run)


def test_an_empty_folder_and_a_stray_file_are_no_checkpoints(run: Path) -> None:
    (run / "checkpoints" / "000009-samples9-step9").mkdir()
    (run / "checkpoints" / "notes.txt").write_text("mine")
    store, messages = opened(run)
    newest = store.newest()
    assert newest is not None and newest.step == 1
    assert "manifest.json is missing" in messages[0]


def test_the_number_of_a_damaged_checkpoint_is_not_used_again(run: Path) -> None:
    (last(run) / FILE_NAME).unlink()
    store, _ = opened(run)
    assert store.save(STATES[1], samples=1, step=1).number == 3


def test_a_checkpoint_damaged_after_it_was_found_is_not_loaded(run: Path) -> None:
    store, _ = opened(run)
    checkpoint = store.newest()
    assert checkpoint is not None
    with open(checkpoint.path / "model.pt", "r+b") as file:
        file.seek(200)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(DamagedCheckpointError, match=r"model\.pt"):
        store.load(checkpoint)


class Malice:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def forged(folder: Path, content: Any) -> Checkpoint:
    """A checkpoint with valid checksums whose part was written by someone else."""
    path = folder / "checkpoints" / "000001-samples0-step0"
    path.mkdir(parents=True)
    content(path / "model.pt")
    part = PartEntry(name="model", kind="torch", files=(checksum_file(path, "model.pt"),))
    manifest = Manifest(run_id="run", samples=0, step=0, parts=(part,))
    (path / FILE_NAME).write_text(to_json(manifest))
    return Checkpoint(path=path, number=1, manifest=manifest)


@pytest.mark.parametrize(
    "write",
    [
        lambda path, trap: torch.save({"weight": Malice(trap)}, path),
        lambda path, trap: torch.save({"weight": Malice(trap)}, path, _use_new_zipfile_serialization=False),
        lambda path, trap: path.write_bytes(pickle.dumps(Malice(trap), protocol=2)),
        lambda path, trap: torch.save(torch.nn.Linear(2, 2), path),
    ],
    ids=["zip", "legacy", "pickle", "module"],
)
def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path: Path, write: Any) -> None:
    trap = tmp_path / "sprung"
    checkpoint = forged(tmp_path, lambda path: write(path, trap))
    with pytest.raises(CheckpointError, match=r"run code|damaged") as refusal:
        Store(tmp_path, run_id="run").load(checkpoint)
    assert "weights_only" not in str(refusal.value), "no advice to load it unsafely"
    assert not trap.exists()


@pytest.mark.parametrize("outside", ["../../../secret.pt", "/etc/passwd", "a/../../secret.pt", ""])
def test_a_manifest_that_points_outside_its_folder_is_refused(tmp_path: Path, outside: str) -> None:
    checkpoint = forged(tmp_path, lambda path: torch.save({}, path))
    entry = replace(checkpoint.manifest.files[0], path=outside)
    part = PartEntry(name="model", kind="torch", files=(entry,))
    (checkpoint.path / FILE_NAME).write_text(to_json(replace(checkpoint.manifest, parts=(part,))))
    store, messages = opened(tmp_path)
    assert store.newest() is None
    assert "outside the checkpoint" in messages[0]
