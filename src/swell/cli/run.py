"""``swell run``: keep a script training on a changing number of workers."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swell.cli.command import Command
from swell.cli.run_line import watched
from swell.cli.standard_streams import write_out
from swell.errors import ConfigError

if TYPE_CHECKING:
    from swell.supervisor.supervisor import Network
    from swell.supervisor.worker_process import WorkerProcess


def add_run_options(parser: ArgumentParser, *, max_restarts: int = 3) -> None:
    """The options of a run; the script and its own arguments come last."""
    add = parser.add_argument
    add("--workers", default="1", metavar="N", help="allowed numbers of workers: 4, 1:8, 2:16:2 or 2,4,8 (default: 1)")
    add("--start", type=int, metavar="N", help="number of workers at the start (default: one per device or core)")
    add(
        "--run-dir",
        metavar="DIR",
        help="the run's folder, also for a swell.Job without one (default: runs/ and the script's name)",
    )
    add(
        "--listen",
        metavar="ADDRESS",
        help="let agents of other machines join at this address of this machine (10.0.0.1 or 10.0.0.1:29777)",
    )
    add(
        "--slots",
        type=int,
        metavar="N",
        help="with --listen: workers on this machine at most, 0 for none (default: one per device or core)",
    )
    add("--token-file", metavar="FILE", help="with --listen: the run's token (default: $SWELL_TOKEN, else a new one)")
    add(
        "--network-timeout",
        type=float,
        default=5.0,
        metavar="S",
        help="with --listen: seconds after which a machine that cannot be reached is lost (default: 5)",
    )
    add(
        "--copies",
        type=int,
        default=2,
        metavar="N",
        help="with --listen: machines that have the newest state, where they do not share a disk (default: 2)",
    )
    add("--mirror", metavar="URL", help="bring every state to an object store too, as in s3://bucket/runs/digits")
    add(
        "--engine",
        choices=["inplace", "ray", "torchrun"],
        default="inplace",
        help="how the world changes (default: inplace); ray: in place, on the nodes of a Ray cluster",
    )
    budget = f"number of faults to recover from; resizes do not count (default: {max_restarts})"
    add("--max-restarts", type=int, default=max_restarts, metavar="N", help=budget)
    add(
        "--on-worker-failure",
        choices=["restart", "shrink", "stop"],
        default="restart",
        help="replace a lost worker, go on with fewer, or save and stop (default: restart)",
    )
    add("--grace", type=float, default=60.0, metavar="S", help="seconds from a notice to the kill (default: 60)")
    add("--hang-timeout", type=float, default=60.0, metavar="S", help="seconds without a heartbeat (default: 60)")
    add(
        "--stall-timeout",
        type=float,
        metavar="S",
        help="seconds without a sign of progress, inf for no limit (default: 60, or 20 usual steps; ten times as long "
        "where a worker computes, loads, saves or is outside the loop)",
    )
    add("--trace", metavar="CSV", help="replay worker counts from a file: time,workers or milliseconds,add|remove,node")
    add("--trace-speed", type=float, default=1.0, metavar="X", help="replay X times as fast (default: 1)")
    add(
        "--trace-removals",
        choices=["notice", "kill"],
        default="notice",
        help="how the trace removes workers (default: notice)",
    )
    add("--show", choices=["all", "first", "none"], default="all", help="which workers' output to show (default: all)")
    add("--metrics-port", type=int, metavar="N", help="serve the run's figures for Prometheus on this port")
    add("--metrics-host", default="127.0.0.1", metavar="HOST", help="where to serve them (default: 127.0.0.1)")
    add("--per-node", type=int, default=1, metavar="N", help="torchrun: workers on each node (default: 1)")
    add(
        "--rendezvous",
        default="localhost:29400",
        metavar="HOST:PORT",
        help="torchrun: where nodes meet (default: localhost:29400)",
    )
    add(
        "--ray-options",
        default="",
        metavar="JSON",
        help='ray: options of each worker\'s actor (default: {"num_cpus": 1}, with "num_gpus": 1 if there are GPUs)',
    )
    add(
        "--ray-wait",
        type=float,
        default=600.0,
        metavar="S",
        help="ray: seconds to wait at the start for room for the smallest number of workers (default: 600)",
    )
    add("--fresh", action="store_true", help="start over: what the script's run folder holds is moved aside")
    add("-m", "--module", action="store_true", help="SCRIPT is a module, as in python -m")
    add("script", metavar="SCRIPT", help="the training script")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")


def _run(args: Namespace) -> int:
    options = {name: value for name, value in vars(args).items() if name not in ("run", "command")}
    return start_run(options)


def run_folder(args: Namespace) -> Path:
    """The run's folder: ``--run-dir``, or one named after the script."""
    stem = args.script.replace(".", "/") if args.module else args.script
    return Path(args.run_dir or Path("runs") / Path(stem).stem)


def start_run(
    options: dict[str, Any], *, variables: Mapping[str, str] | None = None, worker: type[WorkerProcess] | None = None
) -> int:
    """Start or resume a run from the values of its options; returns the exit status.

    For this start only, ``variables`` are added to the environment of its workers, which are processes of the kind
    ``worker``.
    """
    args = Namespace(**options)
    command = [sys.executable, *(["-m"] if args.module else []), args.script, *args.arguments]
    if not args.module and not Path(args.script).is_file():
        raise ConfigError(f"script is {args.script!r}; expected the path of an existing file, or -m and a module.")
    if args.engine == "torchrun":
        return _with_torchrun(args, command[1:])
    start = functools.partial(_in_place, args, command, options, {**(variables or {}), **given_folder(args)}, worker)
    return _on_ray(args, start) if args.engine == "ray" else start()


def given_folder(args: Namespace) -> dict[str, str]:
    """Variables that tell the job which folder the user chose; none if the user chose none."""
    if not args.run_dir or not getattr(args, "run_dir_given", True):
        return {}
    return {"SWELL_RUN_DIR": os.path.realpath(args.run_dir), "SWELL_RUN_DIR_GIVEN": "1"}


def _in_place(
    args: Namespace,
    command: list[str],
    options: dict[str, Any],
    variables: Mapping[str, str],
    worker: type[WorkerProcess] | None,
    *,
    network: Network | None = None,
    listening: Callable[[str], None] = lambda address: None,
) -> int:
    """Run in place: with agents where ``network`` or the options say how they join."""
    from swell.checkpoint.object_store import ObjectStore
    from swell.checkpoint.state_folder import DiskStates
    from swell.runtime.environment import count_places
    from swell.supervisor.descriptors import raise_descriptor_limit
    from swell.supervisor.patience import Patience
    from swell.supervisor.run_dir import RunDir
    from swell.supervisor.sizes import parse_sizes
    from swell.supervisor.states import StateOptions
    from swell.supervisor.supervisor import RunOptions, supervise
    from swell.supervisor.worker_process import WorkerProcess
    from swell.supervisor.worker_trace import read_worker_trace

    for name in ("grace", "hang_timeout", "stall_timeout"):
        if getattr(args, name) is not None and not getattr(args, name) > 0:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name):g}; expected seconds above 0.")
    if args.max_restarts < 0:
        raise ConfigError(f"--max-restarts is {args.max_restarts}; expected 0 or more.")
    if getattr(args, "copies", 2) < 1:
        raise ConfigError(f"--copies is {args.copies}; expected 1 or more.")
    mirror = ObjectStore(args.mirror) if getattr(args, "mirror", None) else None
    sizes = parse_sizes(args.workers)
    trace = None if args.trace is None else read_worker_trace(args.trace).faster(args.trace_speed)
    network = network or _network(args)
    places = sizes.largest if network is not None else count_places()
    first = sizes.nearest_below(places if trace is None else trace.at(0))
    run_dir = run_folder(args)
    patience = Patience(
        hang_s=args.hang_timeout,
        stall_s=args.stall_timeout,
        grace_s=args.grace,
    )
    run_options = RunOptions(
        command=tuple(command),
        run_dir=run_dir,
        sizes=sizes,
        start=first if args.start is None else sizes.require(args.start),
        max_restarts=args.max_restarts,
        on_failure=args.on_worker_failure,
        patience=patience,
        beat_s=min(1.0, args.hang_timeout / 5),
        trace=trace,
        trace_removals=args.trace_removals,
        show=args.show,
        network=network,
        variables={**variables, **({"SWELL_FRESH": "1"} if getattr(args, "fresh", False) else {})},
        states=StateOptions(
            folder=DiskStates,
            copies=getattr(args, "copies", 2),
            mirror=mirror,
            fresh=getattr(args, "fresh", False),
            from_here=getattr(args, "from_here", False),
        ),
        worker=worker or WorkerProcess,
    )
    raise_descriptor_limit()
    folder = RunDir(run_dir)
    given = bool(args.run_dir) and getattr(args, "run_dir_given", True)  # a resumed run knows what it was started with
    record = {
        "options": {
            **options,
            **{"run_dir": os.path.realpath(run_dir), "run_dir_given": given, "fresh": False, "from_here": False},
            "token_file": None,  # the token is in the run's folder
        },
        "folder": str(Path.cwd()),
    }

    def prepare() -> None:
        folder.write_record(record)
        if mirror is not None:
            mirror.begin(DiskStates(run_dir), record, fresh=run_options.states is not None and run_options.states.fresh)

    port, host = getattr(args, "metrics_port", None), getattr(args, "metrics_host", "127.0.0.1")  # not in older records
    with watched(run_dir, _write, metrics_port=port, metrics_host=host) as write:
        return supervise(run_options, write=write, prepare=prepare, listening=listening)


def _network(args: Namespace) -> Network | None:
    """How other machines join; None for a run on this machine alone. Older records have no such options."""
    from swell.runtime.environment import count_places
    from swell.supervisor.interfaces import own_address, parse_address
    from swell.supervisor.supervisor import Network

    if getattr(args, "listen", None) is None:
        if getattr(args, "slots", None) is not None or getattr(args, "token_file", None) is not None:
            raise ConfigError("--slots or --token-file is given without --listen; expected both. Give --listen too.")
        return None
    if args.slots is not None and args.slots < 0:
        raise ConfigError(f"--slots is {args.slots}; expected 0 or more.")
    if not args.network_timeout > 0:
        raise ConfigError(f"--network-timeout is {args.network_timeout:g}; expected seconds above 0.")
    host, port = parse_address(args.listen, option="--listen")
    return Network(
        host=own_address(host),
        port=port,
        slots=count_places() if args.slots is None else args.slots,
        token_file=args.token_file,
        silence_s=args.network_timeout,
    )


def _on_ray(args: Namespace, start: Callable[..., int]) -> int:
    """Run in place, with an agent for each worker in an actor of a Ray cluster."""
    from swell.integrations.ray import RayEngine
    from swell.supervisor.interfaces import own_address, parse_address
    from swell.supervisor.sizes import parse_sizes
    from swell.supervisor.supervisor import Network

    if args.slots is not None:
        raise ConfigError(f"--slots is {args.slots}; expected none with --engine ray, which has one worker an actor.")
    sizes, options = parse_sizes(args.workers), args.ray_options
    with RayEngine(sizes, options=options, run_dir=run_folder(args), wait_s=args.ray_wait, write=_write) as engine:
        host, port = (engine.host, 0) if args.listen is None else parse_address(args.listen, option="--listen")
        network = Network(
            host=own_address(host), port=port, slots=0, token_file=args.token_file, silence_s=args.network_timeout
        )
        status = start(network=network, listening=engine.start_agents)
        engine.raise_failure()
        return status


def _with_torchrun(args: Namespace, command: list[str]) -> int:
    from swell.supervisor.sizes import parse_sizes
    from swell.supervisor.torchrun import become_torchrun, torchrun_command

    line = torchrun_command(
        command,
        sizes=parse_sizes(args.workers),
        per_node=args.per_node,
        rendezvous=args.rendezvous,
        max_restarts=args.max_restarts,
    )
    return become_torchrun(line, given_folder(args))


def _write(line: str) -> None:
    write_out(f"{line}\n")


COMMAND = Command(
    summary="keep a script training while workers come, go and die",
    description=(
        "Start a script on several workers of this machine and keep it training while workers are added, removed or "
        "killed. The remaining workers keep their processes and form a new world in a fraction of a second. Control "
        "the run with swell status, resize and stop, which take the run's folder.\n"
        "With --listen, machines that run swell agent join and leave the same way. --workers counts workers over all "
        "machines, and the run grows to what there is room for.\n"
        "With --engine ray, Ray starts the agents: one actor for each worker that the run may have, on the nodes of "
        "the cluster that RAY_ADDRESS names. Nodes that Ray drains are left after a step.\n"
        "With --engine torchrun, start the same command on every node: torchrun restarts all workers when nodes come "
        "and go, and --workers counts workers over all nodes.\n"
        "The status is 0 when training has finished, 143 when it was stopped and can be resumed, 130 after a second "
        "Ctrl-C, 2 if the request is invalid, otherwise that of the worker that failed (128 + signal if it was killed)."
    ),
    example="swell run --workers 1:8 --run-dir runs/digits train.py --epochs 10",
    options=add_run_options,
    run=_run,
)
