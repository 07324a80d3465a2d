"""How long training stands still when workers join, leave or die: under swell run, and under torchrun.

python benchmarks/resize/run.py [--repeats 5] [--out result.json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from model import read_notes
from processes import (
    HERE,
    about,
    free_port,
    kill,
    lull_of_restart,
    lull_of_survivors,
    started,
    swell_run,
    torchrun,
    torchrun_variables,
    usual,
    wait_for,
)

from swell.supervisor.control import ask

FEW, MANY = 2, 3  # workers before a join and after it
SETTLE = 15  # steps between two events
Figures = dict[str, list[dict[str, float]]]


def steady(folder: Path, replicas: int) -> None:
    """Wait until this many workers have done a few steps together."""
    begun = len(read_notes(folder))

    def reached(notes: list[dict[str, Any]]) -> bool:
        recent = notes[begun:][-SETTLE * replicas :]
        return len(recent) >= SETTLE * replicas and all(note["replicas"] == replicas for note in recent)

    wait_for(folder, reached)


def swell_joins_and_leaves(folder: Path, repeats: int) -> Figures:
    """A worker joins, then one gets SIGTERM, again and again."""
    figures: Figures = {"join": [], "leave": []}
    with started(swell_run(folder, "--workers", f"{FEW}:{MANY}", "--start", str(FEW)), folder):
        steady(folder, FEW)
        for _ in range(repeats):
            since = time.time()
            ask(folder, "resize", workers=MANY)
            figures["join"].append(
                wait_for(folder, lambda notes, t=since: lull_of_survivors(notes, since=t, before=FEW, after=MANY))
            )
            steady(folder, MANY)
            leaver = next(worker for worker in ask(folder, "status")["workers"] if worker["rank"] == MANY - 1)
            since = time.time()
            os.kill(leaver["pid"], signal.SIGTERM)
            figures["leave"].append(
                wait_for(folder, lambda notes, t=since: lull_of_survivors(notes, since=t, before=MANY, after=FEW))
            )
            steady(folder, FEW)
        figures["join"][0]["usual_step_s"] = usual(read_notes(folder))
    return figures


def swell_kills(folder: Path, repeats: int, where: str) -> list[dict[str, float]]:
    """Rank 1 is killed, another worker joins in its place, again and again."""
    found = []
    with started(swell_run(folder, "--workers", f"{FEW}:{MANY}", "--start", str(MANY)), folder):
        for _ in range(repeats):
            steady(folder, MANY)
            victim = next(worker for worker in ask(folder, "status")["workers"] if worker["rank"] == 1)
            since = kill(folder, victim["pid"], where)
            found.append(
                wait_for(folder, lambda notes, t=since: lull_of_survivors(notes, since=t, before=MANY, after=FEW))
            )
    return found


def torchrun_joins_and_leaves(folder: Path, repeats: int) -> Figures:
    """A node joins, then its agent gets SIGTERM, again and again."""
    figures: Figures = {"join": [], "leave": []}
    port, script = free_port(), [str(HERE / "plain.py"), str(folder)]
    line = torchrun(f"{FEW}:{MANY}", per_node=1, port=port, script=script)
    with contextlib.ExitStack() as stack:
        for _ in range(FEW):
            stack.enter_context(started(line, folder, torchrun_variables()))
            time.sleep(0.5)  # the first one hosts the store
        steady(folder, FEW)
        for _ in range(repeats):
            since = time.time()
            with started_alone(line, folder) as third:
                figures["join"].append(wait_for(folder, lambda notes, t=since: lull_of_restart(notes, since=t)))
                steady(folder, MANY)
                since = time.time()
                third.send_signal(signal.SIGTERM)
                figures["leave"].append(wait_for(folder, lambda notes, t=since: lull_of_restart(notes, since=t)))
            steady(folder, FEW)
    return figures


@contextlib.contextmanager
def started_alone(line: list[str], folder: Path):
    """A process that ends by itself, and is killed only if it has not."""
    with (folder / "third.txt").open("ab") as output:
        environ = {**torchrun_variables(), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(line, env=environ, stdout=output, stderr=subprocess.STDOUT, cwd=HERE)
    try:
        yield process
    finally:
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def torchrun_kills(folder: Path, repeats: int, where: str) -> list[dict[str, float]]:
    """A worker is killed, again and again; its agent lives, so that no node has to be missed first."""
    line = torchrun(str(MANY), per_node=MANY, port=free_port(), script=[str(HERE / "plain.py"), str(folder)])
    found = []
    with started(line, folder, torchrun_variables()):
        for _ in range(repeats):
            steady(folder, MANY)
            since = kill(folder, read_notes(folder)[-1]["pid"], where)
            found.append(wait_for(folder, lambda notes, t=since: lull_of_restart(notes, since=t)))
    return found


def torchrun_lost_nodes(folder: Path, repeats: int) -> list[dict[str, float]]:
    """An agent and its worker are killed: the others have to miss its heartbeat first."""
    port, script = free_port(), [str(HERE / "plain.py"), str(folder)]
    line = torchrun(f"{FEW}:{MANY}", per_node=1, port=port, script=script)
    found = []
    with contextlib.ExitStack() as stack:
        for _ in range(FEW):
            stack.enter_context(started(line, folder, torchrun_variables()))
            time.sleep(0.5)
        steady(folder, FEW)
        for _ in range(repeats):
            with started_alone(line, folder) as third:
                steady(folder, MANY)
                pids = {note["pid"] for note in read_notes(folder)[-SETTLE:]}
                own = next(pid for pid in pids if parent(pid) == third.pid)
                since = time.time()
                third.kill()
                os.kill(own, signal.SIGKILL)
                found.append(wait_for(folder, lambda notes, t=since: lull_of_restart(notes, since=t)))
            steady(folder, FEW)
    return found


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def summary(found: list[dict[str, float]]) -> dict[str, Any]:
    still = [figures["stood_still_s"] for figures in found]
    return {
        "median_s": round(statistics.median(still), 3),
        "least_s": round(min(still), 3),
        "most_s": round(max(still), 3),
        "event_to_step_median_s": round(statistics.median(figures["event_to_step_s"] for figures in found), 3),
        "all_s": [round(value, 3) for value in still],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    args = parser.parse_args()
    loads, results = [os.getloadavg()[0]], {"swell run": {}, "torchrun": {}}
    began = time.strftime("%Y-%m-%d %H:%M")

    def note(side: str, event: str, found: list[dict[str, float]]) -> None:
        results[side][event] = summary(found)
        loads.append(os.getloadavg()[0])
        print(f"{side:10} {event:24} {json.dumps(results[side][event])}  load {loads[-1]:.1f}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        places = (Path(scratch) / str(number) for number in range(100))

        def place() -> Path:
            folder = next(places)
            folder.mkdir()
            return folder

        for side, measure in (("swell run", swell_joins_and_leaves), ("torchrun", torchrun_joins_and_leaves)):
            figures = measure(place(), args.repeats)
            note(side, "join", figures["join"])
            note(side, "leave with notice", figures["leave"])
        for event, where in (("SIGKILL between steps", "between"), ("SIGKILL in all-reduce", "reduce")):
            note("swell run", event, swell_kills(place(), args.repeats, where))
            note("torchrun", event, torchrun_kills(place(), args.repeats, where))
        note("torchrun", "node lost", torchrun_lost_nodes(place(), args.repeats))
    times = {
        event: round(results["torchrun"][event]["median_s"] / results["swell run"][event]["median_s"], 1)
        for event in results["swell run"]
    }
    print("times shorter:", times)
    record = {
        **about(began, loads),
        "repeats": args.repeats,
        "workers": {"few": FEW, "many": MANY},
        "results": results,
        "times_shorter": times,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
