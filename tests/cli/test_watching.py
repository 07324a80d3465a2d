"""``swell watch``, ``log`` and ``list``: plain in a pipe, clear about what is no run; the line under ``swell run``."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from swell.cli import main
from swell.cli.run_line import RunLine, watched
from swell.core.events import RunEnded, RunStarted, Warned, from_json
from swell.telemetry import EventLog, read_events
from swell.telemetry.run_model import model_of
from swell.telemetry.watch_view import picture
from tests.telemetry.runs import a_run, an_eventful_run, stepped, write_run

COMMANDS = ["watch", "log", "report"]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_run_is_refused_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "events.jsonl").write_text('{"lr": 0.1}\nhello\n')
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false\n")
    (tmp_path / "line").write_text("no line ends here")
    for path, words in [
        ("nowhere", "does not exist"),
        ("folder", "has no events.jsonl"),
        ("foreign", "not a log of swell"),
        ("passwd", "not a log of swell"),
        ("line", "not a log of swell"),
    ]:
        assert main([command, str(tmp_path / path)]) == 2
        shown = capsys.readouterr()
        assert shown.err.count("\n") == 1 and words in shown.err and shown.out == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_log_that_was_cut_in_a_line_and_an_empty_one_are_shown(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = write_run(tmp_path / "cut", a_run())
    log = cut / "events.jsonl"
    log.write_bytes(log.read_bytes()[:-30])
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "events.jsonl").touch()
    once = ["--once"] if command == "watch" else []
    assert main([command, str(cut), *once]) == 0
    assert main([command, str(empty), *once]) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_of_a_newer_version_is_shown_as_far_as_it_can_be(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", a_run())
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "log", "time": 1.0, "schema": 99}\n{"event": "dream", "time": 2.0}\n')
    assert main([command, str(run)]) == 0
    shown = capsys.readouterr()
    assert command == "report" or "newer version of swell" in shown.err


def test_watching_a_finished_run_in_a_pipe_is_one_plain_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", an_eventful_run(50))
    assert main(["watch", str(run)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1 and "\x1b" not in shown
    assert shown.startswith("finished  epoch 1  100%  step 50") and "batch 1,024 = 32 x 16 x 2" in shown
    assert main(["watch", str(run), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["state"], figures["step"], figures["global_batch"]) == ("finished", 50, 1024)


def test_watching_ends_when_the_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(tmp_path / "run" / "events.jsonl", small=True)
    start = {"version": "1", "base_batch": 64, "policy": "Fixed(64)", "rule": "auto", "seed": 0, "samples": 0}
    log.emit(RunStarted(time=time.time(), replicas=1, **start))

    def train() -> None:
        for step in range(1, 6):
            log.emit(stepped(time=time.time(), step=step, samples=64 * step, replicas=1))
            time.sleep(0.05)
        log.emit(RunEnded(time=time.time(), step=5, samples=320, reason="finished"))

    training = threading.Thread(target=train)
    training.start()
    assert main(["watch", str(tmp_path / "run"), "--every", "0.02"]) == 0
    training.join()
    assert capsys.readouterr().out.splitlines()[-1].startswith("finished")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_picture_fits_the_terminal(width: int) -> None:
    for count in (0, 1, 3, 50):
        file = io.StringIO()
        console = Console(file=file, width=width, force_terminal=True, color_system=None, _environ={})
        model = model_of(list(an_eventful_run(50))[:count])
        console.print(picture(model, name="a" * 200, state="running", notes=6, width=width))
        assert all(len(line.rstrip()) <= width for line in file.getvalue().splitlines())


def test_a_log_is_told_in_sentences_and_given_whole_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", an_eventful_run(800))
    assert main(["log", str(run)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "started on 2 workers" in told[0] and "finished after 800 steps" in told[-1]
    assert main(["log", str(run), "--last", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == told[-2:]
    assert main(["log", str(run), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [from_json(line) for line in lines] == list(read_events(run / "events.jsonl"))
    assert main(["log", str(run), "--follow", "--last", "1"]) == 0  # it has ended, so nothing is waited for


def test_what_a_log_says_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b]0;title\x07\x1b[2J\u202eb\nc"
    events = [*a_run()[:9], Warned(time=1.7e9, message=evil), RunEnded(time=1.7e9, step=9, samples=9, reason=evil)]
    run = write_run(tmp_path / "run\x1b[31m", events)
    assert main(["log", str(run)]) == 0
    file = io.StringIO()
    model = model_of(list(read_events(run / "events.jsonl")))
    console = Console(file=file, width=200, force_terminal=True, color_system=None, _environ={})
    console.print(picture(model, name=run.name, state="running", notes=6, width=200))
    for text in (capsys.readouterr().out, file.getvalue()):
        assert "a^[]0;title^G^[[2J<U+202E>b^Jc" in text and "\x1b" not in text and "\u202e" not in text


def test_all_runs_of_a_folder_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "a" / "one", a_run())
    write_run(tmp_path / "runs" / "two", a_run()[:9])
    (tmp_path / "runs" / "three").mkdir()
    assert main(["list", str(tmp_path / "runs"), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["state"] for name, row in rows.items()} == {"a/one": "finished", "two": "silent"}
    assert rows["a/one"]["done"] == 1.0 and rows["a/one"]["metrics"] == {"accuracy": 0.9}
    assert main(["list", str(tmp_path / "runs")]) == 0
    assert "accuracy 0.9" in capsys.readouterr().out
    assert main(["list", str(tmp_path / "runs" / "three")]) == 0
    assert "There is no run" in capsys.readouterr().out
    assert main(["list", str(tmp_path / "nowhere")]) == 2


def test_the_line_under_a_run_stays_below_what_is_written(tmp_path: Path) -> None:
    write_run(tmp_path / "run", a_run()[:20])
    shown: list[str] = []
    line = RunLine(tmp_path / "run", lambda text: shown.append(f"{text}\n"), draw=shown.append)
    line.write("before the first step")
    line.refresh()
    line.write("a worker says something")
    assert shown[0] == "before the first step\n"
    assert shown[1].startswith("\r\x1b[K") and "batch" in shown[1] and "\n" not in shown[1]
    assert shown[2] == "\r\x1b[Ka worker says something\n"
    assert shown[3] == shown[1].removeprefix("\r\x1b[K")


def test_the_line_is_there_for_a_run_whose_folder_does_not_exist_when_it_starts(tmp_path: Path) -> None:
    shown: list[str] = []
    line = RunLine(tmp_path / "run", lambda text: None, draw=shown.append)
    line.refresh()
    write_run(tmp_path / "run", a_run()[:20])
    line.refresh()
    assert len(shown) == 1 and "batch" in shown[0]


@pytest.mark.parametrize("stuck", ["write", "draw"])
def test_a_terminal_that_nobody_reads_does_not_hold_up_the_end(stuck: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", a_run()[:20])
    entered, gate = threading.Event(), threading.Event()

    def block(text: str) -> None:
        entered.set()
        gate.wait()

    ways: dict[str, Any] = {"write": lambda text: None, "draw": lambda text: None, stuck: block}
    line = RunLine(tmp_path / "run", ways["write"], draw=ways["draw"])
    act = line.refresh if stuck == "draw" else lambda: line.write("nobody reads this")
    thread = threading.Thread(target=act, daemon=True)
    with line:
        thread.start()
        assert entered.wait(10)
    gate.set()
    thread.join()


def test_in_a_pipe_lines_are_written_as_they_are(tmp_path: Path) -> None:
    with watched(tmp_path, print) as write:
        assert write is print
