"""How long training stands still on a Ray cluster when nodes come, are drained and die: swell in place, and Ray Train.

Nodes are processes of this machine (``ray.cluster_utils.Cluster``). Run it in the environment of `make test-ray`.
Writes ray_pauses.json.

    .venv-ray/bin/python benchmarks/machines/ray_pauses.py [--rounds 5] [--only swell|ray]
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.machines.pauses import stood_still
from tests.machines.cluster import TRAINING
from tests.ray.ray_cluster import RayNodes, RayRun

RAY_TRAIN = Path(__file__).with_name("ray_train_elastic.py")
Found = dict[str, list[float]]


def in_place(nodes: RayNodes, rounds: int) -> Found:
    """Three nodes; node 0 keeps its worker, whose pauses are taken. Every event is followed by a join."""
    found: Found = defaultdict(list)
    first, second, third = nodes.keep(3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with RayRun(folder, nodes, (str(TRAINING), name, "100000", "0.02")) as run:
            run.begin("--grace", "30", "--show", "none", "--max-restarts", "1000", workers="1:3")
            run.wait_for_world(3)
            [pid] = run.workers_on(first)

            def joined(since: float) -> None:
                run.wait_for_world(3)
                found["node joins"].append(stood_still(run, pid, since, before=2, after=3))
                run.wait_for_steps(5, replicas=3)

            for number in range(rounds):
                run.wait_for_steps(5, replicas=3)
                now = time.time()
                os.kill(run.workers_on(second)[0], signal.SIGKILL)
                found["SIGKILL of a worker"].append(stood_still(run, pid, now, before=3, after=2))
                joined(now)
                now = time.time()
                nodes.drain(second, seconds=60)
                found["node drained"].append(stood_still(run, pid, now, before=3, after=2))
                nodes.remove(second)
                second = nodes.add()
                joined(now)
                now = time.time()
                run.lose(third)
                found["node lost"].append(stood_still(run, pid, now, before=3, after=2))
                third = nodes.add()
                joined(now)
                print(number, {name: round(values[-1], 3) for name, values in found.items()}, flush=True)
            report = run.report()
            assert (report.lost, report.repeated) == (0, 0), report
    return found


def ray_train(nodes: RayNodes, rounds: int) -> Found:
    """Two nodes; one is lost and comes back. The time from the last step in one world to the first in the next."""
    found: Found = defaultdict(list)
    _, second = nodes.keep(2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "driver.out").open("w") as output:
            line = [sys.executable, str(RAY_TRAIN), name, nodes.address]
            driver = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT)

        def wait_for_change(since: float, *, before: int, after: int) -> float:
            deadline = time.monotonic() + 400
            while time.monotonic() < deadline and driver.poll() is None:
                steps = read_steps(folder)
                late = [each["time"] for each in steps if each["replicas"] == after and each["time"] > since]
                early = [each["time"] for each in steps if each["replicas"] == before]
                if late:
                    return min(late) - max((each for each in early if each < min(late)), default=since)
                time.sleep(0.2)
            raise AssertionError((folder / "driver.out").read_text()[-4000:])

        try:
            wait_for_change(0.0, before=1, after=2)
            for number in range(rounds):
                time.sleep(5)
                now = time.time()
                nodes.remove(second)
                found["node lost"].append(wait_for_change(now, before=2, after=1))
                time.sleep(5)
                now = time.time()
                second = nodes.add()
                found["node joins"].append(wait_for_change(now, before=1, after=2))
                print(number, {name: round(values[-1], 3) for name, values in found.items()}, flush=True)
        finally:
            driver.kill()
            driver.wait()
    return found


def read_steps(folder: Path) -> list[dict[str, float]]:
    lines = [line for path in folder.glob("steps-*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["swell", "ray"])
    args = parser.parse_args()
    measures = {"swell": in_place, "ray": ray_train}
    found: dict[str, Found] = {name: defaultdict(list) for name in measures if args.only in (None, name)}
    for _ in range(args.rounds):  # both in turn, each on a cluster of its own
        for name in found:
            nodes = RayNodes()
            try:
                for event, values in measures[name](nodes, 1).items():
                    found[name][event] += values
            finally:
                nodes.close()
    path = Path(__file__).with_name("ray_pauses.json")
    results = json.loads(path.read_text()) if path.exists() else {}
    facts = {"date": time.strftime("%Y-%m-%d"), "machine": platform.machine(), "cores": os.cpu_count()}
    for name, events in found.items():
        rounded = {event: [round(value, 4) for value in values] for event, values in events.items()}
        results[name] = {**facts, "seconds": rounded}
    path.write_text(json.dumps(results, indent=1) + "\n")
    for name, result in results.items():
        for event, values in result["seconds"].items():
            middle = f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
            print(f"{name:6} {event:24} {middle}, {len(values)} times")


if __name__ == "__main__":
    main()
