"""The ADAPTDL_* environment variables, which AdaptDL's launchers set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptDLEnvironment:
    """The variables without their prefix; None for one that is not set."""

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
    """The variables in ``environ`` (default: ``os.environ``); empty values count as unset.

    >>> read_adaptdl_environment({"ADAPTDL_NUM_REPLICAS": "4"}).num_replicas
    4
    """
    environ = os.environ if environ is None else environ
    values: dict[str, str | int | None] = {}
    for name in AdaptDLEnvironment.__slots__:
        value = environ.get(f"ADAPTDL_{name.upper()}") or None
        if value is not None and name in _NUMBERS:
            if not value.strip().isdecimal():
                raise ConfigError(
                    f"environment variable ADAPTDL_{name.upper()} is {value!r}; expected a whole number, 0 or more. "
                    f"Unset or correct it."
                )
            values[name] = int(value)
        else:
            values[name] = value
    return AdaptDLEnvironment(**values)  # pyright: ignore[reportArgumentType]
