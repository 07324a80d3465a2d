"""Step time of a job against ``DistributedDataParallel``: same model, same workers, links of several speeds.

    python benchmarks/exchange/run.py [--workers 2 3] [--links loopback 1gbit 200mbit] [--steps 30] [--out result.json]

Workers are processes joined by gloo on the CPU. On the loopback they share it; on a link each of them is in a network
namespace of its own, behind a bridge, with its interface limited by ``tc``. The script makes the namespaces, removes
them, and skips links with a reason where it may not. The model is a chain of square layers with 33.6 MB of gradients.

Loops are held against each other in two ways. Together, in each worker all of them take turns of a few steps, so that
other work on the machine falls on all alike; but they share one heap, and where their gradients lie in it differs.
Apart, each runs in processes of its own, one after another, in several rounds, as a user would run it; there the peak
memory of the workers is read too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import swell

LINKS = {"loopback": None, "1gbit": ("1gbit", 0.0), "200mbit": ("200mbit", 1.0)}  # rate, delay in ms
KINDS = ("job", "job, statistics", "job, bfloat16")  # held against DistributedDataParallel
TURN, WARM_UP = 5, 2  # steps of a turn, turns that are not counted
PREFIX, NETWORK = "swellbench", "10.231.77"


def make_model(width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())), nn.Linear(width, 10)
    )


def ddp_loop(width: int, layers: int, data: TensorDataset, share: int) -> Iterator[None]:
    model = nn.parallel.DistributedDataParallel(make_model(width, layers), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        for x, y in DataLoader(data, batch_size=share, drop_last=True):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield


def job_loop(
    width: int, layers: int, data: TensorDataset, share: int, *, measured: bool = False, exchange: str = "exact"
) -> Iterator[None]:
    model = make_model(width, layers)
    job = swell.Job(
        batch=share * dist.get_world_size(),
        micro=share,
        rule="constant",
        statistics=swell.Statistics() if measured else False,
        exchange=exchange,
        progress=False,
        device="cpu",
    )
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader = job.loader(data, drop_last=True)
    for _ in job.epochs(10**6):
        for x, y in loader:
            job.backward(F.cross_entropy(model(x), y))
            if job.step():
                yield


def work(options: argparse.Namespace) -> None:
    """One worker: turns of all loops, timed together between barriers."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the job compares what the replicas read
    data = TensorDataset(torch.randn(8192, options.width), torch.randint(10, (8192,)))
    sizes = options.width, options.layers
    loops = {
        "ddp": lambda: ddp_loop(*sizes, data, options.share),
        "job": lambda: job_loop(*sizes, data, options.share),
        "job, statistics": lambda: job_loop(*sizes, data, options.share, measured=True),
        "job, bfloat16": lambda: job_loop(*sizes, data, options.share, exchange="bfloat16"),
    }
    loops = {name: make() for name, make in loops.items() if options.only in ("", name)}
    times: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(options.steps // TURN + WARM_UP):
        names = list(loops)[turn % len(loops) :] + list(loops)[: turn % len(loops)]
        for name in names:
            dist.barrier()
            began = time.perf_counter()
            for _ in range(TURN):
                next(loops[name])
            dist.barrier()
            if turn >= WARM_UP:
                times[name].append((time.perf_counter() - began) / TURN)
    peaks = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(peaks, torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
    if dist.get_rank() == 0:
        Path(options.result).write_text(json.dumps({"times": times, "peaks_mb": [peak.item() for peak in peaks]}))
    sys.stdout.flush()
    os._exit(0)  # the loops share one group, which each would leave by itself


@contextlib.contextmanager
def namespaces(count: int, rate: str, delay_ms: float) -> Iterator[list[str]]:
    """Network namespaces on one bridge, each limited to ``rate``; removed at the end, whatever happens."""
    bridge = f"{PREFIX}br"
    names = [f"{PREFIX}{number}" for number in range(count)]
    try:
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "link", "set", bridge, "up")
        for number, name in enumerate(names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"{name}o", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"{name}o", "master", bridge, "up")
            run("ip", "-n", name, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            slow_down(name, rate, delay_ms)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "link", "del", f"{name}o"], capture_output=True)  # its namespace would do it later
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def slow_down(name: str, rate: str, delay_ms: float) -> None:
    """Limit the interface of a namespace; without its delay where the kernel has no ``netem``."""
    limit = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root"]
    if delay_ms:
        try:
            return run(*limit, "netem", "rate", rate, "delay", f"{delay_ms / 2}ms", "limit", "100000")
        except PermissionError as error:
            print(f"{rate}: without the delay of {delay_ms} ms ({error})")
    run(*limit, "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PermissionError(f"{' '.join(command)}: {done.stderr.strip()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(
    options: argparse.Namespace, count: int, inside: list[str] | None, result: Path, *, only: str = ""
) -> dict[str, Any]:
    """Run the workers to their end; returns the first one's times and all peaks. ``only`` names one loop."""
    address = "127.0.0.1" if inside is None else f"{NETWORK}.1"
    common = {**os.environ, "MASTER_ADDR": address, "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    common.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed library is compiled, as torch is
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo" if inside is None else "eth0"}
    command = [sys.executable, __file__, "--result", str(result), "--steps", str(options.steps), "--only", only]
    command += ["--width", str(options.width), "--layers", str(options.layers), "--share", str(options.share)]
    result.unlink(missing_ok=True)
    processes = []
    for rank in range(count):
        prefix = [] if inside is None else ["ip", "netns", "exec", inside[rank]]
        environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
        processes.append(subprocess.Popen([*prefix, *command], env=environment))
    try:
        for process in processes:
            process.wait(timeout=options.timeout)
    finally:
        for process in processes:
            process.kill()
    return json.loads(result.read_text())


def measure(options: argparse.Namespace, link: str, count: int) -> dict[str, Any]:
    limits, result = LINKS[link], Path(f"/tmp/swell-exchange-{os.getpid()}.json")
    with contextlib.nullcontext() if limits is None else namespaces(count, *limits) as inside:
        times = start(options, count, inside, result)["times"]
        rounds = [
            {name: start(options, count, inside, result, only=name) for name in ("ddp", *KINDS)}
            for _ in range(options.apart)
        ]
    result.unlink(missing_ok=True)
    row: dict[str, Any] = {"ddp_ms": statistics.median(times["ddp"]) * 1e3}
    for name in KINDS:
        ratios = [ours / ddp for ours, ddp in zip(times[name], times["ddp"], strict=True)]
        row[name] = spread(ratios)
    if rounds:
        row["apart"] = apart(rounds)
        row["peak_mb"] = {
            name: sorted(peak for each in rounds for peak in each[name]["peaks_mb"]) for name in ("ddp", *KINDS)
        }
    return row


def spread(ratios: list[float]) -> dict[str, Any]:
    """The median of ratios to DDP, and the quartiles."""
    ratios, quarter = sorted(ratios), len(ratios) // 4
    return {"ratio": statistics.median(ratios), "quartiles": [ratios[quarter], ratios[-1 - quarter]]}


def apart(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each round, the ratio of the median step to DDP's."""
    steps = [{name: statistics.median(of[name]["times"][name]) for name in of} for of in rounds]
    ratios = {name: spread([of[name] / of["ddp"] for of in steps]) for name in KINDS}
    return {"ddp_ms": statistics.median(of["ddp"] for of in steps) * 1e3, **ratios}


def described(row: dict[str, Any]) -> str:
    line = f"ddp {row['ddp_ms']:8.1f} ms"
    for name in KINDS:
        low, high = row[name]["quartiles"]
        line += f" | {name} {row[name]['ratio']:.3f} ({low:.3f} to {high:.3f})"
    return line


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--workers", type=int, nargs="*", default=[2, 3])
    arguments.add_argument("--links", nargs="*", default=list(LINKS), choices=list(LINKS))
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--width", type=int, default=1024)
    arguments.add_argument("--layers", type=int, default=8)
    arguments.add_argument("--share", type=int, default=16, help="samples of one worker in a step")
    arguments.add_argument("--apart", type=int, default=7, help="rounds in which each loop runs by itself")
    arguments.add_argument("--timeout", type=float, default=900.0)
    arguments.add_argument("--out", type=Path, default=None)
    arguments.add_argument("--result", default="", help=argparse.SUPPRESS)
    arguments.add_argument("--only", default="", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.result:
        work(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the namespaces are removed
    report: dict[str, Any] = {"torch": torch.__version__, "cores": os.cpu_count(), "rows": {}}
    for link in options.links:
        if LINKS[link] is not None and not (shutil.which("ip") and shutil.which("tc")):
            print(f"{link}: skipped, because `ip` and `tc` are not installed (iproute2)")
            continue
        for count in options.workers:
            try:
                row = report["rows"][f"{link}, {count} workers"] = measure(options, link, count)
            except PermissionError as error:
                print(f"{link}, {count} workers: skipped, because network namespaces cannot be made here ({error})")
                continue
            print(f"{link:9} {count} workers, together: {described(row)}", flush=True)
            if "apart" in row:
                print(f"{link:9} {count} workers, apart:    {described(row['apart'])}", flush=True)
                for name, values in row["peak_mb"].items():
                    print(f"  {name} peaks at {statistics.median(values):.0f} MB ({values[0]:.0f} to {values[-1]:.0f})")
            if options.out is not None:
                options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
