"""Start a script under torchrun with the settings that make its restarts quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from swell.errors import ConfigError
from swell.supervisor.sizes import WorldSizes

# Measured with torch 2.13 (two agents, one machine): 51 s from a node's loss to the next step as shipped, 5 to 9 s so.
# keep_alive_max_attempt below 3 let both sides declare the other dead and train on alone.
_CONF = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5"


def torchrun_command(
    command: Sequence[str], *, sizes: WorldSizes, per_node: int, rendezvous: str, max_restarts: int
) -> list[str]:
    """torchrun's command line for one node of an elastic run; the same on every node.

    ``sizes`` counts workers, which come in whole nodes of ``per_node``.
    """
    if per_node < 1:
        raise ConfigError(f"{per_node} workers on each node were asked for, expected at least 1.")
    nodes = [size // per_node for size in sizes.allowed if size % per_node == 0]
    if not nodes or nodes != list(range(nodes[0], nodes[-1] + 1)):
        raise ConfigError(
            f"torchrun changes the number of nodes one by one between two bounds, and {sizes} workers in nodes of "
            f"{per_node} are not such a range. Give --workers as MIN:MAX:{per_node}, or use the in-place engine."
        )
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        f"--nnodes={nodes[0]}:{nodes[-1]}",
        f"--nproc-per-node={per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={rendezvous}",
        "--rdzv-id=swell",
        f"--rdzv-conf={_CONF}",
        "--monitor-interval=0.1",
        f"--max-restarts={max_restarts}",
        *command,
    ]


def torchrun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for torchrun's agent.

    In torch 2.13 and 2.14 a node that joins late brings all of them down after 60 s, unless the agents do not share the
    rendezvous' store with the workers.
    """
    return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **environ}


def become_torchrun(command: Sequence[str]) -> int:
    """Replace this process by torchrun; its exit status is torchrun's."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), torchrun_environment(os.environ))
