"""Several sinks get every event; one that fails is left out, and the others and the run go on."""

from __future__ import annotations

import pytest

from swell.core.events import Event, Warned
from swell.telemetry import LOG_NAME, EventLog, Fanout, ProgressLine, open_sinks, read_events
from tests.telemetry.runs import a_run


class Keeping:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1


class Failing(Keeping):
    """Takes a few events, then no more, and cannot even be closed."""

    def emit(self, event: Event) -> None:
        super().emit(event)
        if len(self.events) == 3:
            raise RuntimeError("no connection")

    def close(self) -> None:
        super().close()
        raise RuntimeError("still none")


def test_every_sink_gets_every_event_and_is_closed_once():
    sinks = [Keeping(), Keeping()]
    fanout = Fanout(sinks)
    for event in a_run():
        fanout.emit(event)
    fanout.close()
    fanout.close()
    assert [sink.events for sink in sinks] == [a_run()] * 2
    assert [sink.closed for sink in sinks] == [1, 1]


def test_a_sink_that_raises_is_warned_about_once_and_left_out(caplog):
    failing, keeping = Failing(), Keeping()
    fanout = Fanout([failing, keeping])
    for event in a_run():
        fanout.emit(event)
    assert len(failing.events) == 3 and failing.closed == 1
    assert keeping.events == a_run()
    assert fanout.sinks == (keeping,)
    failed = [record.getMessage() for record in caplog.records]
    assert len(failed) == 2 and "Failing failed on a 'step' event (RuntimeError: no connection)" in failed[0]
    fanout.close()


def test_an_interrupt_is_not_taken_for_a_failing_sink():
    class Interrupted(Keeping):
        def emit(self, event: Event) -> None:
            raise KeyboardInterrupt

    fanout = Fanout([Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        fanout.emit(a_run()[0])
    assert fanout.sinks


def test_the_sinks_of_a_run_are_its_log_a_line_where_it_is_wanted_and_the_users_own(tmp_path, capsys):
    mine = Keeping()
    sinks = open_sinks(tmp_path, progress=True, extra=[mine])
    assert [type(sink) for sink in sinks.sinks] == [EventLog, ProgressLine, Keeping]
    for event in a_run():
        sinks.emit(event)
    sinks.close()
    assert list(read_events(tmp_path / LOG_NAME)) == mine.events == a_run()
    assert "epoch 3/3 done" in capsys.readouterr().out


@pytest.mark.parametrize("progress", [None, False])
def test_without_a_folder_a_terminal_or_a_wish_only_warnings_are_shown(progress, capsys, caplog):
    sinks = open_sinks(None, progress=progress)
    for event in [*a_run(), Warned(time=0.0, message="the disk is full")]:
        sinks.emit(event)
    sinks.close()
    assert capsys.readouterr().out == ""
    assert caplog.messages == ["warning: the disk is full"]
