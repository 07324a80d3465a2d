"""What ``swell launch`` prints is a script that bash reads, and objects as Kubernetes defines them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from swell.cli import main


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["launch", *arguments]) == 0
    return capsys.readouterr().out


def lines_of(tmp_path: Path, script: str, *, status: int) -> list[str]:
    """Run a batch script with stand-ins for Slurm and swell; what they were called with."""
    (tmp_path / "bin").mkdir()
    calls = tmp_path / "calls"
    run_task = 'while [ "${1#--}" != "$1" ]; do shift; done; "$@"'
    ends = {"swell": f'case "$1" in run) sleep 1; exit {status};; esac', "srun": run_task, "scontrol": ""}
    for name, then in ends.items():
        stand_in = tmp_path / "bin" / name
        stand_in.write_text(f'#!/bin/bash\necho {name} "$@" >> {calls}\n{then}\n')
        stand_in.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "12345"}
    done = subprocess.run(["bash", "-c", script], env=environ, timeout=60, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return calls.read_text().splitlines()


@pytest.mark.parametrize("status", [0, 143, 7])
def test_the_batch_script_starts_a_head_and_agents_and_is_requeued_when_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    run_dir = tmp_path / "a run"
    (run_dir / "control").mkdir(parents=True)
    (run_dir / "control" / "token").write_text("token")
    options = ("--nodes", "4", "--gpus", "8", "--run-dir", str(run_dir), "--grace", "90")
    script = printed(capsys, *options, "slurm", "train.py", "--name", "two words")
    for line in ("--nodes=4", "--gpus-per-node=8", "--signal=B:USR2@90", "--requeue", "--ntasks-per-node=1"):
        assert f"#SBATCH {line}\n" in script
    calls = lines_of(tmp_path, script, status=status)
    head = next(line for line in calls if line.startswith("swell run"))
    assert "--slots 0 --workers 1:32" in head and "train.py --name two words" in head and ":22345" in head
    agent = next(line for line in calls if line.startswith("swell agent"))
    assert "--slots 8" in agent and ":22345" in agent
    assert ("scontrol requeue 12345" in calls) == (status == 143)


def test_more_nodes_join_by_a_second_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = printed(capsys, "--nodes", "2", "--join", str(tmp_path), "slurm")
    subprocess.run(["bash", "-n", "-c", script], check=True)
    assert "swell run" not in script and f"RUN={tmp_path}" in script


def objects(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, Any]]:
    text = printed(capsys, "--image", "image", "--claim", "shared", *options, "kubernetes", "train.py", "--epochs", "3")
    parts = [json.loads(part) for part in text.split("---\n") if part]
    return {f"{part['kind']} {part['metadata']['name']}": part for part in parts}


def test_the_objects_are_a_secret_a_service_and_two_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    found = objects(capsys, "--nodes", "3", "--gpus", "2", "--name", "big", "--queue", "team")
    assert set(found) == {"Secret big-token", "Service big-head", "Job big-head", "Job big-agents"}
    head, agents = found["Job big-head"], found["Job big-agents"]
    assert len(bytes.fromhex(found["Secret big-token"]["stringData"]["token"])) == 32
    assert agents["spec"]["parallelism"] == 3
    assert agents["metadata"]["annotations"] == {"kueue.x-k8s.io/elastic-job": "true"}
    assert agents["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    selector = found["Service big-head"]["spec"]["selector"]
    for job in (head, agents):
        pod = job["spec"]["template"]["spec"]
        assert pod["restartPolicy"] == "Never", "a Job's pods may have no other, with a policy for failures"
        assert pod["terminationGracePeriodSeconds"] == 120
        container = pod["containers"][0]
        assert {"name": "SWELL_TOKEN", "valueFrom": {"secretKeyRef": {"name": "big-token", "key": "token"}}} in (
            container["env"]
        )
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
        for rule in job["spec"]["podFailurePolicy"]["rules"]:
            assert ("onExitCodes" in rule) != ("onPodConditions" in rule)
            assert 0 not in rule.get("onExitCodes", {}).get("values", [])
    assert selector.items() <= head["spec"]["template"]["metadata"]["labels"].items()
    assert agents["spec"]["template"]["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    line = head["spec"]["template"]["spec"]["containers"][0]["command"]
    assert line[-3:] == ["train.py", "--epochs", "3"] and "$(POD_IP):29777" in line


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in ((("slurm",), "script"), (("kubernetes", "train.py"), "--image")):
        assert main(["launch", *arguments]) == 2
        assert words in capsys.readouterr().err
