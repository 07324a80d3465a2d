"""A Ray cluster of several nodes on this machine, and runs of swell on it."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ray._raylet import GcsClient
from ray.cluster_utils import Cluster

from tests.machines.cluster import ROOT, Loopback
from tests.machines.cluster import Cluster as Run

SMALL = {"object_store_memory": 80 * 2**20}
PREEMPTION = 2  # Ray's DRAIN_NODE_REASON_PREEMPTION


class RayNodes:
    """A head node without cores, and nodes of one core each that come and go."""

    def __init__(self, **head: Any) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        os.environ["PYTHONPATH"] = path  # of the nodes, and of all that they start
        # Any free port: with Ray's own, a second cluster on this machine has no agent that takes jobs.
        free_port = {"dashboard_agent_listen_port": None}
        options = {"num_cpus": 0, "include_dashboard": False, **free_port, **SMALL, **head}
        self._cluster = Cluster(initialize_head=True, head_node_args=options)
        self.address = str(self._cluster.address)
        self.dashboard = str(self._cluster.webui_url)

    def add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, **SMALL)

    def keep(self, number: int) -> list[Any]:
        """Exactly that many nodes of one core."""
        for node in list(self._cluster.worker_nodes)[number:]:
            self._cluster.remove_node(node)
        while len(self._cluster.worker_nodes) < number:
            self.add()
        return list(self._cluster.worker_nodes)

    def drain(self, node: Any, *, seconds: float) -> None:
        """Tell Ray that a node will be taken away."""
        client = GcsClient(address=self.address)
        deadline_ms = int((time.time() + seconds) * 1000)
        accepted, why = client.drain_node(node.node_id, PREEMPTION, "spot instance", deadline_ms)
        assert accepted, why

    def remove(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


class RayRun(Run):
    """A run of swell whose agents Ray places."""

    def __init__(self, folder: Path, nodes: RayNodes, script: tuple[str, ...]) -> None:
        super().__init__(folder, Loopback(), script)
        self.nodes = nodes
        os.environ["RAY_ADDRESS"] = nodes.address

    def begin(self, *options: str, workers: str = "1:3", slots: int = 0) -> None:
        facts = ("--engine", "ray", "--workers", workers, "--run-dir", str(self.run_dir))
        self.head = self.start(0, "head", "run", *facts, *options, *self._script)
        self._find_address()

    def resume(self, *, listen: str | None = None, slots: int | None = None) -> None:
        (self.run_dir / "control" / "listens_at").unlink(missing_ok=True)
        self.head = self.start(0, "head", "resume", str(self.run_dir))
        self._find_address()

    def workers_on(self, node: Any) -> list[int]:
        """The worker processes on a node of the cluster."""
        status = self.status()
        there = [each["machine"] for each in status["machines"] if each["host"] == node.node_id]
        return [each["pid"] for each in status["workers"] if each["machine"] in there]

    def agents_on(self, node: Any) -> list[int]:
        """The agents of the workers on a node."""
        found = []
        for pid in self.workers_on(node):
            with contextlib.suppress(OSError):  # a worker that has just gone
                found.append(parent(pid))
        return found

    def lose(self, node: Any) -> None:
        """Kill all that is on a node, as a power cut would."""
        workers = self.workers_on(node)
        victims = [pid for worker in workers for pid in (worker, parent(worker))]
        self.nodes.remove(node)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def parent(pid: int) -> int:
    """The process that started another: a worker's agent, an agent's shell, a shell's actor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def swell(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of swell to its end."""
    line = [sys.executable, "-m", "swell", *arguments]
    return subprocess.run(line, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)
