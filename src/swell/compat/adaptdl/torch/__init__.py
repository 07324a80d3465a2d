"""AdaptDL's interface for PyTorch scripts, on a :class:`swell.Job`."""

from __future__ import annotations

from swell.compat.adaptdl.opening import address_of, open_session
from swell.compat.adaptdl.torch import accumulator, data, epoch, parallel, scaling_rules
from swell.compat.adaptdl.torch.accumulator import Accumulator
from swell.compat.adaptdl.torch.data import (
    AdaptiveDataLoader,
    AdaptiveDataLoaderHelper,
    AdaptiveDataLoaderMixin,
    ElasticSampler,
    current_dataloader,
)
from swell.compat.adaptdl.torch.epoch import current_epoch, finished_epochs, remaining_epochs_until
from swell.compat.adaptdl.torch.parallel import AdaptiveDataParallel

__all__ = [
    "Accumulator",
    "AdaptiveDataLoader",
    "AdaptiveDataLoaderHelper",
    "AdaptiveDataLoaderMixin",
    "AdaptiveDataParallel",
    "ElasticSampler",
    "accumulator",
    "current_dataloader",
    "current_epoch",
    "data",
    "epoch",
    "finished_epochs",
    "init_process_group",
    "parallel",
    "remaining_epochs_until",
    "scaling_rules",
]


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    world_size: int | None = None,
    rank: int | None = None,
) -> None:
    """Join the other replicas; call it once, before :class:`AdaptiveDataParallel`.

    The replicas are those of the arguments, else of ``swell run``, else of ADAPTDL_REPLICA_RANK and
    ADAPTDL_NUM_REPLICAS with ADAPTDL_MASTER_ADDR and ADAPTDL_MASTER_PORT, else of torchrun; otherwise there is one.
    Checkpoints are kept in ADAPTDL_CHECKPOINT_PATH; a run in that folder continues when training begins.
    """
    address, port = (None, None) if init_method in (None, "env://") else address_of(init_method or "")
    open_session(backend, address=address, port=port, rank=rank, size=world_size)
