"""Checkpoints from anywhere: no pipe is waited for, no link is written through, no number breaks the reader."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swell.checkpoint import Store
from swell.checkpoint.manifest import FILE_NAME, from_json, sealed
from swell.core.regular_files import IrregularFileError, open_regular, read_regular
from swell.errors import CheckpointError, DamagedCheckpointError

STATE = {"model": {"weight": torch.ones(3)}}


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A reader that waits for a pipe is ended."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    store = Store(folder, run_id="run")
    for step in (1, 2):
        store.save(STATE, samples=step, step=step)
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path


def last(folder: Path) -> Path:
    return sorted((folder / "checkpoints").iterdir())[-1]


def replace(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "terminal":
        path.symlink_to("/dev/tty")
    elif kind == "folder":
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "zero", "terminal", "folder"])
@pytest.mark.parametrize("file", ["model.pt", FILE_NAME])
def test_what_is_no_regular_file_makes_a_checkpoint_a_damaged_one(run: Path, file: str, kind: str) -> None:
    replace(last(run) / file, kind)
    messages: list[str] = []
    store = Store(run, run_id="run", on_warning=messages.append)
    loaded = store.load_newest()
    assert loaded is not None and loaded[0].step == 1
    assert len(messages) == 1 and str(last(run)) in messages[0]


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_a_pipe_or_device_whose_manifest_says_it_is_empty_is_not_read(run: Path, kind: str) -> None:
    manifest = json.loads((last(run) / FILE_NAME).read_text())
    del manifest["sha256"]
    manifest["parts"][0]["files"][0]["bytes"] = 0
    (last(run) / FILE_NAME).write_text(sealed(manifest))
    replace(last(run) / "model.pt", kind)
    loaded = Store(run, run_id="run", on_warning=lambda message: None).load_newest()
    assert loaded is not None and loaded[0].step == 1


def changed(run: Path, **fields: Any) -> str:
    manifest = json.loads((last(run) / FILE_NAME).read_text())
    del manifest["sha256"]
    return sealed({**manifest, **fields})


@pytest.mark.parametrize(
    "value",
    [float("inf"), float("-inf"), float("nan"), -1, 1.5, True, "1", None, [], 10**400],
    ids=lambda value: repr(value)[:9],
)
def test_a_number_that_swell_does_not_write_makes_a_manifest_a_damaged_one(original: Path, value: Any) -> None:
    for field in ("samples", "step", "world_size", "format"):
        with pytest.raises(DamagedCheckpointError, match="cannot be read"):
            from_json(changed(original, **{field: value}), where="here")
    files = [{"path": "model.pt", "bytes": value, "sha256": "0"}]
    with pytest.raises(DamagedCheckpointError, match="cannot be read"):
        from_json(changed(original, parts=[{"name": "model", "kind": "torch", "files": files}]), where="here")


@pytest.mark.parametrize("path", ["a\0b", "\0", "../x", "/etc/passwd", "", "."])
def test_a_path_that_swell_does_not_write_makes_a_checkpoint_a_damaged_one(run: Path, path: str) -> None:
    files = [{"path": path, "bytes": 0, "sha256": "0"}]
    (last(run) / FILE_NAME).write_text(changed(run, parts=[{"name": "model", "kind": "torch", "files": files}]))
    messages: list[str] = []
    newest = Store(run, run_id="run", on_warning=messages.append).newest()
    assert newest is not None and newest.step == 1 and len(messages) == 1


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["format", "run_id", "samples", "step", "parts", "name", "world_size", "versions", "created", "more"]


@given(fields=st.dictionaries(st.sampled_from(NAMES), plain))
def test_no_manifest_breaks_the_reader(fields: dict[str, Any]) -> None:
    try:
        manifest = from_json(sealed(fields), where="here")
    except CheckpointError:
        return
    assert manifest.samples >= 0 and manifest.step >= 0


def test_links_in_a_prepared_folder_are_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="it is a symbolic link; expected a folder"):
        Store(run).save(STATE, samples=1, step=1)
    assert list(elsewhere.iterdir()) == []


def test_a_file_is_emptied_only_once_it_is_known_to_be_regular(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(IrregularFileError, match="a symbolic link"):
        open_regular(tmp_path / "link", os.O_WRONLY | os.O_TRUNC)
    assert target.read_text() == "precious"
    os.close(open_regular(tmp_path / "link", os.O_WRONLY | os.O_TRUNC, follow=True))
    assert target.read_text() == ""
    target.write_bytes(b"12345")
    assert read_regular(target, limit=5) == b"12345"
    with pytest.raises(IrregularFileError, match="more than 4 bytes"):
        read_regular(target, limit=4)
