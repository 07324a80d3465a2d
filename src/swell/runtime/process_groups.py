"""Make and leave torch process groups: device, backend, and a clean end."""

from __future__ import annotations

import ctypes
import itertools
import sys
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from swell.core.protocols import Collective
from swell.errors import ConfigError, WorldError
from swell.runtime.collective import TorchCollective
from swell.runtime.environment import read_environment
from swell.runtime.peer_failures import lost_peers_as_world_errors
from swell.runtime.strangers import closed_to_strangers

DEFAULT_TIMEOUT_S = 600.0  # after this time in a collective its peers count as lost


def choose_device(device: torch.device | str, *, local_rank: int, backend: str | None = None) -> torch.device:
    """The device of this process: the requested one, or for "auto" its own CUDA device, else the CPU.

    With NCCL each process needs a device of its own; with gloo several may share one.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    if device.type != "cuda" or device.index is not None:
        return device
    if not torch.cuda.is_available():
        raise ConfigError(
            "device is 'cuda'; expected 'cpu' or 'auto', because torch sees no CUDA device. Pass one of those, or "
            "check CUDA_VISIBLE_DEVICES and the installed torch build."
        )
    count = torch.cuda.device_count()
    if local_rank >= count and backend != "gloo":
        raise ConfigError(
            f"the local rank is {local_rank}; expected at most {count - 1}, because this machine has {count} CUDA "
            f"device(s) and NCCL needs one per worker. Start at most {count} workers, or pass backend='gloo' to share "
            f"devices, or device='cpu'."
        )
    return torch.device("cuda", local_rank % count)


_GROUPS = itertools.count()  # numbers the groups of this process; every member counts alike


def choose_backend(device: torch.device, backend: str | None) -> str:
    """The requested backend, else NCCL for CUDA devices if torch has it, and gloo otherwise."""
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
    """Make the default process group, from ``store`` or else from the environment, and its control group."""
    timeout = timedelta(seconds=timeout_s)
    bound = device if backend == "nccl" else None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with lost_peers_as_world_errors("forming the world"):
        if store is None:
            shared, rank, size = next(dist.rendezvous("env://", timeout=timeout))
            # Otherwise a second job would find the addresses of the first one's group under the same names, and workers
            # that torchrun has started again would find those of dead ones: its agent keeps the store.
            restart = read_environment().restart_count or 0
            store = dist.PrefixStore(f"swell/{restart}/{next(_GROUPS)}", shared)
        with closed_to_strangers() if backend == "gloo" else nullcontext():
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout, device_id=bound)
        return wrap_default_group(device, timeout_s=timeout_s)


def wrap_default_group(device: torch.device, *, timeout_s: float) -> TorchCollective:
    """A collective over the default group and a new gloo group beside it for numbers and text."""
    group = dist.group.WORLD
    if group is None:
        raise WorldError(
            "the default process group is missing; expected one. Call torch.distributed.init_process_group first."
        )
    with closed_to_strangers():
        control = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    assert isinstance(control, dist.ProcessGroup)  # every rank is a member of it
    return TorchCollective(group, control, device)


def background_collective(collective: Collective) -> tuple[Collective, dist.ProcessGroup | None]:
    """The same replicas over their own gloo group, and that group; in a world of one, the collective itself.

    Another thread must use it, because its messages would otherwise mix with those of training. Every replica calls it.
    """
    if not isinstance(collective, TorchCollective):
        return collective, None
    with closed_to_strangers():
        group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)  # every rank is a member of it
    return TorchCollective(group), group


def set_timeout(collective: TorchCollective, timeout: timedelta) -> None:
    """Set the time-out of collectives; the groups may have been formed with a shorter one."""
    for group in (collective.group, collective.control_group):
        dist.distributed_c10d._set_pg_timeout(timeout, group)


def abort_default_group(backend: str) -> None:
    """Forget the default group and all others, complete or not, without waiting for anybody.

    NCCL's communicators must be aborted before new ones are made, because their kernels may wait for a lost peer.
    ``_abort_process_group`` does that (torch 2.6 and later). With gloo there is nothing to abort once its connections
    are cut.
    """
    if not dist.is_initialized():
        # torch names groups by a counter, which also counts failed ones and restarts only when a default group is
        # destroyed. Members that failed at different points would look for each other under different names for ever.
        dist.distributed_c10d._world.group_count = 0
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if backend == "nccl" and abort is not None:
        abort()
    else:
        dist.destroy_process_group()


def keep_for_ever(collective: TorchCollective) -> None:
    """Never free groups in which a gloo thread is stuck: their destructor would wait for it until its time-out."""
    for group in (collective.group, collective.control_group):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def leave_default_group(collective: TorchCollective, *, alone: bool = False) -> None:
    """Wait for the others once more, unless there is an exception or this one leaves alone; then destroy the groups."""
    try:
        told = sys.exc_info()[0] in (None, SystemExit) and not alone  # otherwise the others do not know that it leaves
        if told and not collective.lost:
            collective.barrier()
    except WorldError:
        pass  # a peer is gone: there is nobody to wait for
    finally:
        drop_default_group(collective)


def drop_default_group(collective: TorchCollective) -> None:
    """Destroy all groups without waiting for anybody, and end their threads.

    A gloo thread that frees the tensors of the last exchange needs the interpreter's lock for it. If it gets there
    while the interpreter shuts down, Python ends the thread in the middle of C++ code, and the process aborts:
    "terminate called without an active exception". A group ends its threads when nobody holds it any more.
    """
    if collective.stuck:
        keep_for_ever(collective)
    if dist.is_initialized():
        dist.destroy_process_group()
    collective.release()


def drop_control_group(collective: TorchCollective) -> None:
    """The same for the control group alone, because the default group is the script's own."""
    if dist.is_initialized() and collective.control_group is not collective.group:
        dist.destroy_process_group(collective.control_group)
    collective.release()
