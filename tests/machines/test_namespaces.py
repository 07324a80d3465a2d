"""Three network namespaces as three machines: they join, leave, die and are cut off, and the model is the same."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path

import pytest

from tests.machines.cluster import TRAINING, Cluster, Namespaces, train_alone, why_no_namespaces

EPOCHS, PAUSE_S = "200", "0.1"
PLAIN_WORKER = str(Path(__file__).parents[1] / "supervisor" / "plain_worker.py")  # without torch
OPTIONS = ("--network-timeout", "1", "--grace", "30", "--show", "none")

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces() or "there are namespaces"),
]


def check(run: Cluster, folder: Path) -> None:
    """Every sample was used once, and the weights are those of the undisturbed run."""
    report = run.report()
    assert (report.lost, report.repeated, report.rewound) == (0, 0, 0), report
    assert report.samples == 130 * int(EPOCHS)
    alone, found = train_alone(folder / "alone", EPOCHS, "0"), run.weights()
    error = math.dist(alone, found) / math.hypot(*alone)
    assert error < 1e-6


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_machines_join_leave_and_die_and_every_sample_counts_once(tmp_path: Path, ipv6: bool) -> None:
    script = (str(TRAINING), str(tmp_path), EPOCHS, PAUSE_S)
    with Namespaces(3, ipv6=ipv6) as machines, Cluster(tmp_path, machines, script) as run:
        run.begin(*OPTIONS)
        first = run.wait_for_world(1)["workers"][0]["pid"]
        run.join(1)
        run.join(2)
        run.wait_for_world(3)
        run.wait_for_steps(2, replicas=3)

        os.kill(run.pids_on(1)[0], signal.SIGKILL)  # a worker; its agent starts another
        run.wait_for(lambda: run.status()["restarts"] == 1 and run.wait_for_world(3))
        run.agents[1].send_signal(signal.SIGTERM)  # a notice to a machine
        run.wait_for_world(2)
        assert run.agents[1].wait(60) == 143
        machines.cut(2)  # its workers can still be reached by nobody
        run.wait_for_world(1)
        run.wait_for_steps(2, replicas=1)
        machines.mend(2)  # its agent comes back by itself
        run.wait_for_world(2)
        run.wait_for_steps(2, replicas=2)
        run.agents[2].kill()
        assert run.wait_for_world(1)["workers"][0]["pid"] == first, "survivors keep their processes"
        run.wait_for_steps(2, replicas=1)
        (tmp_path / "hurry").touch()
        assert run.end() == 0, run.terminal()
        check(run, tmp_path)


def test_when_the_head_is_killed_all_save_and_the_resumed_run_goes_on_from_that_step(tmp_path: Path) -> None:
    script = (str(TRAINING), str(tmp_path), EPOCHS, PAUSE_S)
    with Namespaces(3) as machines, Cluster(tmp_path, machines, script) as run:
        run.begin(*OPTIONS, slots=0)  # the head has no workers of its own
        run.join(1)
        run.join(2)
        run.wait_for_world(2)
        run.wait_for_steps(2, replicas=2)
        assert run.head is not None
        run.head.kill()
        run.head.wait()
        run.resume()  # the agents come back to it
        run.wait_for_world(2)
        run.wait_for_steps(2, replicas=2)
        (tmp_path / "hurry").touch()
        assert run.end() == 0, run.terminal()
        check(run, tmp_path)


def test_a_machine_that_is_slow_is_waited_for_and_one_that_cannot_be_reached_is_lost(tmp_path: Path) -> None:
    with Namespaces(2) as machines, Cluster(tmp_path, machines, (PLAIN_WORKER, "train")) as run:
        run.begin("--network-timeout", "0.3", "--grace", "5", "--show", "none")
        run.join(1)
        before = run.wait_for_world(2)
        run.agents[1].send_signal(signal.SIGSTOP)  # as if it was swapped out: its kernel still answers
        time.sleep(4.0)
        status = run.status()
        run.agents[1].send_signal(signal.SIGCONT)
        assert (status["generation"], len(status["machines"])) == (before["generation"], 2)
        assert run.wait_for_world(2)["generation"] == before["generation"], "it goes on as if nothing had been"
        machines.cut(1)
        run.wait_for_world(1)
        assert len(run.status()["machines"]) == 1
