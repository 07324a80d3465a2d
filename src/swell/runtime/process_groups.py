"""Make and leave torch process groups: which device, which backend, and a clean end."""

from __future__ import annotations

import ctypes
import itertools
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from swell.core.protocols import Collective
from swell.errors import ConfigError, WorldError
from swell.runtime.collective import TorchCollective
from swell.runtime.peer_failures import lost_peers_as_world_errors

DEFAULT_TIMEOUT_S = 600.0  # how long a collective may take before its peers count as lost


def choose_device(device: torch.device | str, *, local_rank: int, backend: str | None = None) -> torch.device:
    """The device of this process: the one asked for, or for "auto" its own CUDA device, else the CPU.

    With NCCL each process needs a device of its own; with gloo several may share one.
    """
    wanted = torch.device("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else torch.device(device)
    if wanted.type != "cuda" or wanted.index is not None:
        return wanted
    if not torch.cuda.is_available():
        raise ConfigError(
            "device 'cuda' was asked for, but torch sees no CUDA device. Pass device='cpu' or 'auto', or check "
            "CUDA_VISIBLE_DEVICES and the installed torch build."
        )
    count = torch.cuda.device_count()
    if local_rank >= count and backend != "gloo":
        raise ConfigError(
            f"this is worker {local_rank} of its machine, which has {count} CUDA device(s); NCCL needs one for each. "
            f"Start at most {count} workers, or pass backend='gloo' to share devices, or device='cpu'."
        )
    return torch.device("cuda", local_rank % count)


_GROUPS = itertools.count()  # made by this process; every member has made as many


def choose_backend(device: torch.device, backend: str | None) -> str:
    """The backend asked for, else NCCL for CUDA devices where torch has it, and gloo for everything else."""
    if backend is not None:
        return backend
    return "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"


def join_default_group(
    *,
    backend: str,
    device: torch.device,
    timeout_s: float,
    store: Store | None = None,
    rank: int = -1,
    size: int = -1,
) -> TorchCollective:
    """Make the default process group (from the environment unless a store is given) and its control group."""
    timeout = timedelta(seconds=timeout_s)
    bound = device if backend == "nccl" else None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with lost_peers_as_world_errors("forming the world"):
        if store is None:
            shared, rank, size = next(dist.rendezvous("env://", timeout=timeout))
            # A job after another would otherwise find, under the same names, the addresses of the group before.
            store = dist.PrefixStore(f"swell/{next(_GROUPS)}", shared)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout, device_id=bound)
        return wrap_default_group(device, timeout_s=timeout_s)


def wrap_default_group(device: torch.device, *, timeout_s: float) -> TorchCollective:
    """A collective over the default group and a new gloo group beside it for numbers and text."""
    group = dist.group.WORLD
    if group is None:
        raise WorldError("there is no default process group to use. Call torch.distributed.init_process_group first.")
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    assert isinstance(control, dist.ProcessGroup)  # every rank is a member of it
    return TorchCollective(group, control, device)


def background_collective(collective: Collective) -> tuple[Collective, dist.ProcessGroup | None]:
    """The same replicas over a gloo group used for nothing else, and that group; alone, the collective itself.

    For what is said on another thread: it would otherwise meet training's messages. Every replica calls it.
    """
    if not isinstance(collective, TorchCollective):
        return collective, None
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)  # every rank is a member of it
    return TorchCollective(group), group


def set_timeout(collective: TorchCollective, timeout: timedelta) -> None:
    """Let collectives take this long from now on; forming the groups may have been given less."""
    for group in (collective.group, collective.control_group):
        dist.distributed_c10d._set_pg_timeout(timeout, group)


def abort_default_group(backend: str) -> None:
    """Forget the default group and all others, whole or half made, without waiting for anybody.

    NCCL's communicators must be aborted before new ones are made, for their kernels may wait for a peer that is gone.
    ``_abort_process_group`` does that (torch 2.6 and later); with gloo there is nothing to abort once its connections
    are cut.
    """
    if not dist.is_initialized():
        # torch names groups by counting them, counts also those that came to nothing, and starts anew only when a
        # default group is destroyed. Members that failed at different points would look for each other under
        # different names for ever.
        dist.distributed_c10d._world.group_count = 0
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if backend == "nccl" and abort is not None:
        abort()
    else:
        dist.destroy_process_group()


def keep_for_ever(collective: TorchCollective) -> None:
    """Never let go of groups in which a thread of gloo is stuck: their end would wait for it until its time-out."""
    for group in (collective.group, collective.control_group):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def leave_default_group(collective: TorchCollective) -> None:
    """Meet the others once more, unless an exception is on its way, then destroy the groups.

    Without the meeting, one rank may tear down its connections while another still reads from them, and gloo then
    aborts the process at exit.
    """
    try:
        if sys.exc_info()[0] in (None, SystemExit):  # otherwise the others do not know that we leave
            collective.barrier()
    except WorldError:
        pass  # a peer is gone: there is nobody to wait for
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
