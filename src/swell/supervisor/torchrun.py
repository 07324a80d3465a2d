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
    """The torchrun command line for one node of an elastic run; the same on every node.

    ``sizes`` counts workers; each node adds ``per_node`` of them.
    """
    if per_node < 1:
        raise ConfigError(f"--per-node is {per_node}; expected at least 1 worker on each node.")
    nodes = [size // per_node for size in sizes.allowed if size % per_node == 0]
    if not nodes or nodes != list(range(nodes[0], nodes[-1] + 1)):
        raise ConfigError(
            f"--workers is {sizes}; expected a range of whole nodes of {per_node} workers, because torchrun adds and "
            f"removes nodes one by one. Give --workers as MIN:MAX:{per_node}, or use --engine inplace."
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

    In torch 2.13 and 2.14 a node that joins late brings all nodes down after 60 s, unless the agents keep the store of
    the rendezvous to themselves.
    """
    return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **environ}


def become_torchrun(command: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    """Replace this process by torchrun, with ``variables`` in its workers' environment; the status is torchrun's."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), {**torchrun_environment(os.environ), **(variables or {})})
