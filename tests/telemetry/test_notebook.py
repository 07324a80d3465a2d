"""A job in a notebook: one line of progress below the cell that trains, and the report of the run as a result.

The last test runs a real kernel; ``make test-trackers`` installs it into an environment of its own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from swell.core.events import EpochStarted, RunStarted, Warned
from swell.telemetry import ProgressLine, open_sinks
from tests.telemetry.runs import a_run, stepped, write_run


class Cells:
    """What a front end shows: pieces of HTML, each of which may be replaced."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def show(self, html: str) -> Callable[[str], None]:
        place = len(self.pieces)
        self.pieces.append(html)
        return lambda newer: self.pieces.__setitem__(place, newer)


def text(html: str) -> str:
    return unescape(re.sub("<[^>]*>", "", html)).strip()


def notebook() -> tuple[ProgressLine, Cells, io.StringIO, list[float]]:
    file, cells, now = io.StringIO(), Cells(), [0.0]
    console = Console(file=file, force_jupyter=True)
    return ProgressLine(console=console, clock=lambda: now[0], show=cells.show), cells, file, now


def started(samples: int = 0) -> RunStarted:
    return RunStarted(
        time=0.0, version="1", replicas=1, base_batch=64, policy="Fixed(64)", rule="r", seed=0, samples=samples
    )


def test_one_line_below_the_cell_is_kept_up_to_date_and_events_are_printed() -> None:
    line, cells, file, now = notebook()
    assert line.live
    line.emit(started())
    line.emit(EpochStarted(time=0.0, epoch=0, samples=0, epochs=2, epoch_size=6400, total_samples=12_800))
    for step in range(1, 101):
        now[0] += 1.0
        line.emit(stepped(step=step, samples=64 * step, loss=0.5123))
    line.emit(Warned(time=1.0, message="slow disk"))
    line.close()
    (piece,) = cells.pieces
    assert text(piece).startswith("epoch 1/2") and " 50 %" in text(piece) and "loss 0.5123" in text(piece)
    assert "\x1b" not in piece + file.getvalue() and "\n" not in text(piece)
    assert file.getvalue() == "warning: slow disk\n"


def test_another_loop_gets_a_line_of_its_own() -> None:
    line, cells, _, now = notebook()
    for samples in (0, 640):
        line.emit(started(samples))
        now[0] += 1.0
        line.emit(stepped(samples=samples + 64))
    assert len(cells.pieces) == 2


def test_it_is_drawn_less_often_where_drawing_is_slow() -> None:
    file, now, drawn = io.StringIO(), [0.0], [0]

    def draw(_: str) -> None:
        now[0] += 0.01
        drawn[0] += 1

    def slow(html: str) -> Callable[[str], None]:
        draw(html)
        return draw

    line = ProgressLine(console=Console(file=file, force_jupyter=True), clock=lambda: now[0], show=slow)
    for step in range(1, 2001):
        now[0] += 0.01
        line.emit(stepped(step=step, samples=64 * step))
    assert drawn[0] == 6  # twice at the start, then every four seconds


def test_a_front_end_that_shows_no_html_gets_plain_text() -> None:
    def refuse(_: str) -> Callable[[str], None]:
        raise RuntimeError("no display")

    file, now = io.StringIO(), [0.0]
    line = ProgressLine(console=Console(file=file, force_jupyter=True), clock=lambda: now[0], show=refuse)
    for step in range(1, 4):
        now[0] += 10.0
        line.emit(stepped(step=step, samples=64 * step))
    assert file.getvalue().count("samples/s") == 2 and not line.live


def test_outside_of_a_notebook_nothing_of_it_is_imported(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", a_run())
    sinks = open_sinks(folder)
    assert not any(isinstance(sink, ProgressLine) for sink in sinks.sinks)
    sinks.close()


TRAIN = """
import sys
sys.path.insert(0, {root!r})
from swell.telemetry import open_sinks
from swell.telemetry.run_plot import RunPlot
from tests.telemetry.runs import a_run
sinks = open_sinks("run")  # as a job opens them
for event in a_run(epochs=2):
    sinks.emit(event)
sinks.close()
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # what a kernel warns of is not ours
def test_a_real_notebook_shows_the_line_and_the_plot(tmp_path: Path) -> None:
    nbformat, nbclient, _ = (
        pytest.importorskip(name, reason=f"{name} is not installed; `make test-trackers` runs this test in a kernel")
        for name in ("nbformat", "nbclient", "ipykernel")
    )
    code = TRAIN.format(root=str(Path(__file__).parents[2]))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (code, 'RunPlot("run")')])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=resources).execute()
    trained, plot = (cell["outputs"] for cell in book["cells"])
    lines = [text(output["data"]["text/html"]) for output in trained if output["output_type"] == "display_data"]
    printed = "".join(output.get("text", "") for output in trained if output["output_type"] == "stream")
    assert len(lines) == 1 and re.match(r"epoch 2/2 .*100 % .*batch \d+ .*loss \d", lines[0])
    assert "epoch 2/2 done" in printed and "finished after" in printed
    assert plot[-1]["data"]["text/html"].startswith("<iframe ") and "finished" in plot[-1]["data"]["text/plain"]
