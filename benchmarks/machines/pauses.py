"""How long survivors stand still when machines come, leave and die: three network namespaces as three machines.

Needs root on Linux, because it makes network namespaces; nothing outside them is touched. Writes pauses.json.

    python benchmarks/machines/pauses.py [--rounds 5] [--network-timeout 0.3]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.machines.cluster import TRAINING, Cluster, Namespaces, why_no_namespaces


def stood_still(run: Cluster, pid: int, since: float, *, before: int, after: int) -> float:
    """From a survivor's last step in the world of one size to its first in the next, less its usual step."""

    def changes() -> list[tuple[float, float]]:
        mine = [each for each in run.steps() if each["pid"] == pid]
        pairs = [(a, b) for a, b in pairwise(mine) if b["time"] > since]
        return [(a["time"], b["time"]) for a, b in pairs if (a["replicas"], b["replicas"]) == (before, after)]

    last, first = run.wait_for(changes)[0]
    mine = [each for each in run.steps() if each["pid"] == pid]
    usual = [b["time"] - a["time"] for a, b in pairwise(mine) if a["replicas"] == b["replicas"]]
    return max(0.0, first - last - statistics.median(usual))


def measure(rounds: int, network_timeout_s: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name, Namespaces(3) as machines:
        folder = Path(name)
        with Cluster(folder, machines, (str(TRAINING), name, "100000", "0.02")) as run:
            options = ("--network-timeout", str(network_timeout_s), "--grace", "10", "--show", "none")
            run.begin(*options, "--max-restarts", "1000")
            pid = run.wait_for_world(1)["workers"][0]["pid"]
            run.join(1)
            run.wait_for_world(2)
            run.join(2)
            run.wait_for_world(3)

            def back(since: float) -> None:
                run.wait_for_world(3)
                found["machine joins"].append(stood_still(run, pid, since, before=2, after=3))
                run.wait_for_steps(5, replicas=3)

            for number in range(rounds):
                run.wait_for_steps(5, replicas=3)
                now = time.time()
                os.kill(run.pids_on(1)[0], signal.SIGKILL)
                found["SIGKILL of a worker"].append(stood_still(run, pid, now, before=3, after=2))
                back(now)
                now = time.time()
                run.agents[1].send_signal(signal.SIGTERM)
                found["notice to a machine"].append(stood_still(run, pid, now, before=3, after=2))
                run.agents[1].wait(60)
                run.join(1)
                back(now)
                now = time.time()
                run.agents[2].kill()
                found["SIGKILL of an agent"].append(stood_still(run, pid, now, before=3, after=2))
                run.join(2)
                back(now)
                now = time.time()
                machines.cut(2)
                found["link of a machine down"].append(stood_still(run, pid, now, before=3, after=2))
                machines.mend(2)  # its agent comes back by itself
                back(now)
                print(number, {name: round(values[-1], 3) for name, values in found.items()}, flush=True)
            run.head.kill() if run.head is not None else None
            now = time.time()
            run.resume()
            run.wait_for(lambda: run.steps()[-1]["time"] > now + 1 and run.status().get("state") == "training")
            late = [each["time"] for each in run.steps() if each["time"] > now + 1]
            found["SIGKILL of the head, until the resumed run trains"].append(late[0] - now)
            report = run.report()
            assert (report.lost, report.repeated) == (0, 0), report
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--network-timeout", type=float, default=0.3)
    args = parser.parse_args()
    if why_no_namespaces():
        sys.exit(why_no_namespaces())
    load = os.getloadavg()[0]
    found = measure(args.rounds, args.network_timeout)
    for name, values in found.items():
        print(f"{name:52} {statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f}), {len(values)} times")
    facts = {"date": time.strftime("%Y-%m-%d"), "machine": platform.machine(), "cores": os.cpu_count()}
    facts |= {"load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1)}
    rounded = {name: [round(value, 4) for value in values] for name, values in found.items()}
    result = {**facts, "network_timeout_s": args.network_timeout, "seconds": rounded}
    Path(__file__).with_name("pauses.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
