"""Folders that somebody else prepared: their command line is not run, their links not followed, their text harmless."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.cli import main
from swell.core.events import BatchChanged, Resized, Stepped, Warned, from_json, to_json
from swell.core.harmless import harmless
from swell.errors import ConfigError
from swell.supervisor.logs import LogFollower
from swell.supervisor.run_dir import RunDir
from swell.telemetry import EventLog, last_samples, read_events
from tests.supervisor.supervised import SupervisedRun

WORKER = str(Path(__file__).parents[1] / "supervisor" / "plain_worker.py")
NOBODY = 65534
ESCAPE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def prepared(folder: Path, touched: Path) -> RunDir:
    """A run folder whose record says to run a script that leaves a file."""
    script = folder / "evil.py"
    folder.mkdir(parents=True)
    script.write_text(f"open({str(touched)!r}, 'w').close()")
    run = RunDir(folder)
    with run.lock():
        options = {"script": str(script), "arguments": [], "module": False, "engine": "inplace", "workers": "1"}
        options |= {"start": 1, "run_dir": str(folder), "max_restarts": 0, "on_worker_failure": "stop", "grace": 9.0}
        options |= {"hang_timeout": 60.0, "stall_timeout": None, "trace": None, "trace_speed": 1.0, "show": "all"}
        run.write_record({"folder": str(folder), "options": {**options, "trace_removals": "notice"}})
    return run


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("part", ["control", "record"])
def test_the_command_line_of_another_user_is_not_run_unless_asked_for(
    tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepared(tmp_path / "run", tmp_path / "touched")
    os.chown(run.control if part == "control" else run.control / "run.json", NOBODY, NOBODY)
    assert main(["resume", str(run.path)]) == 2
    error = capsys.readouterr().err
    assert "belongs to user" in error and "--trust" in error and not (tmp_path / "touched").exists()
    assert "cannot be read" not in error
    assert RunDir(run.path).read_record(trust=True)["folder"] == str(run.path)


@pytest.mark.distributed
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_resume_control_or_watch_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(folder, 0o755)
    with SupervisedRun.of(tmp_path, "--workers", "1", WORKER, "train") as run:
        run.wait_for(lambda: run.status().get("state") == "training")
        for command in ("resume", "stop", "status"):
            pid = os.fork()
            if pid == 0:
                try:
                    os.setuid(NOBODY)
                    os._exit(main([command, str(run.run_dir)]))
                except BaseException:
                    traceback.print_exc()
                finally:  # never back into the tests
                    os._exit(99)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
        assert capfd.readouterr().err.count("\n") == 3, "one line each"
        assert run.status()["state"] == "training"


@pytest.mark.parametrize("part", ["control", "record"])
def test_a_record_that_others_can_write_is_not_run(
    tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepared(tmp_path / "run", tmp_path / "touched")
    (run.control if part == "control" else run.control / "run.json").chmod(0o777)
    assert main(["resume", str(run.path)]) == 2
    assert "can be written by other users" in capsys.readouterr().err and not (tmp_path / "touched").exists()


@pytest.mark.parametrize("name", ["logs", "control", "control/lock", "logs/worker-1.log"])
def test_links_in_a_run_folder_are_not_written_through_by_swell_run(tmp_path: Path, name: str) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    if "/" in name:
        victim.write_text("precious")
    else:
        victim.mkdir()
    (run / name).symlink_to(victim)
    line = ["run", "--run-dir", str(run), "--workers", "1", "--max-restarts", "0", WORKER, "quit"]
    done = subprocess.run([sys.executable, "-m", "swell", *line], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    if name == "logs/worker-1.log":  # the run goes on without this log, and says so
        assert done.returncode == 0 and "symbolic link" in done.stdout
    else:
        assert done.returncode != 0
    assert victim.read_text() == "precious" if victim.is_file() else not list(victim.iterdir())


@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_events_go_into_no_link_pipe_or_device(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    victim, path = tmp_path / "victim", tmp_path / "events.jsonl"
    victim.write_text("precious")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(victim if kind == "link" else "/dev/null")
    log = EventLog(path)
    log.emit(Warned(time=0.0, message="x"))
    log.close()
    assert victim.read_text() == "precious" and "events cannot be written" in caplog.text
    assert last_samples(path) == -1


@pytest.mark.parametrize("kind", ["pipe", "device", "link", "folder"])
def test_explain_opens_regular_files_of_the_run_only(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    secret = tmp_path / "secret"
    secret.write_text(to_json(Warned(time=0.0, message="secret")) + "\n")
    make: dict[str, Callable[[], None]] = {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "link": lambda: path.symlink_to(secret),
        "folder": path.mkdir,
    }
    make[kind]()
    assert main(["explain", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["explain", str(secret)]) == 0, "a file that the user names is read"
    (tmp_path / "mine").symlink_to(secret)
    assert main(["explain", str(tmp_path / "mine")]) == 0


MALFORMED = [
    '{"event": "step", "step": "x"}',
    '{"event": "resize", "time": 0, "step": "\\u001b[2J", "before": 1, "after": 2, "reason": "x"}',
    '{"event": "batch", "time": 0, "step": 1, "before": "a", "after": 2, "policy": "p", "seen": {}}',
    '{"event": "batch", "time": 0, "step": 1, "before": 1, "after": 2, "policy": "p", "seen": []}',
    '{"event": "warning", "time": "Infinity", "message": 3}',
    '{"event": ["x"]}',
    "[" * 100_000 + "]" * 100_000,
    "7",
    '{"event": "step", "time": 1' + "0" * 5000 + "}",
]


@pytest.mark.parametrize("line", MALFORMED, ids=lambda line: line[:30])
def test_a_malformed_event_gives_a_line_and_no_traceback(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = to_json(Resized(time=0.0, step=3, before=1, after=2, reason="x"))
    (tmp_path / "events.jsonl").write_text(f"{good}\n{line}\n")
    assert main(["explain", str(tmp_path)]) in (0, 2)
    out, err = capsys.readouterr()
    assert len(err.splitlines()) <= 1 and "\x1b" not in out + err
    assert last_samples(tmp_path / "events.jsonl") == -1


@pytest.mark.parametrize("seen", [{}, {"step": "x"}, {"samples": None}, {"noise": {"total": 3}}, {"profile": [[]]}])
def test_an_observation_that_no_run_made_gives_a_line(
    tmp_path: Path, seen: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    event = BatchChanged(time=0.0, step=1, before=1, after=2, policy="Goodput(base=64, max=128)", seen=seen)
    (tmp_path / "events.jsonl").write_text(to_json(event) + "\n")
    assert main(["explain", str(tmp_path)]) == 0
    assert "chose it" in capsys.readouterr().out


fields = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@given(values=st.dictionaries(st.sampled_from(sorted(Stepped.__dataclass_fields__)), fields))
def test_no_line_breaks_the_reader_and_what_it_gives_can_be_formatted(values: dict[str, object]) -> None:
    try:
        event = from_json(json.dumps({"event": "step", **values}))
    except ConfigError:
        return
    assert isinstance(event, Stepped) and f"{event.step:,} {event.samples:,} {event.gain:.2f} {event.step_s:.2f}"


def test_text_from_a_log_cannot_take_over_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = Resized(time=0.0, step=3, before=1, after=2, reason=f"{ESCAPE}\ud800")
    (tmp_path / "events.jsonl").write_text(to_json(event) + "\n")
    assert main(["explain", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert not set(shown) & set(ESCAPE) - set("]0;owned[2J31m") and "^[]0;owned^G" in shown
    lines: list[str] = []
    follower = LogFollower(lines.append)
    log = tmp_path / "worker-1.log"
    log.touch()
    follower.add(1, log)
    log.write_bytes(f"{ESCAPE}loss\n".encode())
    follower.remove(1, "[0] ")
    assert lines == ["[0] <U+009B>31m<U+202E>loss"]


@given(text=st.text(st.characters()))
def test_harmless_text_has_no_control_character_and_can_always_be_written(text: str) -> None:
    shown = harmless(text)
    assert all(character == "\t" or character.isprintable() or ord(character) >= 0xA0 for character in shown)
    shown.encode()


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swell.telemetry.log._LONGEST_LINE", 100)
    (tmp_path / "events.jsonl").write_text("x" * 1000)
    with pytest.raises(ConfigError, match=r"line 1.* 100 bytes"):
        list(read_events(tmp_path / "events.jsonl"))
