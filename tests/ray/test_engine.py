"""What the engine refuses, without a cluster."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import ray

from swell.errors import ConfigError
from swell.integrations.ray import cluster
from swell.integrations.ray.engine import RayEngine
from swell.supervisor.sizes import parse_sizes


def engine(run_dir: str = "runs/x", *, options: str = "", wait_s: float = 600.0) -> RayEngine:
    return RayEngine(parse_sizes("1:2"), options=options, run_dir=Path(run_dir), wait_s=wait_s, write=print)


def test_no_cluster_is_named_with_the_ways_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise ConnectionError("nobody is there")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ConfigError, match=r"nobody is there.*ray start --head.*RAY_ADDRESS"):
        engine()


@pytest.mark.parametrize("form", ["127.0.0.1:{port}", "[::1]:{port}"])
def test_an_address_where_nobody_listens_is_named_at_once(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        address = form.format(port=taken.getsockname()[1])
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=rf"RAY_ADDRESS is {re.escape(address)}, where nothing answers.*unset it"):
            engine()


def test_a_run_folder_in_rays_temporary_copy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "connect", lambda: None)
    monkeypatch.setattr(cluster, "has_working_copy", lambda: True)
    with pytest.raises(ConfigError, match=r"'runs/x', inside the temporary copy.*Give --run-dir with an absolute path"):
        engine()


@pytest.mark.parametrize("options", ["[]", "{", "num_cpus=1"])
def test_options_that_are_no_json_object_are_refused(options: str) -> None:
    with pytest.raises(ConfigError, match="expected options of a Ray actor as JSON"):
        engine(options=options)


def test_waiting_for_less_than_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="--ray-wait is -1; expected seconds above 0"):
        engine(wait_s=-1)


def test_options_of_actors_that_are_the_engines_own_are_refused() -> None:
    with pytest.raises(ConfigError, match="have lifetime; expected none"):
        cluster.actor_options({"num_cpus": 1, "lifetime": "detached"})


def test_the_room_of_a_cluster_is_counted_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 3, "fast": 1}}, {"Alive": True, "Resources": {"CPU": 8}}]
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 64}}])
    assert cluster.capacity({"num_cpus": 2}) == 1 + 4
    assert cluster.capacity({"num_cpus": 2, "resources": {"fast": 0.5}}) == 1
    assert cluster.capacity({"num_gpus": 1}) == 0
