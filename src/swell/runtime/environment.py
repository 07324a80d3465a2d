"""The environment variables that swell reads, in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from swell.errors import ConfigError
from swell.supervisor.run_dir import RunDir
from swell.supervisor.supervision import Supervision

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The launcher's variables and swell's own; None for one that is not set."""

    rank: int | None = None  # RANK
    world_size: int | None = None  # WORLD_SIZE
    local_rank: int | None = None  # LOCAL_RANK
    local_world_size: int | None = None  # LOCAL_WORLD_SIZE
    num_nodes: int | None = None  # GROUP_WORLD_SIZE: agents of torchrun
    master_addr: str | None = None  # MASTER_ADDR
    master_port: int | None = None  # MASTER_PORT
    restart_count: int | None = None  # TORCHELASTIC_RESTART_COUNT
    ray_address: str | None = None  # RAY_ADDRESS: the head of a Ray cluster
    swell_channel: int | None = None  # SWELL_CHANNEL: the descriptor of the connection to the supervisor
    swell_member: int | None = None  # SWELL_MEMBER: this worker's name, never used twice in a run
    swell_slot: int | None = None  # SWELL_SLOT: the slot (device) of the machine that it uses
    swell_run_dir: str | None = None  # SWELL_RUN_DIR: the folder of the run
    swell_run_dir_given: str | None = None  # SWELL_RUN_DIR_GIVEN: set if the user chose that folder
    swell_supervisor: str | None = None  # SWELL_SUPERVISOR: the identity of the supervisor's process
    swell_keeper: str | None = None  # SWELL_KEEPER: the identity of the process that started this one
    swell_address: str | None = None  # SWELL_ADDRESS: the address of this machine in a run on several
    swell_fresh: bool = False  # SWELL_FRESH: start over, and set the run's checkpoints aside
    swell_rehearse: str | None = None  # SWELL_REHEARSE: measure only, as `swell noise` and `swell tune` ask
    swell_beat_s: float | None = None  # SWELL_BEAT_S: seconds between two heartbeats
    swell_faults: str | None = None  # SWELL_FAULTS: where to fail on purpose
    swell_strikes: str | None = None  # SWELL_STRIKES: whether signals make this worker get stuck, for `swell chaos`
    swell_events: str | None = None  # SWELL_EVENTS: a second file for a job's events

    @property
    def launched(self) -> bool:
        """Whether a launcher (torchrun or its like) placed this process in a world."""
        return self.rank is not None and self.world_size is not None

    @property
    def supervised(self) -> bool:
        """Whether ``swell run`` started this process."""
        return self.swell_channel is not None and self.swell_member is not None

    @property
    def supervision(self) -> Supervision | None:
        """The supervisor that started this process, if one did."""
        if not self.supervised or self.swell_run_dir is None or self.swell_supervisor is None:
            return None
        return Supervision(
            identity=self.swell_supervisor,
            lock=str(RunDir(self.swell_run_dir).lock_file),
            keeper=self.swell_keeper or self.swell_supervisor,
        )

    @property
    def nodes(self) -> int:
        """Number of machines in the world; 1 if the launcher does not say."""
        if self.num_nodes is not None:
            return max(1, self.num_nodes)
        if self.world_size and self.local_world_size:
            return -(-self.world_size // self.local_world_size)
        return 1


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """The variables in ``environ`` (default: ``os.environ``); empty values count as unset.

    >>> read_environment({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}).nodes
    2
    """
    environ = os.environ if environ is None else environ

    def text(name: str) -> str | None:
        return environ.get(name) or None

    def number(name: str, kind: Callable[[str], _Number], expected: str) -> _Number | None:
        value = text(name)
        try:
            return None if value is None else kind(value)
        except ValueError:
            raise ConfigError(
                f"environment variable {name} is {value!r}; expected {expected}. Unset it, or start the script with "
                f"torchrun or `swell run`."
            ) from None

    def whole(name: str) -> int | None:
        return number(name, int, "a whole number")

    environment = Environment(
        rank=whole("RANK"),
        world_size=whole("WORLD_SIZE"),
        local_rank=whole("LOCAL_RANK"),
        local_world_size=whole("LOCAL_WORLD_SIZE"),
        num_nodes=whole("GROUP_WORLD_SIZE"),
        master_addr=text("MASTER_ADDR"),
        master_port=whole("MASTER_PORT"),
        restart_count=whole("TORCHELASTIC_RESTART_COUNT"),
        ray_address=text("RAY_ADDRESS"),
        swell_channel=whole("SWELL_CHANNEL"),
        swell_member=whole("SWELL_MEMBER"),
        swell_slot=whole("SWELL_SLOT"),
        swell_run_dir=text("SWELL_RUN_DIR"),
        swell_run_dir_given=text("SWELL_RUN_DIR_GIVEN"),
        swell_supervisor=text("SWELL_SUPERVISOR"),
        swell_keeper=text("SWELL_KEEPER"),
        swell_address=text("SWELL_ADDRESS"),
        swell_fresh=_flag("SWELL_FRESH", text("SWELL_FRESH")),
        swell_rehearse=text("SWELL_REHEARSE"),
        swell_beat_s=number("SWELL_BEAT_S", float, "a number of seconds"),
        swell_faults=text("SWELL_FAULTS"),
        swell_strikes=text("SWELL_STRIKES"),
        swell_events=text("SWELL_EVENTS"),
    )
    rank, size = environment.rank, environment.world_size
    if (rank is None) != (size is None):
        present, missing = ("WORLD_SIZE", "RANK") if rank is None else ("RANK", "WORLD_SIZE")
        raise ConfigError(
            f"environment variable {present} is set and {missing} is not; expected both or neither. Start the script "
            f"with torchrun, which sets both, or unset it to run on one process."
        )
    if rank is not None and size is not None and not 0 <= rank < size:
        raise ConfigError(
            f"environment variable RANK is {rank}; expected 0 to WORLD_SIZE - 1 = {size - 1}. Start the script with "
            f"torchrun or `swell run`, or unset both to run on one process."
        )
    return environment


def _flag(name: str, value: str | None) -> bool:
    if value not in (None, "0", "1"):
        raise ConfigError(f"environment variable {name} is {value!r}; expected 1 or 0. Unset it for 0.")
    return value == "1"


def count_places() -> int:
    """How many workers fit on this machine: one per CUDA device if there is any, else one per core.

    Finds devices without torch, so that a supervisor starts at once.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        devices = len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    else:
        devices = len([entry for entry in Path("/dev").glob("nvidia*") if entry.name[6:].isdecimal()])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return devices or cores


def variables_for(*, rehearse: str) -> dict[str, str]:
    """This process's environment with the order to rehearse, for a script that is measured only."""
    return {**os.environ, "SWELL_REHEARSE": rehearse}
