"""Plain Kubernetes objects for a run: a secret, a service, a Job for the head and a Job for the agents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swell.cli.notice_time import time_to_save
from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesRun:
    """What runs where."""

    name: str
    image: str
    agents: int  # pods, one agent each
    slots: int  # workers a pod
    workers: str
    run_dir: str  # inside the volume
    command: Sequence[str]
    token: str  # 64 hexadecimal digits
    claim: str  # the PersistentVolumeClaim that all pods share
    mount: str = "/data"
    gpus: int = 0  # GPUs a pod
    grace_s: int = 120
    queue: str = ""  # of Kueue; empty without it
    port: int = 29777


def kubernetes_manifests(run: KubernetesRun) -> str:
    """The objects as YAML for ``kubectl apply -f -``, written as JSON, which YAML contains.

    ``parallelism`` of the agents' Job is the size of the run: patch it, and pods join or get SIGTERM and leave.
    """
    if run.agents < 1 or run.slots < 1:
        raise ConfigError(f"agents is {run.agents} and slots is {run.slots}; expected 1 or more of both.")
    objects = [_secret(run), _service(run), _head(run), _agents(run)]
    return "".join(f"---\n{json.dumps(each, indent=2)}\n" for each in objects)


def _metadata(run: KubernetesRun, part: str) -> dict[str, Any]:
    return {"name": f"{run.name}-{part}", "labels": {"app.kubernetes.io/name": run.name, "swell/part": part}}


def _secret(run: KubernetesRun) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(run, "token"),
        "type": "Opaque",
        "stringData": {"token": run.token},
    }


def _service(run: KubernetesRun) -> dict[str, Any]:
    """A name for the head that stays when its pod is replaced; without an address of its own, so nothing is proxied."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(run, "head"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"app.kubernetes.io/name": run.name, "swell/part": "head"},
            "ports": [{"name": "swell", "port": run.port, "protocol": "TCP"}],
        },
    }


def _pod(run: KubernetesRun, part: str, line: Sequence[str], *, gpus: int) -> dict[str, Any]:
    resources = {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    return {
        "metadata": {"labels": _metadata(run, part)["labels"]},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": run.grace_s,
            "containers": [
                {
                    "name": part,
                    "image": run.image,
                    "command": list(line),
                    "workingDir": run.mount,
                    "env": [
                        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {
                            "name": "SWELL_TOKEN",
                            "valueFrom": {"secretKeyRef": {"name": f"{run.name}-token", "key": "token"}},
                        },
                    ],
                    "volumeMounts": [
                        {"name": "data", "mountPath": run.mount},
                        {"name": "shm", "mountPath": "/dev/shm"},
                    ],
                    **resources,
                }
            ],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": run.claim}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


def _head(run: KubernetesRun) -> dict[str, Any]:
    """The head's pod is replaced when it is lost or fails; it then resumes the run."""
    options = ["--listen", f"$(POD_IP):{run.port}", "--slots", "0", "--workers", run.workers]
    options += ["--run-dir", run.run_dir, "--grace", str(time_to_save(run.grace_s))]
    template = _pod(run, "head", ["swell", "run", *options, *run.command], gpus=0)
    spec = {
        "backoffLimit": 1000,
        "podReplacementPolicy": "Failed",  # never two heads at once
        # A pod that is evicted is replaced and resumes; a run that its owner has stopped stays so.
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 143]}},
            ]
        },
        "template": template,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(run, "head"), "spec": spec}


def _agents(run: KubernetesRun) -> dict[str, Any]:
    line = ["swell", "agent", f"{run.name}-head:{run.port}", "--slots", str(run.slots), "--wait", "3600"]
    metadata = _metadata(run, "agents")
    if run.queue:
        metadata["labels"] |= {"kueue.x-k8s.io/queue-name": run.queue}
        metadata["annotations"] = {"kueue.x-k8s.io/elastic-job": "true"}
    spec = {
        "parallelism": run.agents,
        "backoffLimit": 1000,
        "podReplacementPolicy": "Failed",
        # An agent that was asked to leave, or whose head is gone, has done its part.
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [143]}},
            ]
        },
        "template": _pod(run, "agents", line, gpus=run.gpus),
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
