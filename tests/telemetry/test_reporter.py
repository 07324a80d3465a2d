"""Events leave a run once, by its first replica, also if that replica is lost."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from swell.core.events import Event, RunStarted, Stepped, Warned
from swell.telemetry import EventLog, Fanout, Reporter, read_events


class Heard:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1


def stepped(step: int) -> Stepped:
    return Stepped(
        time=0.0,
        step=step,
        epoch=0,
        samples=8 * step,
        global_batch=8,
        replicas=2,
        micro_batch=4,
        accumulation=1,
        lr=(0.1,),
        lr_factor=(1.0,),
        gain=1.0,
        progress=float(step),
        step_s=0.1,
    )


WARNED = Warned(time=0.0, message="slow disk")
STARTED = RunStarted(time=0.0, version="1", replicas=2, base_batch=8, policy="Fixed(8)", rule="auto", seed=0, samples=0)


def test_sinks_are_opened_by_the_first_event_and_again_after_a_close() -> None:
    opened: list[Heard] = []

    def open_sinks() -> Fanout:
        opened.append(Heard())
        return Fanout([opened[-1]])

    reporter = Reporter(open_sinks)
    assert opened == []
    reporter.emit(WARNED)
    reporter.emit(WARNED)
    reporter.close()
    reporter.close()
    reporter.emit(stepped(1))
    assert [(len(heard.events), heard.closed) for heard in opened] == [(2, 1), (1, 0)]


def test_only_the_first_replica_reports() -> None:
    heard, first = Heard(), [False]
    reporter = Reporter(lambda: Fanout([heard]), is_first=lambda: first[0])
    reporter.emit(stepped(1))
    assert heard.events == []
    first[0] = True
    reporter.emit(WARNED)
    assert heard.events == [WARNED]  # the step counts as reported: there is no log that lacks it


def test_the_next_first_replica_reports_a_step_that_the_log_lacks_and_no_other(tmp_path: Path) -> None:
    def open_log() -> Fanout:
        return Fanout([EventLog(tmp_path / "events.jsonl")])

    lost, left = Reporter(open_log), [False]
    heir, newcomer = (Reporter(open_log, is_first=lambda: left[0]) for _ in range(2))
    for step in (1, 2):
        heir.emit(stepped(step))
    lost.emit(stepped(1))
    lost.flush()
    newcomer.remember(heir.latest)
    left[0] = True
    heir.emit(WARNED)
    newcomer.emit(WARNED)  # by now the log has step 2
    lost.close()
    assert list(read_events(tmp_path / "events.jsonl")) == [stepped(1), stepped(2), WARNED, WARNED]


def test_of_two_logs_the_one_that_lacks_the_step_gets_it_and_other_sinks_are_not_told_twice(tmp_path: Path) -> None:
    logs, heard = [tmp_path / "run.jsonl", tmp_path / "second.jsonl"], Heard()
    lost = Reporter(lambda: Fanout([EventLog(logs[0])]))  # it was lost before it wrote to the second one
    lost.emit(stepped(1))
    lost.close()
    first = [False]
    heir = Reporter(lambda: Fanout([*map(EventLog, logs), heard]), is_first=lambda: first[0])
    heir.emit(stepped(1))
    first[0] = True
    heir.emit(WARNED)
    heir.close()
    assert [list(read_events(log)) for log in logs] == [[stepped(1), WARNED]] * 2
    assert heard.events == [WARNED]


@given(in_log=st.integers(0, 40), taken=st.integers(0, 40), resumed=st.booleans())
def test_whatever_the_lost_replica_had_not_written_is_reported_once(tmp_path_factory, in_log, taken, resumed) -> None:
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    sinks = [EventLog(path)]
    if resumed:  # steps of an earlier start, which the run does again
        sinks[0].emit(stepped(1000))
        sinks[0].emit(STARTED)
    first = [False]
    heir = Reporter(lambda: Fanout([EventLog(path)]), is_first=lambda: first[0])
    for step in range(1, taken + 1):
        heir.emit(stepped(step))
        if step <= in_log:
            sinks[0].emit(stepped(step))
    sinks[0].close()
    first[0] = True
    heir.emit(WARNED)
    heir.emit(stepped(taken + 1))
    heir.close()
    before = [stepped(1000), STARTED] if resumed else []
    steps = [stepped(step) for step in range(1, taken + 1)]
    assert list(read_events(path)) == [*before, *steps, WARNED, stepped(taken + 1)]


def test_a_replica_without_a_step_has_nothing_to_hand_on() -> None:
    reporter = Reporter(lambda: Fanout([]))
    assert reporter.latest == ""
    reporter.remember("")
    assert reporter.latest == ""
