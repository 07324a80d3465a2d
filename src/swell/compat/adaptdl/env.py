"""The ADAPTDL_* variables, each read when its function is called; without the variable, the session's value."""

from __future__ import annotations

from swell.compat.adaptdl.session import current_session
from swell.runtime.adaptdl_environment import read_adaptdl_environment
from swell.runtime.environment import read_environment


def checkpoint_path() -> str | None:
    """The folder of the checkpoints, ADAPTDL_CHECKPOINT_PATH; None to keep none.

    Under ``swell run`` it is the run's folder unless the variable is set.
    """
    return read_adaptdl_environment().checkpoint_path or read_environment().swell_run_dir


def share_path() -> str | None:
    """A folder that all jobs share, ADAPTDL_SHARE_PATH."""
    return read_adaptdl_environment().share_path


def job_id() -> str | None:
    """The job's name, ADAPTDL_JOB_ID."""
    return read_adaptdl_environment().job_id


def master_addr() -> str:
    """The address of rank 0, ADAPTDL_MASTER_ADDR; "0.0.0.0" unless set."""
    return read_adaptdl_environment().master_addr or "0.0.0.0"


def master_port() -> int:
    """The port of rank 0, ADAPTDL_MASTER_PORT; 0 unless set."""
    return read_adaptdl_environment().master_port or 0


def replica_rank() -> int:
    """This replica's number: ADAPTDL_REPLICA_RANK, else the session's, else torchrun's, else 0."""
    rank = read_adaptdl_environment().replica_rank
    if rank is not None:
        return rank
    return current_session().collective.rank if current_session().opened else read_environment().rank or 0


def num_replicas() -> int:
    """The number of replicas: ADAPTDL_NUM_REPLICAS, else the session's, else torchrun's, else 1."""
    replicas = read_adaptdl_environment().num_replicas
    if replicas is not None:
        return replicas
    return current_session().collective.size if current_session().opened else read_environment().world_size or 1


def num_nodes() -> int:
    """The number of machines: ADAPTDL_NUM_NODES, else the launcher's, else 1.

    The original counted every replica as a machine, so that eight devices in one machine looked like eight machines.
    """
    nodes = read_adaptdl_environment().num_nodes
    return nodes if nodes is not None else read_environment().nodes


def num_restarts() -> int:
    """The number of restarts of the job: ADAPTDL_NUM_RESTARTS, else torchrun's, else 0."""
    restarts = read_adaptdl_environment().num_restarts
    return restarts if restarts is not None else read_environment().restart_count or 0


def adaptdl_sched_version() -> str | None:
    """The scheduler's version, ADAPTDL_SCHED_VERSION."""
    return read_adaptdl_environment().sched_version


def supervisor_url() -> str | None:
    """The scheduler's address, ADAPTDL_SUPERVISOR_URL."""
    return read_adaptdl_environment().supervisor_url


def from_ray() -> bool:
    """Whether Ray Tune's AdaptDL scheduler started this trial, ADAPTDL_TUNE_TRIAL_SCHED."""
    return (read_adaptdl_environment().tune_trial_sched or "").lower() == "true"
