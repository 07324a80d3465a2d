"""The Ray cluster: how this process connects to it, and how many workers its nodes can hold."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

import ray

from swell.errors import ConfigError
from swell.runtime.environment import read_environment

_OURS = ("max_restarts", "max_task_retries", "lifetime", "name", "namespace", "max_concurrency", "get_if_exists")
_REACH_S = 10.0  # for the cluster's head to accept a connection; Ray itself would try for minutes
_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


def connect(*, or_start: bool = False) -> None:
    """Join the cluster that ``RAY_ADDRESS`` names, or that runs on this machine; nothing where that was done before.

    ``or_start`` starts one on this machine where there is none, as Ray's own trainers do.
    """
    if not ray.is_initialized():
        _check_reachable(read_environment().ray_address or "")
        try:
            if or_start:
                ray.init()
            else:
                ray.init(address="auto", log_to_driver=False, logging_level="warning")
        except ConnectionError as error:
            raise ConfigError(
                f"no Ray cluster can be reached ({error}); expected one that runs. Start one with `ray start --head`, "
                f"set RAY_ADDRESS, or submit the command with `ray job submit`."
            ) from error
    if ray.util.client.ray.is_connected():
        raise ConfigError(
            "the address of Ray is one of Ray Client (ray://); expected a process on a node of the cluster, because "
            "the nodes must reach it. Submit the command with `ray job submit`."
        )


def _check_reachable(address: str) -> None:
    """Refuse an address of a cluster's head that nobody listens at; other forms of addresses are Ray's to check."""
    host, separator, port = address.rpartition(":")
    if not separator or "/" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"RAY_ADDRESS is {address}, where nothing answers ({error}); expected the address of a running cluster's "
            f"head, as `ray start --head` prints it. Correct it, or unset it to use the cluster of this machine."
        ) from error


def disconnect() -> None:
    """Leave the cluster; it ends the actors of this process."""
    ray.shutdown()


def own_address() -> str:
    """The address of this node, by which the others reach it."""
    address = ray.util.get_node_ip_address()
    if ipaddress.ip_address(address).is_loopback and len({node["NodeManagerAddress"] for node in _alive()}) > 1:
        raise ConfigError(
            f"the address of this node in the Ray cluster is {address}; expected one that other nodes can reach. Give "
            f"--listen with the address of this machine."
        )
    return address


def actor_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of each worker's actor: those that are given, or a GPU where the cluster has any, else a core."""
    ours = [name for name in given if name in _OURS]
    if ours:
        raise ConfigError(
            f"the options of the actors have {', '.join(ours)}; expected none of {', '.join(_OURS)}, which are the "
            f"engine's own. Leave them out."
        )
    if given:
        return dict(given)
    gpus = any(node["Resources"].get("GPU", 0) for node in _alive())
    return {"num_cpus": 1, "num_gpus": 1} if gpus else {"num_cpus": 1}


def needs(options: Mapping[str, Any]) -> dict[str, float]:
    """What one actor with these options takes from its node.

    >>> needs({"num_cpus": 2, "resources": {"fast": 0.5}})
    {'CPU': 2, 'fast': 0.5}
    """
    own = {_NAMES[name]: options[name] for name in _NAMES if options.get(name)}
    return {**own, **(options.get("resources") or {})}


def capacity(options: Mapping[str, Any]) -> int:
    """How many actors with these options all nodes together could hold, if nothing else ran on them."""
    wanted = needs(options)
    return sum(
        min((int(node["Resources"].get(name, 0) / amount) for name, amount in wanted.items()), default=2**31)
        for node in _alive()
    )


def has_working_copy() -> bool:
    """Whether this process runs in a temporary copy of the user's folder, which Ray has made (``ray job submit``)."""
    return bool(ray.get_runtime_context().runtime_env.get("working_dir"))


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
