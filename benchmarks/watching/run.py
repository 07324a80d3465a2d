"""What seeing a run costs it: the log in the training process, watchers beside it, and the report of a long run.

    python benchmarks/watching/run.py [--seconds 20] [--turns 10]

Turns of steps with and without the log take turns in one process, and so do turns with watchers that read and watchers
that are stopped. Times are of the processor, because the machine may be shared. Needs Chromium for the last figure.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import swell
from swell.core.events import Event, RunStarted
from swell.telemetry import EventLog, write_report
from swell.version import __version__

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.browser import CHROMIUM, Browser
from tests.telemetry.runs import an_eventful_run, stepped

# How wide a perceptron is whose step takes about that long, and how many steps are a turn.
STEPS = {"5 ms": (384, 200), "20 ms": (1024, 50), "100 ms": (2560, 15)}
TICKS = os.sysconf("SC_CLK_TCK")
START = {"version": __version__, "base_batch": 64, "policy": "Fixed(64)", "rule": "auto", "seed": 0, "samples": 0}


class Switch:
    """Passes events on to a log while it is on, and adds up the processor time of that in the training thread."""

    def __init__(self, path: Path) -> None:
        self.log, self.on, self.spent_s = EventLog(path, small=True), True, 0.0

    def emit(self, event: Event) -> None:
        if self.on:
            before, began = time.thread_time(), time.thread_time()
            self.log.emit(event)
            self.spent_s += time.thread_time() - began - (began - before)  # without the clock's own time

    def close(self) -> None:
        self.log.close()


def log_thread_s() -> float:
    """The processor time of the log's own thread so far."""
    threads = [thread for thread in threading.enumerate() if thread.name == "swell-log" and thread.ident is not None]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0)) for thread in threads)


def train(steps: str, turns: int, sinks: list[Any], run_dir: Path | None, after_turn: Callable[[], None]) -> None:
    """A job of so many turns of such steps; ``after_turn`` is called after each turn."""
    width, in_turn = STEPS[steps]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    count = in_turn * turns * 64
    data = TensorDataset(torch.randn(64, 64).repeat(count // 64, 1), torch.randint(10, (count,)))
    with swell.Job(run_dir, batch=64, sinks=sinks, progress=False, save=None, device="cpu") as job:
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
        loader = job.loader(data)
        for _ in job.epochs(1):
            for x, y in loader:
                job.backward(nn.functional.cross_entropy(model(x), y))
                if job.step() and job.steps % in_turn == 0:  # a measured step has several micro-batches
                    after_turn()


def middle(values: list[float]) -> dict[str, Any]:
    ordered = sorted(values)
    quartiles = [round(ordered[len(ordered) // 4], 4), round(ordered[3 * len(ordered) // 4], 4)]
    return {"ratio": round(statistics.median(ordered), 4), "quartiles": quartiles, "turns": len(ordered)}


def logging_cost(folder: Path, steps: str, *, turns: int) -> dict[str, Any]:
    """Processor time of turns with the log over turns without it, and of the log alone in both threads."""
    switch, times, walls = Switch(folder / "events.jsonl"), {True: [], False: []}, {True: [], False: []}
    spent, began, beside, in_turn, number = [0.0, 0.0], time.process_time(), 0.0, STEPS[steps][1], 0
    wall_began = time.perf_counter()

    def after_turn() -> None:
        nonlocal number, began, beside, wall_began
        number += 1
        here = time.thread_time()
        switch.log.flush()  # what the thread would do next belongs to this turn
        here, now, thread = time.thread_time() - here, time.process_time(), log_thread_s()
        if number > 2:
            times[switch.on].append((now - began) / in_turn)
            walls[switch.on].append((time.perf_counter() - wall_began) / in_turn)
            if switch.on:
                spent[0] += switch.spent_s
                spent[1] += thread - beside + here
        switch.on, switch.spent_s = not switch.on, 0.0
        beside, began, wall_began = log_thread_s(), time.process_time(), time.perf_counter()

    train(steps, 2 * turns + 2, [switch], None, after_turn)
    ratios = [on / off for on, off in zip(times[True], times[False], strict=False)]
    step_s, wall_s = statistics.median(times[False]), statistics.mean(walls[True])
    logged = len(times[True]) * in_turn
    return {
        "step_ms": round(1000 * step_s, 2),  # of the processor
        "wall_ms": round(1000 * wall_s, 2),  # longer, where other programs have the processor too
        "training_thread_us": round(1e6 * spent[0] / logged, 1),
        "log_thread_us": round(1e6 * spent[1] / logged, 1),
        "training_thread_share": round(spent[0] / logged / step_s, 6),  # of the step's processor time
        "log_thread_share": round(spent[1] / logged / wall_s, 6),  # of the wall's, by which it wakes up
        **middle(ratios),
    }


@contextlib.contextmanager
def watching(line: list[str], *, stream: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A watcher in a process of its own; with ``stream`` that run of a dashboard is followed, as its page does."""
    watcher = subprocess.Popen([sys.executable, "-m", "swell", *line], stdout=subprocess.PIPE, text=True)
    assert watcher.stdout is not None
    try:
        if stream is not None:
            url = watcher.stdout.readline().rpartition(" ")[2].strip()
            threading.Thread(target=follow, args=(url, stream), daemon=True).start()
        else:
            threading.Thread(target=watcher.stdout.read, daemon=True).start()
        yield watcher
    finally:
        watcher.send_signal(signal.SIGCONT)
        watcher.kill()
        watcher.wait()


def follow(url: str, run: str) -> None:
    place, _, token = url.partition("/?token=")
    connection = http.client.HTTPConnection(place.removeprefix("http://"))
    connection.request("GET", f"/api/stream?run={run}", headers={"X-Swell-Token": token})
    reply = connection.getresponse()
    with contextlib.suppress(OSError, ValueError):
        while reply.read1(65536):
            pass


def watched_cost(folder: Path, steps: str, *, turns: int) -> dict[str, Any]:
    """Processor time of a training process while `swell watch` and `swell dashboard` read its log, over while not."""
    EventLog(folder / "run" / "events.jsonl", small=True).close()
    times, on, number, began = {True: [], False: []}, True, 0, 0.0
    with (
        watching(["watch", str(folder / "run"), "--json", "--every", "0.25"]) as watch,
        watching(["dashboard", str(folder)], stream="run") as dashboard,
    ):

        def after_turn() -> None:
            nonlocal on, number, began
            number += 1
            if number > 4:
                times[on].append((time.process_time() - began) / STEPS[steps][1])
            on = not on
            for watcher in (watch, dashboard):
                watcher.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
            began = time.process_time()

        train(steps, 2 * turns + 4, [], folder / "run", after_turn)
        assert watch.poll() is None or watch.returncode == 0
        assert dashboard.poll() is None
    ratios = [on / off for on, off in zip(times[True], times[False], strict=False)]
    return {"step_ms": round(1000 * statistics.median(times[False]), 2), **middle(ratios)}


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def fill(log: EventLog, *, first: int, last: int, live: bool) -> None:
    """Steps of an invented run, all at once or ten a second."""
    for step in range(first, last):
        log.emit(
            stepped(
                time=time.time(), step=step, samples=64 * step, lr_factor=(1.5,), gain=1.5, progress=1.5 * step,
                step_s=0.1, loss=1 + 1 / step, noise_scale=300.0 + step % 7, noise_low=200.0, noise_high=400.0,
                data_s=0.001, measured=step % 16 == 0,
            )
        )  # fmt: skip
        if live:
            time.sleep(0.1)


def watcher_share(folder: Path, line: list[str], *, seconds: float, stream: str | None = None) -> float:
    """The share of one core that a watcher takes while a run with 20,000 steps behind it takes ten a second."""
    log = EventLog(folder / "run" / "events.jsonl", small=True)
    log.emit(RunStarted(time=time.time(), replicas=2, **START))
    fill(log, first=1, last=20_000, live=False)
    with watching(line, stream=stream) as watcher:
        fill(log, first=20_000, last=20_050, live=True)  # meanwhile it reads what was there
        began, used = time.monotonic(), processor_s(watcher.pid)
        fill(log, first=20_050, last=20_050 + int(10 * seconds), live=True)
        share = (processor_s(watcher.pid) - used) / (time.monotonic() - began)
    log.close()
    return round(share, 4)


def report_cost(folder: Path, *, steps: int) -> dict[str, Any]:
    """The log and the report of a long run in which everything happens, and how long a browser takes to draw it."""
    log = EventLog(folder / "long" / "events.jsonl", small=True)
    for event in an_eventful_run(steps, step_s=0.07):
        log.emit(event)
    log.close()
    began = time.process_time()
    path = write_report([folder / "long"], folder / "report.html")
    result = {
        "steps": steps,
        "log_kb": round(sum(part.stat().st_size for part in (folder / "long").iterdir()) / 1000),
        "write_s": round(time.process_time() - began, 2),
        "report_kb": round(path.stat().st_size / 1000),
    }
    return {**result, "drawn_s": draw_times(folder, path) if CHROMIUM is not None else None}


def draw_times(folder: Path, path: Path) -> list[float]:
    """Seconds from the request for the page until all its charts are painted, five times in one browser."""
    done = "new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(performance.now() / 1000))))"
    times = []
    with Browser(folder) as browser:
        for _ in range(5):
            browser.open("about:blank")
            browser.open(path.as_uri())
            times.append(round(browser.run(done), 2))
            assert browser.run("document.querySelectorAll('.chart canvas').length") == 7
    return sorted(times)


def hour(folder: Path) -> dict[str, int]:
    """Bytes of the log of one hour at ten steps a second, in which every step is different and everything happens."""
    events = list(an_eventful_run(36_000, step_s=0.1))
    paused_s = 300.8  # between its two starts and in its resizes, whatever a step takes
    step_s = 0.1 * 3600 / (events[-1].time - events[0].time - paused_s)
    log = EventLog(folder / "hour" / "events.jsonl", small=True)
    for event in an_eventful_run(36_000, step_s=step_s):
        log.emit(event)
    log.close()
    return {"steps": 36_000, "bytes": log.path.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description="What seeing a run costs it.")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each watcher is measured")
    parser.add_argument("--turns", type=int, default=10, help="pairs of turns with and without the log")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "torch": torch.__version__,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result["log_of_an_hour"] = hour(folder)
        result["report"] = report_cost(folder, steps=50_000)
        result["logging"] = {}
        for steps in STEPS:
            result["logging"][steps] = logging_cost(folder / steps, steps, turns=args.turns)
        result["watched"] = watched_cost(folder / "watched", "20 ms", turns=args.turns)
        watch = ["watch", str(folder / "a" / "run"), "--json", "--every", "0.25"]
        (folder / "b").mkdir()
        result["watch_share"] = watcher_share(folder / "a", watch, seconds=args.seconds)
        served = ["dashboard", str(folder / "b")]
        result["dashboard_share"] = watcher_share(folder / "b", served, seconds=args.seconds, stream="run")
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
