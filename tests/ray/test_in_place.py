"""A run on the nodes of a Ray cluster: they join, are drained and die, and the model is the undisturbed one."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.cluster import TRAINING, train_alone
from tests.ray.ray_cluster import RayNodes, RayRun, parent, swell

EPOCHS, PAUSE_S = "60", "0.2"
OPTIONS = ("--grace", "30", "--show", "none")

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    cluster = RayNodes()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return train_alone(tmp_path_factory.mktemp("alone"), EPOCHS, "0")


def check(run: RayRun, undisturbed: list[float]) -> None:
    """Every sample was used once, no step was done again, and the weights are those of the undisturbed run."""
    report = run.report()
    assert (report.lost, report.repeated, report.rewound) == (0, 0, 0), report
    assert report.samples == 130 * int(EPOCHS)
    assert math.dist(undisturbed, run.weights()) / math.hypot(*undisturbed) < 1e-6


def test_nodes_join_are_drained_and_die_and_every_sample_counts_once(
    tmp_path: Path, nodes: RayNodes, undisturbed: list[float]
) -> None:
    [first] = nodes.keep(1)
    with RayRun(tmp_path, nodes, (str(TRAINING), str(tmp_path), EPOCHS, PAUSE_S)) as run:
        run.begin(*OPTIONS, workers="1:3")
        survivor = run.wait_for_world(1)["workers"][0]["pid"]
        second, third = nodes.add(), nodes.add()  # two pending actors get their nodes
        run.wait_for_world(3)
        run.wait_for_steps(2, replicas=3)

        [worker] = run.workers_on(second)
        os.kill(worker, signal.SIGKILL)  # its agent starts another
        run.wait_for(lambda: run.status()["restarts"] == 1 and run.wait_for_world(3))

        [agent] = run.agents_on(second)
        os.kill(agent, signal.SIGKILL)  # its actor starts another
        run.wait_for(lambda: run.agents_on(second) not in ([], [agent]))
        run.wait_for_world(3)

        [agent] = run.agents_on(third)
        os.kill(parent(parent(agent)), signal.SIGKILL)  # its actor: it leaves after a step, and Ray starts another
        run.wait_for(lambda: run.agents_on(third) not in ([], [agent]))
        run.wait_for_world(3)

        [agent] = run.agents_on(second)
        actor = Path(f"/proc/{parent(parent(agent))}")
        nodes.drain(second, seconds=60)  # a notice: its worker leaves after a step, and its actor for another node
        run.wait_for_world(2)
        assert run.workers_on(second) == []
        run.wait_for(lambda: not actor.exists())
        nodes.remove(second)
        nodes.add()  # the drained node's actor was demand for it
        run.wait_for_world(3)
        run.wait_for_steps(2, replicas=3)

        run.lose(third)
        status = run.wait_for_world(2)
        assert survivor in [each["pid"] for each in status["workers"]], "survivors keep their processes"
        assert run.workers_on(first) == [survivor]
        assert status["restarts"] == 1, "only the killed worker was a fault"
        run.wait_for_steps(2, replicas=2)
        (tmp_path / "hurry").touch()
        assert run.end() == 0, run.terminal()
        check(run, undisturbed)
        assert "Ray drains the node" in (run.run_dir / "logs" / "supervisor.log").read_text()


def test_when_the_head_is_killed_all_save_and_the_resumed_run_goes_on_from_that_step(
    tmp_path: Path, nodes: RayNodes, undisturbed: list[float]
) -> None:
    nodes.keep(2)
    with RayRun(tmp_path, nodes, (str(TRAINING), str(tmp_path), EPOCHS, PAUSE_S)) as run:
        run.begin(*OPTIONS, workers="2:3")
        workers = [each["pid"] for each in run.wait_for_world(2)["workers"]]
        run.wait_for_steps(2, replicas=2)
        assert run.head is not None
        run.head.kill()  # Ray kills the actors of a driver that is gone; their agents let the workers save
        run.head.wait()
        run.wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        run.resume()
        run.wait_for_world(2)
        run.wait_for_steps(2, replicas=2)
        (tmp_path / "hurry").touch()
        assert run.end() == 0, run.terminal()
        check(run, undisturbed)


def test_a_cluster_that_is_too_small_is_named_with_what_it_has(tmp_path: Path, nodes: RayNodes) -> None:
    nodes.keep(1)
    line = ("run", "--engine", "ray", "--run-dir", str(tmp_path / "run"), "--workers", "2:3", "--ray-wait", "4")
    ended = swell(*line, str(TRAINING), str(tmp_path), "1", "0", RAY_ADDRESS=nodes.address)
    assert ended.returncode == 2
    assert re.search("room for [01] workers within 4 s; expected 2 at least", ended.stderr), ended.stderr
    assert "could hold 1 workers of CPU=1" in ended.stderr
