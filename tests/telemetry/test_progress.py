"""The progress line says where the run stands: one live line on a terminal, plain text everywhere else."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from swell.core.events import (
    EpochEnded,
    EpochStarted,
    Faulted,
    Noticed,
    Resized,
    RunStarted,
    StepSkipped,
    Warned,
)
from swell.telemetry import ProgressLine
from swell.telemetry.run_summary import compact, duration
from tests.telemetry.runs import a_run, stepped

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(every_s: float = 5.0) -> tuple[ProgressLine, io.StringIO, Clock]:
    file, clock = io.StringIO(), Clock()
    return ProgressLine(console=Console(file=file, width=80), every_s=every_s, clock=clock), file, clock


def terminal(width: int = 120) -> tuple[ProgressLine, io.StringIO, Clock]:
    file, clock = io.StringIO(), Clock()
    console = Console(file=file, width=width, height=20, force_terminal=True, color_system=None, _environ={})
    return ProgressLine(console=console, clock=clock), file, clock


def frames(file: io.StringIO) -> list[str]:
    """The lines a terminal was made to show, one after another, without colours and movements."""
    text = ESCAPES.sub("", file.getvalue()).replace("\r", "\n")
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def screen(file: io.StringIO) -> list[str]:
    """What a terminal shows in the end, told by the few codes that move the cursor or clear a line."""
    rows, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", file.getvalue()):
        if token == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        elif token.startswith("\x1b[") and token.endswith("A"):
            row -= int(token[2:-1] or 1)
        elif token == "\x1b[2K":
            rows[row] = ""
        elif not token.startswith("\x1b") and token != "\r":
            rows[row] += token
    return [text.rstrip() for text in rows if text.strip()]


def test_without_a_terminal_it_is_plain_text_one_line_every_few_seconds():
    line, file, clock = plain(every_s=5.0)
    line.emit(EpochStarted(time=0.0, epoch=0, samples=0, epochs=10, epoch_size=6400, total_samples=64_000))
    for step in range(1, 101):
        clock.now += 0.125
        line.emit(stepped(step=step, samples=64 * step, lr_factor=(1.234,), gain=1.5, loss=0.51239))
    line.close()
    rest = "batch 64  replicas 2  lr x1.23  gain 1.50  samples/s 640  loss 0.5124"
    assert file.getvalue().splitlines() == [
        f"epoch 1/10  samples 64/64.0k  {rest}  left 1:40 min",
        f"epoch 1/10  samples 2,624/64.0k  {rest}  left 1:36 min",
        f"epoch 1/10  samples 5,184/64.0k  {rest}  left 1:32 min",
    ]


def test_plain_text_has_no_escape_codes_and_tells_every_end_of_an_epoch():
    line, file, _ = plain()
    for event in a_run(epochs=3, resize_at=20):
        line.emit(event)
    line.close()
    text = file.getvalue()
    assert text.isascii() and "\x1b" not in text and "\r" not in text
    ends = [row for row in text.splitlines() if "done" in row]
    assert ends == [
        "epoch 1/3 done: 1,000 samples in 8.0 s  accuracy 0.9",
        "epoch 2/3 done: 1,000 samples in 4.0 s  accuracy 0.9",
        "epoch 3/3 done: 1,000 samples in 2.0 s  accuracy 0.9",
    ]
    assert "resized from 2 to 4 replicas: workers joined" in text
    end, price = text.splitlines()[-2:]
    assert end == "finished after 28 steps, 3,000 samples in 14 s"
    assert re.fullmatch(r"worth 44 \(.*\) steps of 64: 1.06 \(.*\) times the base run's samples, .* of its time", price)


def test_what_is_not_known_is_not_shown():
    line, file, _ = plain()
    line.emit(stepped(loss=None, lr_factor=(), step_s=0.0))
    assert file.getvalue() == "epoch 1  samples 64  batch 64  replicas 2  gain 1.00\n"


def test_several_parameter_groups_show_the_range_of_their_factors():
    line, file, _ = plain()
    line.emit(stepped(lr_factor=(2.0, 1.5, 1.75)))
    assert "lr x1.50-2.00" in file.getvalue()


def test_a_run_that_ends_by_progress_counts_base_steps():
    line, file, _ = plain()
    line.emit(EpochStarted(time=0.0, epoch=4, samples=0, total_samples=99, total_progress=2000.0))
    line.emit(stepped(epoch=4, progress=501.4))
    assert file.getvalue().startswith("epoch 5  steps 501/2,000  batch 64")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Warned(time=0.0, message="slow disk"), "warning: slow disk"),
        (Warned(time=0.0, message="naïve → [bold]x[/bold]"), "warning: naïve → [bold]x[/bold]"),
        (
            Resized(time=0.0, step=9, before=4, after=1, reason="worker 3 was lost", pause_s=0.14),
            "resized from 4 to 1 replica in 0.1 s: worker 3 was lost",
        ),
        (Noticed(time=0.0, step=9, source="SIGTERM", deadline_s=30.0), "asked to stop by SIGTERM, 30 s left"),
        (Noticed(time=0.0, step=9, source="a file"), "asked to stop by a file"),
        (Faulted(time=0.0, step=9, message="a peer was lost", fatal=False), "recovered at step 9: a peer was lost"),
        (Faulted(time=0.0, step=9, message="out of memory", fatal=True), "failed at step 9: out of memory"),
        (
            RunStarted(time=0.0, version="1", replicas=8, base_batch=64, policy="p", rule="r", seed=0, samples=12_800),
            "resumed at 12,800 samples on 8 replicas",
        ),
        (
            EpochEnded(time=0.0, epoch=0, samples=640, complete=False, metrics={}),
            "epoch 1 left early: 640 samples",
        ),
    ],
)
def test_what_deserves_a_line_of_its_own_gets_one_in_both_forms(event, text):
    for make in (plain, terminal):
        line, file, _ = make()
        line.emit(event)
        line.close()
        assert frames(file) == [text]


def test_a_reason_to_skip_steps_is_told_once():
    line, file, _ = plain()
    for step in range(5):
        line.emit(StepSkipped(time=0.0, step=step, reason="overflow", samples=64, redone=True))
    line.emit(StepSkipped(time=0.0, step=9, reason="the loss was not finite", samples=64, redone=False))
    assert file.getvalue().splitlines() == [
        "skipped a step after step 0: overflow",
        "skipped a step after step 9: the loss was not finite",
    ]


def test_on_a_terminal_one_line_is_kept_up_to_date_and_is_gone_in_the_end():
    line, file, clock = terminal(width=160)
    for event in a_run(epochs=2):
        clock.now += 1.0
        line.emit(event)
    bar = next(row for row in frames(file) if "batch 64" in row)
    assert re.match(r"epoch 1/2  [━╸╺ ]+  +3 %  samples 64/2,000  batch 64  replicas 2  lr ×1.00  gain 1.00", bar)
    assert "loss" in bar and "left" in bar
    assert len(screen(file)) == 5 and screen(file)[-1].startswith("epoch 2/2  ━")
    line.close()
    *rows, price = screen(file)
    assert rows == [
        "epoch 1/2 done: 1,000 samples in 8.0 s  accuracy 0.9",
        "epoch 2/2 done: 1,000 samples in 4.0 s  accuracy 0.9",
        "finished after 24 steps, 2,000 samples in 12 s",
    ]
    assert price.startswith("worth ")
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1  # the cursor comes back


def test_a_live_line_is_drawn_ten_times_a_second_at_most():
    line, file, clock = terminal()
    for step in range(1, 1001):
        clock.now += 0.01
        line.emit(stepped(step=step, samples=64 * step))
    line.close()
    assert 90 <= sum("batch" in row for row in frames(file)) <= 110


@given(width=st.integers(20, 200), samples=st.integers(1, 10**12), batch=st.integers(1, 10**6), known=st.booleans())
def test_the_live_line_fits_the_terminal(width, samples, batch, known):
    line, file, clock = terminal(width=width)
    if known:
        line.emit(EpochStarted(time=0.0, epoch=0, samples=0, epochs=99, total_samples=2 * samples))
    clock.now = 1.0
    line.emit(stepped(samples=samples, global_batch=batch, lr_factor=(1.0, 99.0)))
    line.close()
    shown = [row for row in frames(file) if "epoch" in row]
    assert shown and all(len(row) <= width for row in shown)
    if width >= 60:
        assert f"batch {batch:,}" in shown[-1]


def test_a_terminal_that_knows_no_escape_codes_gets_plain_text():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, _environ={"TERM": "dumb"})
    line = ProgressLine(console=console)
    assert not line.live
    line.emit(stepped())
    line.close()
    assert "\x1b" not in file.getvalue() and "batch 64" in file.getvalue()


def test_output_that_was_closed_ends_the_line_and_not_the_run():
    for make in (plain, terminal):
        line, file, clock = make()
        line.emit(stepped())
        file.close()
        clock.now += 100
        line.emit(stepped(samples=128))
        line.emit(Warned(time=0.0, message="nobody reads this"))
        line.close()


def test_an_encoding_that_lacks_a_sign_does_not_stop_the_line():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    line = ProgressLine(console=Console(file=file))
    line.emit(Warned(time=0.0, message="naïve"))
    line.close()
    assert raw.getvalue() == b"warning: na?ve\n"


@given(number=st.floats(0, 1e14))
def test_a_compact_number_is_short_and_right_to_two_digits(number):
    text = compact(number)
    value = float(text.replace(",", "").rstrip("kMGT")) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1], 1)
    assert len(text) <= 7
    assert abs(value - number) <= max(0.05 * number, 0.5 if number >= 10 else 0.05) + 1e-9


@given(seconds=st.floats(0, 1e7))
def test_a_duration_is_right_to_its_last_digit(seconds):
    text = duration(seconds)
    clock, unit = text.split(" ")
    parts = [float(part) for part in clock.split(":")]
    if unit == "s":
        assert abs(parts[0] - seconds) <= 0.5 and seconds < 60
    else:
        size = {"min": 1, "h": 60}[unit]
        assert parts[1] < 60
        assert abs((60 * parts[0] + parts[1]) * size - seconds) <= size + 1
