"""A world from an address, a rank and a size, for launchers that do not set torchrun's variables."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from swell.errors import ConfigError
from swell.runtime.peer_failures import lost_peers_as_world_errors
from swell.runtime.process_groups import DEFAULT_TIMEOUT_S, choose_backend, choose_device, join_default_group
from swell.runtime.world import StaticWorld


def open_direct_world(
    *,
    rank: int,
    size: int,
    address: str = "127.0.0.1",
    port: int = 0,
    nodes: int = 1,
    backend: str | None = None,
    local_rank: int | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> StaticWorld:
    """The static world of ``size`` processes that meet at ``address:port``, where rank 0 listens.

    A world of one process needs no port, but has a process group too. Raises ``ConfigError`` if the numbers do not fit
    together, ``WorldError`` if the others do not come.
    """
    if not 0 <= rank < size:
        raise ConfigError(f"rank is {rank}; expected 0 to {size - 1}. Give each of the {size} processes its own.")
    if size > 1 and not 0 < port < 65536:
        raise ConfigError(
            f"port is {port}; expected one from 1 to 65535 that is free on {address}. Give all {size} processes "
            f"the same port."
        )
    visible = torch.cuda.device_count()
    slot = local_rank if local_rank is not None else rank % visible if visible else rank
    device = choose_device("auto", local_rank=slot, backend=backend)
    store: dist.Store
    if size == 1:
        store = dist.HashStore()
    else:
        host = "127.0.0.1" if address in ("", "0.0.0.0") else address
        wait = timedelta(seconds=timeout_s)
        with lost_peers_as_world_errors(f"connecting to the others at {host}:{port}"):
            store = dist.TCPStore(host, port, size, is_master=rank == 0, timeout=wait, wait_for_workers=False)
    collective = join_default_group(
        backend=choose_backend(device, backend), device=device, timeout_s=timeout_s, store=store, rank=rank, size=size
    )
    return StaticWorld(collective, device=device, nodes=nodes, owns_group=True)
