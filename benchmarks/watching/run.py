"""What seeing a run costs it: the log in the training process, and watchers beside it.

    python benchmarks/watching/run.py [--seconds 20]

Turns of steps with and without the log take turns in one process; the ratio is of processor time. Watchers run in
processes of their own while a log is written at ten steps a second; their figure is their share of one core.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import swell
from swell.core.events import Event, RunStarted, Stepped
from swell.telemetry import EventLog, write_report
from swell.version import __version__

STEPS_A_TURN = 40
TICKS = os.sysconf("SC_CLK_TCK")


class Switch:
    """Passes events on to the log in every other turn, and adds up the processor time of that."""

    def __init__(self, path: Path) -> None:
        self.log, self.on, self.spent_s, self.events = EventLog(path, small=True), True, 0.0, 0

    def emit(self, event: Event) -> None:
        if self.on:
            began = time.process_time()
            self.log.emit(event)
            self.spent_s += time.process_time() - began
            self.events += 1

    def close(self) -> None:
        self.log.close()


def logging_cost(folder: Path, *, turns: int, width: int) -> dict[str, Any]:
    """Processor time of turns with the log over turns without it, and of the log alone."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    count = STEPS_A_TURN * (2 * turns + 2) * 64
    data = TensorDataset(torch.randn(64, 64).repeat(count // 64, 1), torch.randint(10, (count,)))
    switch, times = Switch(folder / "events.jsonl"), {True: [], False: []}
    with swell.Job(batch=64, sinks=[switch], progress=False, save=None, device="cpu") as job:
        job.wrap(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
        loader = job.loader(data)
        began, spent = time.process_time(), 0.0
        for _ in job.epochs(1):
            for x, y in loader:
                job.backward(nn.functional.cross_entropy(model(x), y))
                if job.step() and job.steps % STEPS_A_TURN == 0:  # a measured step has several micro-batches
                    now = time.process_time()
                    if job.steps > 2 * STEPS_A_TURN:
                        times[switch.on].append((now - began) / STEPS_A_TURN)
                        spent += switch.spent_s if switch.on else 0.0
                    switch.on, switch.spent_s, began = not switch.on, 0.0, time.process_time()
        del optimizer
    ratios = [on / off for on, off in zip(times[True], times[False], strict=False)]
    step_s = statistics.median(times[False])
    emit_s = spent / (len(times[True]) * STEPS_A_TURN)
    spread = sorted(ratios)
    return {
        "step_ms": round(1000 * step_s, 3),
        "log_us": round(1e6 * emit_s, 1),
        "log_share": round(emit_s / step_s, 5),
        "ratio": round(statistics.median(ratios), 4),
        "ratio_quartiles": [round(spread[len(spread) // 4], 4), round(spread[3 * len(spread) // 4], 4)],
        "turns": len(ratios),
    }


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def fill(log: EventLog, *, first: int, last: int, live: bool) -> None:
    """Steps of an invented run, all at once or ten a second."""
    for step in range(first, last):
        log.emit(
            Stepped(
                time=time.time(), step=step, epoch=0, samples=64 * step, global_batch=64, replicas=2, micro_batch=32,
                accumulation=1, lr=(0.1,), lr_factor=(1.5,), gain=1.5, progress=1.5 * step, step_s=0.1,
                loss=1 + 1 / step, noise_scale=300.0 + step % 7, noise_low=200.0, noise_high=400.0, data_s=0.001,
                measured=step % 16 == 0,
            )
        )  # fmt: skip
        if live:
            time.sleep(0.1)


def watcher_cost(folder: Path, line: list[str], *, seconds: float, steps_before: int, stream: bool) -> float:
    """The share of one core that a watcher takes while a run of so many steps goes on."""
    log = EventLog(folder / "run" / "events.jsonl", small=True)
    start = {"version": __version__, "base_batch": 64, "policy": "Fixed(64)", "rule": "auto", "seed": 0, "samples": 0}
    log.emit(RunStarted(time=time.time(), replicas=2, **start))
    fill(log, first=1, last=steps_before, live=False)
    watcher = subprocess.Popen([sys.executable, "-m", "swell", *line], stdout=subprocess.PIPE, text=True)
    try:
        if stream:
            assert watcher.stdout is not None
            url = watcher.stdout.readline().rpartition(" ")[2].strip()
            threading.Thread(target=follow, args=(url,), daemon=True).start()
        else:
            threading.Thread(target=watcher.stdout.read, daemon=True).start()  # type: ignore[union-attr]
        fill(log, first=steps_before, last=steps_before + 50, live=True)  # meanwhile it reads what was there
        began, used = time.monotonic(), processor_s(watcher.pid)
        fill(log, first=steps_before + 50, last=steps_before + 50 + int(10 * seconds), live=True)
        return (processor_s(watcher.pid) - used) / (time.monotonic() - began)
    finally:
        watcher.kill()
        watcher.wait()
        log.close()


def follow(url: str) -> None:
    """Read the stream of a dashboard, as its page does."""
    place, _, token = url.partition("/?token=")
    connection = http.client.HTTPConnection(place.removeprefix("http://"))
    connection.request("GET", "/api/stream?run=run", headers={"X-Swell-Token": token})
    reply = connection.getresponse()
    while reply.read1(65536):
        pass


def report_cost(folder: Path, *, steps: int) -> dict[str, Any]:
    """Seconds and size of the report of a long run."""
    log = EventLog(folder / "long" / "events.jsonl", small=True)
    fill(log, first=1, last=steps + 1, live=False)
    log.close()
    began = time.process_time()
    path = write_report([folder / "long"], folder / "report.html")
    return {
        "steps": steps,
        "log_mb": round(sum(part.stat().st_size for part in (folder / "long").iterdir()) / 1e6, 2),
        "report_kb": round(path.stat().st_size / 1000),
        "write_s": round(time.process_time() - began, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What seeing a run costs it.")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each watcher is measured")
    parser.add_argument("--turns", type=int, default=60, help="pairs of turns with and without the log")
    args = parser.parse_args()
    result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result["logging"] = [
            logging_cost(folder / str(width), turns=args.turns, width=width) for width in (256, 1024, 2048)
        ]
        options: dict[str, Any] = {"seconds": args.seconds, "steps_before": 20_000}
        watch = ["watch", str(folder / "a" / "run"), "--json", "--every", "0.25"]
        result["watch_share"] = round(watcher_cost(folder / "a", watch, stream=False, **options), 4)
        served = ["dashboard", str(folder / "b")]
        (folder / "b").mkdir()
        result["dashboard_share"] = round(watcher_cost(folder / "b", served, stream=True, **options), 4)
        result["report"] = report_cost(folder, steps=50_000)
    assert math.isfinite(result["watch_share"])
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
