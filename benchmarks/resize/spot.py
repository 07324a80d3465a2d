"""A real model on a real spot market: its accuracy after a replayed trace against that of the undisturbed run.

SWELL_DATA=/path/to/data python benchmarks/resize/spot.py [--seeds 3] [--trace trace.csv] [--out spot.json]

The trace is that of 32 p3 nodes on AWS (Bamboo, SWELL_DATA/traces/spot_bamboo.tar.gz): hours 5 to 8 of it, ten nodes as
one worker, played in the time the undisturbed run took. Workers the market takes away are killed without notice.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import about

from swell.core.events import Resized, StepSkipped
from swell.supervisor.worker_trace import WorkerTrace, read_worker_trace
from swell.telemetry import read_events, series_of

HERE = Path(__file__).parent
NODES_A_WORKER = 10
MOST = 3  # workers
FROM_S, TO_S = 5 * 3600.0, 8 * 3600.0  # of the trace: in 11 hours there are more changes than a short run can follow


def market(given: Path | None, scratch: Path) -> tuple[WorkerTrace, str]:
    """The trace to play, in workers, and its name."""
    if given is None and "SWELL_DATA" in os.environ:
        with tarfile.open(Path(os.environ["SWELL_DATA"]) / "traces" / "spot_bamboo.tar.gz") as archive:
            member = next(name for name in archive.getnames() if name.endswith("p3-trace.csv"))
            archive.extract(member, scratch, filter="data")
            given, name = scratch / member, f"spot_bamboo: {member}"
    elif given is not None:
        name = given.name
    else:
        name = "made up, for SWELL_DATA is not set"
        given = scratch / "made-up.csv"
        given.write_text("".join(f"{1000 * i},{NODES_A_WORKER * (1 + i * i % 4)}\n" for i in range(40)))
    trace = read_worker_trace(given)
    changes = [
        (at - FROM_S, min(MOST, max(1, count // NODES_A_WORKER)))
        for at, count in [(FROM_S, trace.at(FROM_S)), *zip(trace.times_s, trace.workers, strict=True)]
        if FROM_S <= at < TO_S
    ]
    return WorkerTrace(tuple(at for at, _ in changes), tuple(workers for _, workers in changes)), name


def train(folder: Path, seed: int, trace: Path | None, *, speed: float) -> dict[str, Any]:
    """One run to its end; what came of it."""
    workers = ["--workers", "1"]
    if trace is not None:
        workers = ["--workers", f"1:{MOST}", "--trace", str(trace), "--trace-speed", str(speed)]
    options = ["--run-dir", str(folder), "--show", "none", "--max-restarts", "999", "--trace-removals", "kill"]
    line = [
        sys.executable,
        "-m",
        "swell",
        "run",
        *options,
        *workers,
        str(HERE / "spot_train.py"),
        str(folder),
        str(seed),
    ]
    with (folder / "terminal.txt").open("w") as output:
        subprocess.run(line, check=True, stdout=output, stderr=subprocess.STDOUT, timeout=900)
    events = list(read_events(folder / "events.jsonl"))
    run = series_of(events)
    resizes = [event for event in events if isinstance(event, Resized)]
    return {
        **json.loads((folder / "result.json").read_text()),
        "training_s": round(run.time[-1] - run.time[0], 1),
        "steps": run.steps,
        "samples": int(run.samples[-1]),
        "worlds": sorted({int(count) for count in run.replicas}),
        "mean_workers": round(float((run.replicas * run.global_batch).sum() / run.global_batch.sum()), 2),
        "resizes": len(resizes),
        "killed": sum(event.after < event.before and "lost" in event.reason for event in resizes),
        "steps_done_again": sum(isinstance(event, StepSkipped) and event.redone for event in events),
        "median_pause_s": round(statistics.median([event.pause_s or 0.0 for event in resizes] or [0.0]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trace", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("spot.json"))
    args = parser.parse_args()
    began, loads = time.strftime("%Y-%m-%d %H:%M"), [os.getloadavg()[0]]
    found: dict[str, list[dict[str, Any]]] = {"undisturbed": [], "spot": []}
    with tempfile.TemporaryDirectory() as scratch:
        trace, name = market(args.trace, Path(scratch))
        played = Path(scratch) / "workers.csv"
        played.write_text("".join(f"{t},{n}\n" for t, n in zip(trace.times_s, trace.workers, strict=True)))
        for seed in range(args.seeds):
            for kind in found:
                folder = Path(scratch) / f"{kind}-{seed}"
                folder.mkdir()
                speed = (TO_S - FROM_S) / found["undisturbed"][-1]["training_s"] if kind == "spot" else 1.0
                found[kind].append(train(folder, seed, played if kind == "spot" else None, speed=speed))
                loads.append(os.getloadavg()[0])
                print(f"{kind:12} seed {seed}: {json.dumps(found[kind][-1])}  load {loads[-1]:.1f}", flush=True)
    means = {kind: statistics.mean(run["accuracy"] for run in runs) for kind, runs in found.items()}
    spread = {
        kind: statistics.stdev([run["accuracy"] for run in runs]) if len(runs) > 1 else None
        for kind, runs in found.items()
    }
    print(f"accuracy {means['spot']:.4f} on the spot market, {means['undisturbed']:.4f} undisturbed")
    record = {
        **about(began, loads),
        "trace": name,
        "mean_accuracy": means,
        "standard_deviation": spread,
        "runs": found,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
