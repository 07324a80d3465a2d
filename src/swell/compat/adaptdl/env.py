"""The ADAPTDL_* variables, each read when it is asked for; where one is not set, what the running session knows."""

from __future__ import annotations

from swell.compat.adaptdl.session import current_session
from swell.runtime.adaptdl_environment import read_adaptdl_environment
from swell.runtime.environment import read_environment


def checkpoint_path() -> str | None:
    """The folder checkpoints are kept in, ADAPTDL_CHECKPOINT_PATH; None to keep none.

    Under ``swell run`` it is the run's folder unless the variable says otherwise.
    """
    return read_adaptdl_environment().checkpoint_path or read_environment().swell_run_dir


def share_path() -> str | None:
    """A folder all jobs share, ADAPTDL_SHARE_PATH."""
    return read_adaptdl_environment().share_path


def job_id() -> str | None:
    """The job's name, ADAPTDL_JOB_ID."""
    return read_adaptdl_environment().job_id


def master_addr() -> str:
    """Where rank 0 listens, ADAPTDL_MASTER_ADDR; "0.0.0.0" unless set."""
    return read_adaptdl_environment().master_addr or "0.0.0.0"


def master_port() -> int:
    """The port rank 0 listens on, ADAPTDL_MASTER_PORT; 0 unless set."""
    return read_adaptdl_environment().master_port or 0


def replica_rank() -> int:
    """This replica's number: ADAPTDL_REPLICA_RANK, else the session's, else torchrun's, else 0."""
    said = read_adaptdl_environment().replica_rank
    if said is not None:
        return said
    return current_session().collective.rank if current_session().opened else read_environment().rank or 0


def num_replicas() -> int:
    """How many replicas there are: ADAPTDL_NUM_REPLICAS, else the session's number, else torchrun's, else 1."""
    said = read_adaptdl_environment().num_replicas
    if said is not None:
        return said
    return current_session().collective.size if current_session().opened else read_environment().world_size or 1


def num_nodes() -> int:
    """Machines, ADAPTDL_NUM_NODES; what the launcher said unless set, and 1 where it said nothing.

    The original took every replica for a machine of its own, so that eight devices in one box looked like eight boxes.
    """
    said = read_adaptdl_environment().num_nodes
    return said if said is not None else read_environment().nodes


def num_restarts() -> int:
    """How often the job was restarted: ADAPTDL_NUM_RESTARTS, else torchrun's count, else 0."""
    said = read_adaptdl_environment().num_restarts
    return said if said is not None else read_environment().restart_count or 0


def adaptdl_sched_version() -> str | None:
    """The scheduler's version, ADAPTDL_SCHED_VERSION."""
    return read_adaptdl_environment().sched_version


def supervisor_url() -> str | None:
    """The scheduler's address, ADAPTDL_SUPERVISOR_URL."""
    return read_adaptdl_environment().supervisor_url


def from_ray() -> bool:
    """Whether Ray Tune's AdaptDL scheduler started this trial, ADAPTDL_TUNE_TRIAL_SCHED."""
    return (read_adaptdl_environment().tune_trial_sched or "").lower() == "true"
