"""The batch script that runs a script on the nodes of a Slurm job, one agent a node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from swell.cli.notice_time import time_to_save
from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """What is asked of Slurm, and what runs there."""

    nodes: int
    slots: int  # workers a node, one for each GPU if there are any
    workers: str  # allowed numbers of workers, over all nodes
    run_dir: str
    command: Sequence[str]  # the script and its arguments, as for swell run
    gpus: int = 0  # GPUs a node
    time: str = "24:00:00"
    grace_s: int = 120  # from the signal before the limit to the limit
    name: str = "swell"


def slurm_script(job: SlurmJob) -> str:
    """The script for ``sbatch``: the head in the batch step, an agent on every node, requeued where it can go on.

    Slurm signals the batch step before the limit (USR2, because NCCL may use USR1), and at a preemption sends TERM; the
    run saves and ends with status 143, and the job is put back into the queue, where the same script resumes it.
    """
    if job.nodes < 1 or job.slots < 1:
        raise ConfigError(f"nodes is {job.nodes} and slots is {job.slots}; expected 1 or more of both.")
    run_dir, command = shlex.quote(job.run_dir), shlex.join(job.command)
    header = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.nodes}",
        "#SBATCH --ntasks-per-node=1",
        *([f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []),
        f"#SBATCH --time={job.time}",
        f"#SBATCH --signal=B:USR2@{job.grace_s}",
        "#SBATCH --requeue",
        "#SBATCH --no-kill",  # a lost node ends its own tasks, not the job
        "#SBATCH --open-mode=append",
    ]
    body = f"""
# Submit it with sbatch. More nodes for a run that is active: sbatch the script that
# `swell launch --join {run_dir} slurm` prints; its agents join the same head.

RUN={run_dir}
HEAD="$(hostname):$((20000 + SLURM_JOB_ID % 10000))"

# The head runs here, in the batch step, and no worker beside it: the agent of this node has them.
swell run --listen "$HEAD" --slots 0 --workers {shlex.quote(job.workers)} --grace {time_to_save(job.grace_s)} \\
    --run-dir "$RUN" {command} &
head=$!
trap 'kill -TERM $head' USR2 TERM INT

# The head makes the token. Agents wait for the head, and one that is lost takes no other with it.
while [ ! -s "$RUN/control/token" ] && kill -0 $head 2>/dev/null; do sleep 1; done
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --no-kill \\
    swell agent "$HEAD" --token-file "$RUN/control/token" --slots {job.slots} --wait 120 &
agents=$!

wait $head; status=$?
while kill -0 $head 2>/dev/null; do wait $head; status=$?; done   # a signal ends a wait, and the head goes on
wait $agents

if [ $status -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi   # saved: it goes on when there is room
exit $status
"""
    return "\n".join(header) + "\n" + body.rstrip("\n") + "\n"


def slurm_join_script(job: SlurmJob) -> str:
    """The script for a second ``sbatch``, whose nodes join a run that is active; they leave at their own limit."""
    run_dir = shlex.quote(job.run_dir)
    header = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job.name}-more",
        f"#SBATCH --nodes={job.nodes}",
        "#SBATCH --ntasks-per-node=1",
        *([f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []),
        f"#SBATCH --time={job.time}",
        f"#SBATCH --signal=USR2@{job.grace_s}",
        "#SBATCH --no-kill",
    ]
    body = f"""
RUN={run_dir}
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --no-kill \\
    swell agent "$(cat "$RUN/control/listens_at")" --token-file "$RUN/control/token" --slots {job.slots} --wait 120
status=$?
if [ $status -eq 143 ]; then exit 0; fi   # the nodes have left the run
exit $status
"""
    return "\n".join(header) + "\n" + body.rstrip("\n") + "\n"
