"""Taking a model into a job: the same on every replica, with rank 0's weights, and stepped by nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from swell.errors import ConfigError, LoopError
from swell.gradients.placement import is_sharded
from swell.job.learner import Learner
from swell.job.peers import Peers
from swell.job.run_state import RunState
from swell.job.vote import agree_on_text


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without torch's own data parallelism, whose exchange is switched off, whichever of them is called.

    The job exchanges gradients itself, once a step. A second exchange in each backward pass would leave every replica
    with the same gradients, and no noise could be seen between them.
    """
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            module.require_backward_grad_sync = module.require_forward_param_sync = False
            if module.static_graph:  # would exchange once after the first backward pass, whatever the flags say
                module._static_graph_delay_allreduce_enqueued = True
    return model.module if isinstance(model, DistributedDataParallel) else model


def take_in(learner: Learner, *, state: RunState, peers: Peers, under_way: Callable[[], bool]) -> None:
    """Check a learner against the other replicas, give it rank 0's weights and add it to the run."""
    _refuse_twice(learner, state)
    if learner.sharded:
        if peers.elastic:
            raise ConfigError(
                "the model is sharded with FSDP2; expected one that every replica holds whole, because a worker that "
                "is lost takes its shards with it. Use `swell run --engine torchrun`, which resumes from the newest "
                "checkpoint on any number of workers."
            )
        state.pace.even = True
    if (peers.size > 1 or peers.elastic) and any(map(nn.parameter.is_lazy, learner.model.parameters())):
        raise ConfigError(
            "the model has lazy layers, whose parameters are made by the first batch; expected parameters that are "
            "there, because replicas compare and share them. Run one batch through the model before job.wrap, or give "
            "the layers their sizes."
        )
    if peers.size > 1 and not peers.elastic:
        remedy = "Build the same model with the same settings on every replica."
        agree_on_text(peers.collective, "the model", learner.description, remedy)
        tensors = [t for t in (*learner.model.parameters(), *learner.model.buffers()) if not is_sharded(t)]
        peers.collective.broadcast_tensors([tensor.detach() for tensor in tensors], source=0)
    state.learners.append(learner)
    _guard(learner, under_way)


def _refuse_twice(learner: Learner, state: RunState) -> None:
    if any(other.optimizer is learner.optimizer for other in state.learners):
        raise ConfigError("optimizer is wrapped already; expected a new one. Call job.wrap once for each optimizer.")
    schedulers = [other.schedule.scheduler for other in state.learners if other.schedule is not None]
    if learner.schedule is not None and any(other is learner.schedule.scheduler for other in schedulers):
        raise ConfigError("scheduler is wrapped already; expected one for each optimizer. Create another one.")


def _guard(learner: Learner, under_way: Callable[[], bool]) -> None:
    """Refuse steps of the optimizer by anybody but the job while the user goes through the training loader."""

    def refuse(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not learner.steps_now and under_way():
            raise LoopError(
                "optimizer.step() was called in the training loop, where the job steps the optimizer: it would move "
                "the weights by one micro-batch of one replica. Remove the call; job.step() does it."
            )

    if hasattr(learner.optimizer, "register_step_pre_hook"):
        learner.make_step.guard = learner.optimizer.register_step_pre_hook(refuse)
