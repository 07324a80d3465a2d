"""A log is followed while it is written, put away, cut and damaged; whoever reads it sees every whole line once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.core.events import BatchChanged, Event, LogStarted, Stepped, Warned, to_json
from swell.errors import ConfigError
from swell.supervisor.run_dir import RunDir
from swell.telemetry import LOG_NAME, EventLog, LogReader, log_file, read_events
from swell.telemetry.log import last_samples
from swell.telemetry.log_parts import older_parts, put_away
from swell.telemetry.log_reader import require_log
from tests.telemetry.runs import a_run, stepped


def steps(first: int, last: int) -> list[Stepped]:
    return [stepped(time=1.7e9 + 0.1 * n, step=n, samples=64 * n, loss=1 / n) for n in range(first, last)]


def numbers(events: Iterable[Event]) -> list[int]:
    return [event.step for event in events if isinstance(event, Stepped)]


def messages(events: Iterable[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Warned)]


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 4000), max_size=8))
def test_wherever_the_writer_is_interrupted_the_reader_gives_each_event_once(tmp_path_factory, cuts):
    folder = tmp_path_factory.mktemp("run")
    whole = folder / "whole.jsonl"
    log = EventLog(whole, small=True)
    for event in a_run(epochs=1):
        log.emit(event)
    log.close()
    data, growing = whole.read_bytes(), folder / LOG_NAME
    reader, read = LogReader(folder), []
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        growing.write_bytes(data[:end]) if not growing.exists() else _extend(growing, data[:end])
        read += reader.poll()
    assert read == list(read_events(whole))
    assert (reader.torn, reader.problem) == (0, None)


def _extend(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data[path.stat().st_size :])


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_files_that_are_put_away_are_read_in_their_order(tmp_path, monkeypatch, every):
    monkeypatch.setattr(log_file, "PART_BYTES", 5000)
    log, reader, read = EventLog(tmp_path / LOG_NAME, small=True), LogReader(tmp_path), []
    for number, event in enumerate(steps(1, 200)):
        log.emit(event)
        log.flush()
        if number % every == 0:
            read += reader.poll()
    read += reader.poll()
    assert numbers(read) == list(range(1, 200))
    assert len(older_parts(log.path)) > 3 and all(part.suffix == ".gz" for part in older_parts(log.path))
    assert numbers(read_events(log.path)) == list(range(1, 200))
    assert numbers(LogReader(log.path).poll()) == list(range(1, 200))
    assert last_samples(log.path) == 64 * 199
    log.close()
    again = EventLog(tmp_path / LOG_NAME, small=True)
    again.emit(stepped(time=1.7e9 + 30, step=200, samples=64 * 200))
    again.close()
    assert numbers(reader.poll()) == [200]


def test_a_part_that_could_not_be_compressed_is_read_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / LOG_NAME
    path.write_text(to_json(Warned(time=0.0, message="old")) + "\n")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("swell.telemetry.log_parts.gzip.open", full)
        assert put_away(path) == 1
    path.write_text(to_json(Warned(time=1.0, message="new")) + "\n")
    assert messages(read_events(path)) == ["old", "new"]
    assert sorted(os.listdir(tmp_path)) == ["events-0001.jsonl", LOG_NAME]


def test_a_log_of_short_lines_says_its_schema_first(tmp_path):
    log = EventLog(tmp_path / LOG_NAME, small=True)
    log.emit(Warned(time=0.0, message="m"))
    first = json.loads(log.path.read_text().splitlines()[0])
    assert (first["event"], first["schema"]) == ("log", 2)


def test_a_line_of_a_newer_version_is_named_and_the_rest_is_read(tmp_path):
    path = tmp_path / LOG_NAME
    lines = [LogStarted(time=0.0, schema=99), Warned(time=0.0, message="m")]
    path.write_text("".join(to_json(event) + "\n" for event in lines) + '{"event": "dream", "time": 0}\n[1,{"q":2}]\n')
    reader = LogReader(tmp_path)
    assert messages(reader.poll()) == ["m"]
    assert "newer version of swell (schema 99" in (reader.problem or "")
    with pytest.raises(ConfigError, match="schema is 99"):
        list(read_events(path))


def test_a_file_that_is_no_log_is_said_to_be_none(tmp_path):
    (tmp_path / LOG_NAME).write_text('{"lr": 0.1}\n["a"]\nhello\n')
    reader = LogReader(tmp_path)
    assert reader.poll() == []
    assert "not a log of swell" in (reader.problem or "")


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"has no events\.jsonl"):
        require_log(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        require_log(tmp_path / "nowhere")
    assert LogReader(tmp_path / "nowhere").poll() == []


def test_a_log_that_comes_later_is_read_even_if_its_folder_comes_with_it(tmp_path):
    reader = LogReader(tmp_path / "run")
    assert reader.poll() == []
    (tmp_path / "run").mkdir()
    assert reader.poll() == []
    EventLog(tmp_path / "run" / LOG_NAME).emit(Warned(time=0.0, message="m"))
    assert messages(reader.poll()) == ["m"]


def test_a_supervised_run_is_found_by_the_folder_of_its_supervisor_too(tmp_path):
    supervised, job = tmp_path / "supervised", tmp_path / "job"
    reader = LogReader(supervised)
    (supervised / "control").mkdir(parents=True)
    RunDir(supervised).connect(job)
    EventLog(job / LOG_NAME).emit(Warned(time=0.0, message="m"))
    assert messages(reader.poll()) == ["m"]
    assert require_log(supervised) == (job / LOG_NAME).resolve()


def test_short_lines_whose_whole_line_is_lost_are_passed_over(tmp_path):
    path = tmp_path / LOG_NAME
    path.write_text("[100,90,2.5]\n[100,90,2.4]\n" + to_json(stepped()) + "\n[100,90,2.5]\n")
    assert numbers(read_events(path)) == [1, 2]


def test_a_policy_that_moves_the_batch_in_every_step_does_not_fill_the_disk(tmp_path):
    log = EventLog(tmp_path / LOG_NAME, small=True)
    seen = {"step": 1, "profile": ["x" * 5000]}
    for step in range(1, 3000):
        when = 1.7e9 + step / 10
        log.emit(BatchChanged(time=when, step=step, before=step, after=step + 1, policy="Ramp", seen=seen))
        log.emit(stepped(time=when, step=step, samples=step * (step + 1) // 2, global_batch=step))
    log.close()
    events = list(read_events(log.path))
    changes = [event for event in events if isinstance(event, BatchChanged)]
    assert log.path.stat().st_size < 400_000
    assert (changes[0].before, changes[-1].after) == (1, 3000)
    assert sum(change.changes for change in changes) == 2999
    assert all(former.after == later.before for former, later in pairwise(changes))
    assert [event.global_batch for event in events if isinstance(event, Stepped)] == list(range(1, 3000))


def test_a_line_that_is_nested_too_deeply_is_counted_and_not_raised(tmp_path):
    (tmp_path / LOG_NAME).write_text("[" * 100_000 + "]" * 100_000 + "\n")
    reader = LogReader(tmp_path)
    assert reader.poll() == [] and reader.problem is not None
    reader.close()
