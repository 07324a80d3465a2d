"""A job that is closed before its loop was over, as by early stopping: nothing that was learnt is lost."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from swell.core.events import Warned
from swell.errors import CheckpointError, DisagreementError, WorldError
from swell.job.vote import meet

if TYPE_CHECKING:
    from swell.job.job import Job


def end_early(job: Job) -> None:
    """Save what was done since the last save, and say that the run stopped; not where the loop has done that itself.

    Nor where an exception is on its way: what led to it is not known to be sound, and the other replicas may know
    nothing of it and would be waited for. So an interrupted run goes on from its last save.
    """
    if job._announcer.over or not job._elasticity.joined or sys.exc_info()[0] is not None:
        return
    if job._rehearsal is not None or job._elasticity.broken or job._ending.first is not None:
        return  # the last: a facade brings its own sums together before a save, and saves itself
    job._stepping.leave()
    try:
        _save(job)
    except (WorldError, CheckpointError, DisagreementError) as error:  # closing is no time to fail, nor to try again
        message = f"what was done since the last save could not be saved when the job was closed: {error}"
        job._emit(Warned(time=time.time(), message=message))
    if job._announcer.begun:
        job._announcer.run_ended("stopped by the script")
    job._elasticity.leave()


def _save(job: Job) -> None:
    """Together with the other replicas, where the first one thinks that it is needed."""
    behind = job._keeper.behind
    if job.run_dir is None or job.steps == 0 or not (behind or job._world.elastic):
        return
    meet(job.collective)
    if job.collective.gather_numbers([float(behind)])[0][0]:  # one that joined since the last save does not know
        job._save()
