"""Taking a model into a job: the same on every replica, with rank 0's weights, and in nobody else's hands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from swell.errors import ConfigError, LoopError
from swell.gradients.placement import is_sharded
from swell.job.checks import describe
from swell.job.trainee import Trainee
from swell.job.vote import agree_on_text

if TYPE_CHECKING:
    from swell.job.job import Job


def bare(model: nn.Module) -> nn.Module:
    """The model without torch's own data parallelism, which exchanges nothing any more, whichever of them is called.

    The job exchanges gradients itself, once a step. A second exchange in each backward pass would leave every replica
    with the same gradients, and no noise to be seen between them.
    """
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            module.require_backward_grad_sync = module.require_forward_param_sync = False
            if module.static_graph:  # would be exchanged once after the first backward pass, whatever the flags say
                module._static_graph_delay_allreduce_enqueued = True
    return model.module if isinstance(model, DistributedDataParallel) else model


def guard(job: Job, trainee: Trainee) -> None:
    """Let nobody but the job step the optimizer while the user goes through the training loader."""

    def refuse(optimizer: Any, args: Any, kwargs: Any) -> None:
        if job._stepping.under_way and not trainee.steps_now:
            raise LoopError(
                "optimizer.step() was called in the training loop, where the job steps the optimizer: it would move "
                "the weights by one micro-batch of one replica. Remove the call; job.step() stands for it."
            )

    if hasattr(trainee.optimizer, "register_step_pre_hook"):
        trainee.guard = trainee.optimizer.register_step_pre_hook(refuse)


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
    guard(job, trainee)
