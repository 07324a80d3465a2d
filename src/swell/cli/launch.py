"""``swell launch``: print what a cluster needs to run a script on several machines."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from pathlib import Path

from swell.cli.command import Command
from swell.errors import ConfigError


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--nodes", type=int, default=2, metavar="N", help="machines at the start (default: 2)")
    add("--slots", type=int, metavar="N", help="workers on each machine (default: one per GPU, else 1)")
    add("--gpus", type=int, default=0, metavar="N", help="GPUs of each machine (default: 0)")
    add("--workers", metavar="N", help="allowed numbers of workers, over all machines (default: 1 to all there are)")
    add("--run-dir", metavar="DIR", help="the run's folder, which all machines share (default: runs/ and the script)")
    add("--name", default="swell", help="the name of the job (default: swell)")
    add("--grace", type=int, default=120, metavar="S", help="seconds from the notice to the end (default: 120)")
    add("--time", default="24:00:00", metavar="T", help="slurm: the time limit (default: 24:00:00)")
    add("--join", metavar="RUN", help="slurm: more nodes for the active run in this folder; no script follows")
    add("--image", metavar="IMAGE", help="kubernetes: the image, with swell and the script's needs")
    add("--claim", metavar="NAME", help="kubernetes: the volume claim that all pods share, mounted at /data")
    add("--queue", default="", metavar="NAME", help="kubernetes: the queue of Kueue")
    add("cluster", choices=["slurm", "kubernetes"], help="what starts the machines")
    add("command_line", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="the script and its own arguments")


def _run(args: Namespace) -> int:
    slots = args.slots or args.gpus or 1
    if args.join is None and not args.command_line:
        raise ConfigError("no script is given; expected one and its arguments after the cluster's name.")
    if args.nodes < 1 or slots < 1 or args.gpus < 0 or args.grace < 1:
        raise ConfigError(
            f"--nodes is {args.nodes}, --slots {slots}, --gpus {args.gpus} and --grace {args.grace}; expected 1 or "
            f"more (--gpus: 0 or more)."
        )
    run_dir = args.run_dir or f"runs/{Path(args.command_line[0]).stem if args.command_line else args.name}"
    workers = args.workers or f"1:{args.nodes * slots}"
    if args.cluster == "slurm":
        print(_slurm(args, slots=slots, workers=workers, run_dir=run_dir), end="")
    else:
        print(_kubernetes(args, slots=slots, workers=workers, run_dir=run_dir), end="")
    return 0


def _slurm(args: Namespace, *, slots: int, workers: str, run_dir: str) -> str:
    from swell.cli.slurm_script import SlurmJob, slurm_join_script, slurm_script

    job = SlurmJob(
        nodes=args.nodes,
        slots=slots,
        workers=workers,
        run_dir=str(Path(args.join or run_dir).resolve()),
        command=args.command_line,
        gpus=args.gpus,
        time=args.time,
        grace_s=args.grace,
        name=args.name,
    )
    return slurm_script(job) if args.join is None else slurm_join_script(job)


def _kubernetes(args: Namespace, *, slots: int, workers: str, run_dir: str) -> str:
    from swell.cli.kubernetes_manifests import KubernetesRun, kubernetes_manifests
    from swell.supervisor.secure_channel import new_run_key

    if args.join is not None:
        raise ConfigError("--join is for slurm; expected none. Patch the parallelism of the agents' Job instead.")
    if not args.image or not args.claim:
        raise ConfigError("--image or --claim is missing; expected an image with swell, and a volume all pods share.")
    run = KubernetesRun(
        name=args.name,
        image=args.image,
        agents=args.nodes,
        slots=slots,
        workers=workers,
        run_dir=run_dir,
        command=args.command_line,
        token=new_run_key().hex(),
        claim=args.claim,
        gpus=args.gpus,
        grace_s=args.grace,
        queue=args.queue,
    )
    return kubernetes_manifests(run)


COMMAND = Command(
    summary="print a Slurm script or Kubernetes objects for a run",
    description=(
        "Print what starts a run on several machines: a batch script for Slurm's sbatch, or objects for kubectl apply. "
        "Nothing is submitted. Read it, change what your cluster needs, and submit it yourself. Options come before "
        "the name of the cluster, the script and its arguments after it.\n"
        "The run's folder must be on a disk that all machines share. The Kubernetes objects contain a new token: keep "
        "them secret."
    ),
    example="swell launch --nodes 4 --gpus 8 slurm train.py --epochs 10 > run.sbatch",
    options=_options,
    run=_run,
)
