"""The same script under torchrun: nodes join and are lost, every worker restarts, and no sample is lost or repeated."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swell.core.events import RunStarted
from swell.telemetry import read_events
from swell.telemetry.chaos_report import report_chaos
from tests.job.test_elastic_job import EPOCHS, ROOT, SCRIPT, records, steps, weights

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


class Node:
    """One line of ``swell run --engine torchrun``, as each node of a cluster would start it."""

    def __init__(self, folder: Path, port: int, *, pause_s: float) -> None:
        line = [sys.executable, "-m", "swell", "run", "--engine", "torchrun", "--workers", "1:2"]
        line += ["--rendezvous", f"127.0.0.1:{port}", "--max-restarts", "5"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        with (folder / "terminal").open("ab") as output:
            self.process = subprocess.Popen(
                [*line, str(SCRIPT), str(folder), str(EPOCHS), str(pause_s)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def workers(self) -> list[int]:
        """Process ids of this node's workers; torchrun gives each a session of its own."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(OSError):
            return [int(pid) for pid in children.read_text().split()]
        return []

    def kill(self) -> None:
        """Lose the node: its agent and its workers at once."""
        pids = [self.process.pid, *self.workers()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def wait_for(what: str, condition: object, folder: Path, *, timeout_s: float = 120.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}:\n{(folder / 'terminal').read_text()[-6000:]}"
        time.sleep(0.1)


def test_a_node_that_joins_late_and_is_killed_leaves_the_weights_of_the_undisturbed_run(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, str(SCRIPT), str(alone), str(EPOCHS), "0"], env=environment, check=True, timeout=240
    )
    port = free_port()
    first = Node(tmp_path, port, pause_s=0.2)
    nodes = [first]
    try:
        wait_for("the first steps", lambda: steps(tmp_path) >= 3, tmp_path)
        nodes.append(Node(tmp_path, port, pause_s=0.2))
        wait_for("two replicas", lambda: any(r.get("replicas") == 2 for r in records(tmp_path)), tmp_path)
        nodes[1].kill()
        wait_for("the end", lambda: first.process.poll() is not None, tmp_path, timeout_s=240)
        assert first.process.returncode == 0, (tmp_path / "terminal").read_text()[-6000:]
    finally:
        for node in nodes:
            node.kill()
    expected = weights(alone)
    assert float((weights(tmp_path) - expected).norm() / expected.norm()) < 1e-6
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    found = report_chaos(events)
    assert found.whole and found.samples == 130 * EPOCHS
    starts = [(event.replicas, event.samples) for event in events if isinstance(event, RunStarted)]
    print(f"started on (replicas, samples): {starts}; {found.rewound} steps done again")
    assert [replicas for replicas, _ in starts][:2] == [1, 2] and starts[-1][0] == 1
    assert starts[1][1] > 0, "a node that joins costs no step: all save when torchrun asks them to go"
