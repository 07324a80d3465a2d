"""States that come from elsewhere, over a connection or from an object store: whole and verified, or not at all."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.checkpoint.object_store import ObjectStore
from swell.checkpoint.state_folder import DiskStates
from swell.checkpoint.store import Store
from swell.errors import CheckpointError, ConfigError, SwellError, WorldError
from swell.supervisor.saved_state import Readable
from swell.supervisor.state_link import receive_state, send_state


def save(folder: Path, *steps: int, keep: int = 10, **fields: Any) -> Store:
    store = Store(folder, run_id="0123456789ab", keep=keep)
    for step in steps:
        weights = {"weight": torch.full((1000,), float(step)), "empty": torch.zeros(0)}
        store.save({"model": weights, "step": {"number": step}}, samples=8 * step, step=step, **fields)
    return store


def loaded_step(folder: Path) -> int:
    newest = Store(folder).load_newest()
    assert newest is not None
    return newest[1]["step"]["number"]


def between(send: Callable[[socket.socket], object], take: Callable[[socket.socket], object]) -> list[Any]:
    """What both ends of a connection end with, a value or an error."""
    results: list[Any] = [None, None]
    ends = socket.socketpair()

    def act(place: int, function: Callable[[socket.socket], object]) -> None:
        with ends[place]:
            try:
                results[place] = function(ends[place])
            except SwellError as error:
                results[place] = error

    threads = [threading.Thread(target=act, args=pair) for pair in enumerate((send, take))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_a_state_travels_whole_and_can_be_resumed_from(tmp_path: Path) -> None:
    save(tmp_path / "a", 3, 7)
    source, target = DiskStates(tmp_path / "a"), DiskStates(tmp_path / "b")
    state = source.states()[-1]
    sent, received = between(lambda end: send_state(end, source, state), lambda end: receive_state(end, target))
    assert sent is None and received == state
    assert target.states() == [state] and loaded_step(tmp_path / "b") == 7


@settings(max_examples=20, deadline=None)
@given(at=st.floats(0, 1))
def test_a_connection_that_is_cut_anywhere_leaves_nothing_to_be_seen(
    tmp_path_factory: pytest.TempPathFactory, at: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    save(folder / "a", 3)
    source, target = DiskStates(folder / "a"), DiskStates(folder / "b")
    state = source.states()[0]
    near, far = socket.socketpair()
    with near, far:
        stream: list[bytes] = []
        reader = threading.Thread(target=lambda: stream.extend(iter(lambda: near.recv(1 << 20), b"")))
        reader.start()
        far.settimeout(5)
        far.shutdown(socket.SHUT_RD)  # nobody answers
        with pytest.raises(WorldError):
            send_state(far, source, state)
        far.shutdown(socket.SHUT_WR)
        reader.join(30)
    whole = b"".join(stream)
    cut = whole[: int(at * (len(whole) - 1))]
    _, received = between(lambda end: end.sendall(cut), lambda end: receive_state(end, target))
    assert isinstance(received, WorldError)
    assert target.states() == [] and not [path for path in target.root.glob("*")]


@settings(max_examples=20, deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_bit_that_flips_on_the_way_is_found(tmp_path_factory: pytest.TempPathFactory, at: float, bit: int) -> None:
    folder = tmp_path_factory.mktemp("flip")
    save(folder / "a", 3)
    source, target = DiskStates(folder / "a"), DiskStates(folder / "b")
    state = source.states()[0]
    files = source.files(state)
    place = int(at * sum(length for _, length in files))

    @contextmanager
    def damaged(path: str, length: int) -> Iterator[Readable]:
        before = sum(size for file, size in files[: [str(f).endswith(path) for f, _ in files].index(True)])
        content = bytearray((source.root / state.name / path).read_bytes())
        if before <= place < before + length:
            content[place - before] ^= 1 << bit
        yield io.BytesIO(bytes(content))

    with pytest.raises(CheckpointError, match="damaged"):
        target.receive(state, source.manifest(state), damaged)
    assert target.states() == []


def test_another_manifest_than_the_announced_one_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "a", 3, 7)
    source, target = DiskStates(tmp_path / "a"), DiskStates(tmp_path / "b")
    first, second = source.states()
    with pytest.raises(CheckpointError, match="announced"):
        target.receive(second, source.manifest(first), lambda path, length: nullcontext(io.BytesIO()))
    assert target.states() == []


def test_states_are_removed_and_set_aside_by_name_only(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    folder = DiskStates(tmp_path)
    first, second, third = folder.states()
    (tmp_path / "keep").mkdir()
    folder.remove([first.name, "../keep", "unknown"])
    assert folder.states() == [second, third] and (tmp_path / "keep").is_dir()
    aside = folder.set_aside([third.name])
    assert aside is not None and (aside / third.name).is_dir() and folder.states() == [second]


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}/run" if request.param == "memory" else f"file://{tmp_path}/bucket/run"


def test_an_object_store_has_what_the_disk_has_and_a_new_disk_gets_it_back(tmp_path: Path, url: str) -> None:
    save(tmp_path / "a", 1, name="best")
    folder, objects = DiskStates(tmp_path / "a"), ObjectStore(url)
    objects.begin(folder, {"options": {}}, fresh=False)
    objects.update(folder)
    save(tmp_path / "a", 2, 3, 4, keep=2)  # which deletes the second
    objects.update(folder)
    assert objects.states() == folder.states()
    other = DiskStates(tmp_path / "b")
    ObjectStore(url).begin(other, {"options": {"script": "train.py"}}, fresh=False)
    assert loaded_step(tmp_path / "b") == 4
    assert ObjectStore(url).record() == {"options": {"script": "train.py"}}
    objects.update(other)
    assert objects.states() == [each for each in folder.states() if each.named or each in other.states()]


def test_an_upload_that_was_cut_off_does_not_count_and_is_done_again(tmp_path: Path, url: str) -> None:
    save(tmp_path / "a", 1, 2)
    folder, objects = DiskStates(tmp_path / "a"), ObjectStore(url)
    objects.update(folder)
    files, root = fsspec.url_to_fs(url)
    first, second = folder.states()
    files.rm_file(f"{root}/checkpoints/{second.name}/manifest.json")
    assert objects.states() == [first]
    objects.update(folder)
    assert objects.states() == [first, second]
    part = f"{root}/checkpoints/{second.name}/model.pt"
    files.pipe_file(part, files.cat_file(part)[:-1])
    assert objects.states() == [first], "a file that is too short"
    files.pipe_file(part, b"x" * (source_length(folder, second)))
    assert objects.states() == [first, second], "lengths do not tell"
    with pytest.raises(CheckpointError, match="damaged"):
        objects.fetch(second, DiskStates(tmp_path / "b"))
    assert DiskStates(tmp_path / "b").states() == []


def source_length(folder: DiskStates, state: Any) -> int:
    return next(length for path, length in folder.files(state) if path.name == "model.pt")


def test_the_states_of_another_run_are_not_mixed_with_this_one(tmp_path: Path, url: str) -> None:
    save(tmp_path / "a", 1)
    ObjectStore(url).update(DiskStates(tmp_path / "a"))
    Store(tmp_path / "b", run_id="ba9876543210").save({"step": {"number": 9}}, samples=1, step=1)
    with pytest.raises(ConfigError, match="another run"):
        ObjectStore(url).begin(DiskStates(tmp_path / "b"), {}, fresh=False)
    with pytest.raises(ConfigError, match="another run"):
        ObjectStore(url).begin(DiskStates(tmp_path / "c"), {}, fresh=True)


def test_a_url_that_nothing_can_open_is_named() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        ObjectStore("nosuch://bucket")
    with pytest.raises(ConfigError, match="URL"):
        ObjectStore("runs/digits")


def test_copying_states_needs_no_torch() -> None:
    code = (
        "import sys, swell.checkpoint.object_store, swell.checkpoint.state_folder, swell.supervisor.states;"
        "print(json.dumps('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", f"import json; {code}"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False
