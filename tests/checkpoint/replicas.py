"""What replicas do in the tests of checkpoints; imports no test tools, so that a worker starts quickly."""

from __future__ import annotations

from typing import Any

import torch

from swell.checkpoint import gather_values, share_state
from swell.core.protocols import Collective


def state_of(rank: int) -> dict[str, Any]:
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    moments = {i: {"step": torch.tensor(3.0), "exp_avg": torch.randn(rank + 2)} for i in range(4)}
    return {"model": model.state_dict(), "optimizer": {"state": moments}, "rank": rank, "raw": b"\0\xff" * rank}


def receive(collective: Collective, source: int) -> Any:
    return share_state(state_of(collective.rank), collective=collective, source=source)


def receive_in_place(collective: Collective, source: int) -> tuple[Any, dict[str, torch.Tensor]]:
    """What arrives, and what this rank's own weights are then."""
    own = state_of(collective.rank)
    return share_state(own, collective=collective, source=source, own={"model": own["model"]}), own["model"]


def gather(collective: Collective, destination: int | None) -> Any:
    return gather_values(collective, state_of(collective.rank), destination=destination)
