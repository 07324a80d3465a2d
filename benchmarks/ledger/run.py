"""Time and memory to a shuffled order of n samples: swell's keyed permutation beside ``torch.randperm(n).tolist()``.

    python benchmarks/ledger/run.py

Every figure comes from fresh processes, several for each. Writes result.json beside this file and prints a table.
Linux only: peak memory is read from /proc.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
BILLION = 10**9
FIRST = 4096  # what a loader asks for before its first batch
REPEATS = 3
BLOCK = 10**6


def status_mb(field: str) -> float:
    """A memory figure of this process in MB (10^6 bytes)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"/proc/self/status has no {field}: run this benchmark on Linux.")


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Wall time and processor time of ``work``, and how far its peak of resident memory lies above the start."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = status_mb("VmRSS")
    start, cpu_start = time.perf_counter(), time.process_time()
    kept = work()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = status_mb("VmHWM") - before
    del kept
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_rss_mb": max(peak, 0.0)}


def swell_first(n: int) -> dict[str, float]:
    """From nothing but the imports to the first indices."""
    from swell.core.order import Shuffled

    return timed(lambda: Shuffled(n, seed=0, epoch=0).indices(0, FIRST))


def swell_first_traced(n: int) -> dict[str, float]:
    """The same with every allocation counted; the time is of no use then."""
    from swell.core.order import Shuffled

    tracemalloc.start()
    Shuffled(n, seed=0, epoch=0).indices(0, FIRST)
    return {"peak_allocated_mb": tracemalloc.get_traced_memory()[1] / 1e6}


def swell_sustained(n: int, span: int) -> dict[str, float]:
    """Indices a second on one core, in spans, after the first ones; the median of 20 million-index stretches."""
    from swell.core.order import Shuffled

    order = Shuffled(n, seed=0, epoch=0)
    order.indices(0, FIRST)
    rates = []
    for stretch in range(min(20, n // BLOCK)):
        start = time.process_time()
        for at in range(stretch * BLOCK, (stretch + 1) * BLOCK, span):
            order.indices(at, min(at + span, n))
        rates.append(BLOCK / (time.process_time() - start))
    return {"indices_per_cpu_s": statistics.median(rates)}


def torch_list(n: int) -> dict[str, float]:
    """What samplers do: the whole permutation, as a list of Python integers, before the first index."""
    import torch

    torch.set_num_threads(1)
    return timed(lambda: torch.randperm(n).tolist())


def torch_tensor(n: int) -> dict[str, float]:
    """The permutation alone, without the list."""
    import torch

    torch.set_num_threads(1)
    return timed(lambda: torch.randperm(n))


MEASURES: dict[str, tuple[Callable[..., dict[str, float]], tuple[int, ...]]] = {
    f"swell, first {FIRST:,} of 1e9": (swell_first, (BILLION,)),
    f"swell, first {FIRST:,} of 1e9, allocations": (swell_first_traced, (BILLION,)),
    "swell, sustained at 1e9, spans of 1e6": (swell_sustained, (BILLION, BLOCK)),
    "swell, sustained at 1e9, spans of 4096": (swell_sustained, (BILLION, FIRST)),
    "swell, sustained at 1e6, spans of 4096": (swell_sustained, (10**6, FIRST)),
    "torch.randperm(1e6).tolist()": (torch_list, (10**6,)),
    "torch.randperm(1e7).tolist()": (torch_list, (10**7,)),
    "torch.randperm(1e6)": (torch_tensor, (10**6,)),
    "torch.randperm(1e7)": (torch_tensor, (10**7,)),
    "torch.randperm(1e8)": (torch_tensor, (10**8,)),
}


def fresh(name: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", name]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def summary(name: str, repeats: int) -> dict[str, dict[str, float]]:
    runs = [fresh(name) for _ in range(repeats)]
    columns = {key: [run[key] for run in runs] for key in runs[0]}
    return {key: {"median": statistics.median(v), "min": min(v), "max": max(v)} for key, v in columns.items()}


def machine() -> dict[str, str | int]:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": cpu.partition(": ")[2] or platform.machine(),
        "cores": os.cpu_count() or 0,
        "load_average": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in ("numpy", "torch")},
    }


def extrapolated(results: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """``torch.randperm(1e9).tolist()`` by proportion from 1e7; it was not run, and would take longer than that."""
    measured = results["torch.randperm(1e7).tolist()"]
    return {key: 100 * measured[key]["median"] for key in ("cpu_seconds", "peak_rss_mb")}


def show(key: str, value: float) -> str:
    if key.endswith("seconds"):
        return f"{value * 1e3:,.2f} ms" if value < 1 else f"{value:,.1f} s"
    if key == "indices_per_cpu_s":
        return f"{value / 1e6:.1f} million/s"
    return f"{value:,.1f} MB"


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = ["| what | figure | median | lowest to highest |", "|---|---|---|---|"]
    for name, figures in results.items():
        for key, value in figures.items():
            around = f"{show(key, value['min'])} to {show(key, value['max'])}"
            lines.append(f"| {name} | {key} | {show(key, value['median'])} | {around} |")
    for key, value in extrapolated(results).items():
        lines.append(f"| torch.randperm(1e9).tolist(), **extrapolated** from 1e7 | {key} | {show(key, value)} | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", choices=MEASURES, help="make one measurement in this process and print it")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="fresh processes a figure")
    arguments = parser.parse_args()
    if arguments.measure:
        measure, sizes = MEASURES[arguments.measure]
        print(json.dumps(measure(*sizes)))
        return
    facts = machine()
    results = {name: summary(name, arguments.repeats) for name in MEASURES}
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": facts,
        "repeats": arguments.repeats,
        "results": results,
        "extrapolated": {"torch.randperm(1e9).tolist()": extrapolated(results)},
    }
    (HERE / "result.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"{record['date']}, {facts}\n\n{table(results)}")


if __name__ == "__main__":
    main()
