"""Taking a model into a job: the same on every replica, and with rank 0's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.errors import ConfigError
from swell.gradients.placement import is_sharded
from swell.job.checks import describe
from swell.job.trainee import Trainee
from swell.job.vote import agree_on_text

if TYPE_CHECKING:
    from swell.job.job import Job


def adopt(job: Job, trainee: Trainee) -> None:
    """Check a newcomer against the other replicas, give it rank 0's weights and let the job train it."""
    if any(other.optimizer is trainee.optimizer for other in job._trainees):
        raise ConfigError("this optimizer was given to job.wrap twice. Wrap each optimizer once.")
    if trainee.schedule is not None and any(
        other.schedule is not None and other.schedule.scheduler is trainee.schedule.scheduler for other in job._trainees
    ):
        raise ConfigError("this scheduler was given to job.wrap twice. Make one for each optimizer.")
    elastic = job._world.elastic
    if trainee.sharded:
        if elastic:
            raise ConfigError(
                "an FSDP2 model cannot be resized in place: a worker that is lost takes its shards with it. Use "
                "`swell run --engine torchrun`, which goes on from the newest checkpoint on any number of workers."
            )
        job._pace.even = True
    if job.collective.size > 1 and not elastic:
        agree_on_text(
            job.collective,
            "the model",
            describe(trainee),
            "Build the same model with the same settings on every replica.",
        )
        state = [t for t in (*trainee.model.parameters(), *trainee.model.buffers()) if not is_sharded(t)]
        job.collective.broadcast_tensors([tensor.detach() for tensor in state], source=0)
    job._trainees.append(trainee)
