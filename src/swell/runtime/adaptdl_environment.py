"""What AdaptDL's launchers say through ADAPTDL_* variables, read when asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptDLEnvironment:
    """The variables by name, without their prefix; None where one is not set."""

    checkpoint_path: str | None = None
    share_path: str | None = None
    job_id: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    replica_rank: int | None = None
    num_nodes: int | None = None
    num_replicas: int | None = None
    num_restarts: int | None = None
    sched_version: str | None = None
    supervisor_url: str | None = None
    tune_trial_sched: str | None = None


_NUMBERS = ("master_port", "replica_rank", "num_nodes", "num_replicas", "num_restarts")


def read_adaptdl_environment(environ: Mapping[str, str] | None = None) -> AdaptDLEnvironment:
    """What ``environ`` (``os.environ`` unless given) says; empty values count as unset.

    >>> read_adaptdl_environment({"ADAPTDL_NUM_REPLICAS": "4"}).num_replicas
    4
    """
    environ = os.environ if environ is None else environ
    found: dict[str, str | int | None] = {}
    for name in AdaptDLEnvironment.__slots__:
        value = environ.get(f"ADAPTDL_{name.upper()}") or None
        if value is not None and name in _NUMBERS:
            if not value.strip().isdecimal():
                raise ConfigError(
                    f"environment variable ADAPTDL_{name.upper()} is {value!r}, expected a whole number, 0 or more. "
                    f"Unset it or set it right."
                )
            found[name] = int(value)
        else:
            found[name] = value
    return AdaptDLEnvironment(**found)  # pyright: ignore[reportArgumentType]
