"""Machines with disks of their own: the newest state is on two of them, and whoever resumes gets it."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swell.checkpoint.state_folder import DiskStates
from tests.machines.cluster import Cluster, Loopback, environment, train_alone

TRAINING = Path(__file__).with_name("own_disk_training.py")
EPOCHS = "60"

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


class OwnDisks(Cluster):
    """A run whose machines have a folder each; ``folder`` is where the test looks, and no part of the run."""

    def disk(self, machine: int) -> Path:
        return self.run_dir if machine == 0 else self.folder / f"disk-{machine}" / "run"

    def join(self, machine: int, *, slots: int = 1, wait_s: float = 60.0) -> None:
        token = self.folder / "token"
        if not token.exists():
            shutil.copy(self.run_dir / "control" / "token", token)
        options = ("--slots", str(slots), "--token-file", str(token), "--wait", str(wait_s))
        options += ("--run-dir", str(self.disk(machine)))
        self.agents[machine] = self.start(machine, f"agent-{machine}", "agent", self.address, *options)

    def states(self, machine: int) -> list[str]:
        return [state.name for state in DiskStates(self.disk(machine)).states()]

    def wait_for_copies(self, *machines: int, at_least: int = 1) -> str:
        """Wait until these machines have the same newest state, with a number from here on; its name."""

        def same() -> str:
            newest = {(self.states(machine) or [""])[-1] for machine in machines}
            name = newest.pop()
            return name if not newest and name and int(name[:6]) >= at_least else ""

        return self.wait_for(same)

    def lose(self, machine: int) -> None:
        """A machine is gone, with its disk; what the others have said stays."""
        process = self.head if machine == 0 else self.agents.pop(machine)
        assert process is not None
        for pid in self.pids_on(machine):
            subprocess.run(["kill", "-KILL", str(pid)], check=False)
        process.kill()
        process.wait()
        shutil.rmtree(self.disk(machine))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OwnDisks]:
    script = (str(TRAINING), str(tmp_path), EPOCHS, "0.05")
    with OwnDisks(tmp_path, Loopback(), script) as cluster:
        yield cluster


def check(run: OwnDisks) -> None:
    alone = train_alone(run.folder / "alone", EPOCHS, "0", script=TRAINING)
    assert math.dist(alone, run.weights()) / math.hypot(*alone) < 1e-6


def finish(run: OwnDisks) -> None:
    (run.folder / "hurry").touch()
    assert run.end() == 0, run.terminal()
    check(run)


def status_of(run_dir: Path) -> dict[str, Any]:
    line = [sys.executable, "-m", "swell", "status", str(run_dir), "--json"]
    return json.loads(subprocess.run(line, capture_output=True, text=True, env=environment(), check=True).stdout)


def test_the_newest_state_is_on_two_machines_and_a_run_whose_head_is_lost_with_its_disk_goes_on(run: OwnDisks) -> None:
    run.begin("--grace", "10", "--show", "none")
    run.join(1)
    run.wait_for_world(2)
    run.join(2)
    run.wait_for_world(3)
    first = run.wait_for_copies(0, 1)
    name = run.wait_for_copies(0, 1, at_least=int(first[:6]) + 4)
    assert run.states(2) == [], "two copies were asked for"
    assert len(run.states(1)) <= 4, "old copies are removed"
    newest = status_of(run.run_dir)["newest_state"]
    assert len(newest["machines"]) == 2 and newest["number"] >= int(name[:6])
    run.lose(0)
    run.wait_for(lambda: f"the newest state on this machine is {name[:3]}" in (run.folder / "agent-1.out").read_text())
    for agent in run.agents.values():
        agent.kill()
        agent.wait()
    run.run_dir = run.disk(1)  # whose agent has left all there that a resume needs
    run.resume(listen="127.0.0.1:0")
    run.join(2)
    run.wait_for_world(2)
    finish(run)


def test_a_state_that_another_machine_saved_comes_to_the_head_and_is_handed_to_who_begins(run: OwnDisks) -> None:
    run.begin("--grace", "10", "--show", "none", slots=0)
    run.join(1)
    run.wait_for_world(1)
    run.wait_for_copies(0, 1, at_least=2)
    run.join(2)
    run.wait_for_world(2)
    run.lose(1)  # the only one that had saved; machine 2 goes on in place, and saves on its own disk
    run.wait_for_world(1)
    number = int(run.states(0)[-1][:6])
    run.wait_for_copies(0, 2, at_least=number + 1)
    run.agents[2].kill()  # now nobody has the run's state in memory
    run.agents.pop(2).wait()
    shutil.rmtree(run.disk(2))
    run.join(3)  # and this machine has none on its disk
    run.wait_for_world(1)
    assert [name for name in run.states(3) if int(name[:6]) > number], "it was handed over before its worker began"
    finish(run)


def test_a_machine_that_knows_of_a_newer_state_elsewhere_waits_for_it(run: OwnDisks) -> None:
    run.begin("--grace", "10", "--show", "none", slots=0)
    run.join(1)
    run.wait_for_world(1)
    run.join(2)
    run.wait_for_world(2)
    run.wait_for_copies(0, 1, at_least=2)
    run.lose(0)
    for agent in run.agents.values():
        agent.terminate()
        agent.wait(60)
    assert run.states(2) == [] or run.states(2)[-1] != run.states(1)[-1]
    run.run_dir = run.disk(2)
    run.resume(listen="127.0.0.1:0", slots=1)
    waiting = run.wait_for(lambda: [text for text in run.status().get("troubles", []) if "newest state" in text])
    assert "--from-here" in waiting[0] and run.status()["state"] != "training"
    run.join(1)
    run.wait_for_world(2)
    finish(run)


def test_the_last_state_is_copied_before_a_run_that_is_stopped_ends(run: OwnDisks) -> None:
    run.begin("--grace", "30", "--show", "none", slots=0)
    run.join(1)
    run.wait_for_world(1)
    run.wait_for_steps(2, replicas=1)
    assert run.head is not None
    run.head.terminate()
    assert run.end() == 143
    assert run.states(0) and run.states(0)[-1] == run.states(1)[-1]


def test_a_run_goes_on_from_its_mirror_on_a_machine_that_never_had_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket/run"
    script = (str(TRAINING), str(tmp_path), "6", "0.02")
    line = [sys.executable, "-m", "swell", "run", "--run-dir", str(tmp_path / "first"), "--mirror", url, *script]
    run = subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL)
    with run:
        deadline = time.monotonic() + 120
        while len(DiskStates(tmp_path / "bucket" / "run").states()) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        run.terminate()
        assert run.wait(60) == 143
    assert DiskStates(tmp_path / "bucket" / "run").states() == DiskStates(tmp_path / "first").states()
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "hurry").touch()
    resume = [sys.executable, "-m", "swell", "resume", url, "--into", str(tmp_path / "second")]
    refused = subprocess.run(resume, env=environment(), capture_output=True, text=True)
    assert refused.returncode == 2 and "--trust" in refused.stderr
    subprocess.run([*resume, "--trust"], env=environment(), check=True, timeout=200, stdout=subprocess.DEVNULL)
    alone = train_alone(tmp_path / "alone", "6", "0", script=TRAINING)
    found = json.loads((tmp_path / "weights.json").read_text())
    assert math.dist(alone, found) / math.hypot(*alone) < 1e-6
