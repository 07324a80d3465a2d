"""What ``swell launch kubernetes`` prints is valid by Kubernetes' published schemas, which know no unknown field."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from swell.cli import main

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make check installs it")

SCHEMAS = sorted((Path(__file__).parent / "kubernetes").glob("*.json"))
_JOB, _CORE = "io.k8s.api.batch.v1", "io.k8s.api.core.v1"
KINDS = {"Job": f"{_JOB}.Job", "Service": f"{_CORE}.Service", "Secret": f"{_CORE}.Secret"}
OPTIONS = [(), ("--gpus", "8", "--nodes", "4"), ("--queue", "team", "--grace", "600", "--workers", "2:8:2")]


def objects(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    line = ["launch", "--image", "registry.example/train:1", "--claim", "shared", *options, "kubernetes", "train.py"]
    assert main(line) == 0
    return [json.loads(part) for part in capsys.readouterr().out.split("---\n") if part]


def mistakes(path: Path, thing: dict[str, Any]) -> list[str]:
    definitions = json.loads(path.read_text())
    schema = {"$ref": f"#/$defs/{KINDS[thing['kind']]}", **definitions}
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(thing)]


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "GPUs", "Kueue"])
def test_every_object_is_valid(path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    found = objects(capsys, *options)
    assert sorted(thing["kind"] for thing in found) == ["Job", "Job", "Secret", "Service"]
    for thing in found:
        assert mistakes(path, thing) == []


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_the_schemas_find_a_field_that_does_not_exist_and_one_of_a_wrong_type(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = next(thing for thing in objects(capsys) if thing["kind"] == "Job")
    for place, name, value in (
        (("spec",), "paralelism", 2),
        (("spec",), "backoffLimit", "many"),
        (("spec", "template", "spec"), "terminationGracePeriod", 5),
        (("spec", "podFailurePolicy", "rules", 0), "actions", "Ignore"),
    ):
        wrong = copy.deepcopy(job)
        inside: Any = wrong
        for step in place:
            inside = inside[step]
        inside[name] = value
        assert mistakes(path, wrong), name


def test_pods_get_longer_than_the_run_takes_to_save(capsys: pytest.CaptureFixture[str]) -> None:
    for grace in ("60", "600"):
        for job in (thing for thing in objects(capsys, "--grace", grace) if thing["kind"] == "Job"):
            pod = job["spec"]["template"]["spec"]
            assert pod["terminationGracePeriodSeconds"] == int(grace)
            line = pod["containers"][0]["command"]
            if "--grace" in line:
                assert 0 < int(line[line.index("--grace") + 1]) < int(grace)


def test_kueue_sees_the_agents_as_an_elastic_job_and_nothing_else_is_queued(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = {thing["metadata"]["name"]: thing for thing in objects(capsys, "--queue", "team") if thing["kind"] == "Job"}
    agents = jobs["swell-agents"]["metadata"]
    assert agents["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert agents["annotations"]["kueue.x-k8s.io/elastic-job"] == "true"
    assert "kueue.x-k8s.io/queue-name" not in jobs["swell-head"]["metadata"]["labels"]
    plain = {thing["metadata"]["name"]: thing for thing in objects(capsys) if thing["kind"] == "Job"}
    assert "annotations" not in plain["swell-agents"]["metadata"]
