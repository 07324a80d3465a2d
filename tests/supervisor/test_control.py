"""Words between supervisor, workers and owner arrive whole, and from nobody else."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.errors import ConfigError, WorldError
from swell.supervisor.channel import Channel
from swell.supervisor.control import ControlServer, ask
from swell.supervisor.generation import Call, Generation
from swell.supervisor.logs import LogFollower
from swell.supervisor.run_dir import RunDir

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(st.lists(st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(st.integers())), max_size=5))
def test_messages_arrive_whole_and_in_order(messages: list[dict[str, object]]) -> None:
    near, far = socket.socketpair()
    sender, receiver = Channel(near), Channel(far)
    sent = [{**message, "say": "test"} for message in messages]
    for message in sent:
        assert sender.send(message)
    assert receiver.receive() == sent
    sender.close()
    assert receiver.receive() is None
    assert not receiver.send({"say": "anybody there?"}) or not receiver.send({"say": "no"})
    receiver.close()


def test_half_a_message_waits_for_its_other_half() -> None:
    near, far = socket.socketpair()
    receiver = Channel(far)
    near.sendall(b'{"say": "he')
    assert receiver.receive() == []
    near.sendall(b'llo"}\n{"say"')
    assert receiver.receive() == [{"say": "hello"}]
    near.close()
    receiver.close()


def test_a_stranger_on_the_channel_is_named() -> None:
    near, far = socket.socketpair()
    near.sendall(b"print('hello')\n")
    receiver = Channel(far)
    with pytest.raises(WorldError, match="hello"):
        receiver.receive()
    near.close()
    receiver.close()


def test_a_reader_that_has_fallen_asleep_does_not_hold_up_the_sender() -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    sender = Channel(near)
    assert not all(sender.send({"say": "x" * 1000}) for _ in range(10_000))
    sender.close()
    far.close()


NAMES = st.lists(st.integers(1, 9), unique=True).map(tuple)


@given(
    st.builds(
        Generation, number=st.integers(1, 99), members=NAMES, dismissed=NAMES, broken=NAMES, nodes=st.integers(1, 9)
    )
)
def test_every_worker_hears_its_own_part_of_a_generation(generation: Generation) -> None:
    for worker, call in generation.calls(range(1, 10), meeting="file"):
        assert Call.from_message(call.to_message()) == call
        assert (call.rank is not None) == (worker in generation.members)
        assert call.rank is None or generation.members[call.rank] == worker
        assert call.dismissed == (worker in generation.dismissed)
        assert (call.size, call.broken, call.nodes) == (len(generation.members), generation.broken, generation.nodes)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, as pytest's own may not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0 or sys.platform != "linux", reason="needs root to act as another user on Linux")
def test_another_user_is_hung_up_on_even_where_the_socket_lies_open(open_folder: Path) -> None:
    server = ControlServer(open_folder / "socket", lambda request: {"secret": 1})
    (open_folder / "socket").chmod(0o666)
    code = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "end = socket.socket(socket.AF_UNIX); end.connect(sys.argv[1])\n"
        'end.sendall(b\'{"say": "status"}\\n\'); print(end.recv(1000))\n'
    )
    stranger = subprocess.Popen(
        [sys.executable, "-c", code, str(open_folder / "socket")], stdout=subprocess.PIPE, text=True
    )
    select.select([server.fileno()], [], [], 30)
    assert server.accept() is None
    shown, _ = stranger.communicate(timeout=30)
    assert "secret" not in shown
    server.close()


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.*no such folder.*--run-dir"):
        ask("nowhere", "status")
    with pytest.raises(ConfigError, match="no run in it"):
        ask(tmp_path, "status")
    (tmp_path / "events.jsonl").touch()
    with pytest.raises(ConfigError, match=rf"swell watch {tmp_path}"):
        ask(tmp_path, "status")
    (tmp_path / "control").mkdir()
    RunDir(tmp_path).write_record({})
    with pytest.raises(ConfigError, match=rf"swell resume {tmp_path}"):
        ask(tmp_path, "status")
    with pytest.raises(ConfigError, match="nowhere"):
        RunDir("nowhere").read_record()


def test_a_record_that_is_broken_is_named(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    with folder.lock():
        folder.write_record({"options": {}})
        assert folder.read_record() == {"options": {}}
        (tmp_path / "control" / "run.json").write_text("[1")
    with pytest.raises(ConfigError, match=r"run\.json"):
        folder.read_record()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--run-dir"), RunDir(tmp_path / "file").lock():
        pass


def test_logs_are_shown_line_by_line_and_of_progress_bars_the_last_state(tmp_path: Path) -> None:
    shown: list[str] = []
    log = tmp_path / "log"
    log.write_text("from an earlier life\n")
    follower = LogFollower(shown.append)
    follower.add(1, log)
    with log.open("a") as file:
        file.write("one\ntw")
        file.flush()
        follower.look(1, "[0] ")
        file.write("o\n 10%\r 20%\r 30%\n")
        file.flush()
        follower.look(1, "[0] ")
        file.write("not shown\n")
        file.flush()
        follower.look(1, None)
        file.write("last words")
    follower.remove(1, "[1] ")
    assert shown == ["[0] one", "[0] two", "[0]  30%", "[1] last words"]
