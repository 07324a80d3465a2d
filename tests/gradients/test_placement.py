"""A tensor is known to be whole or in pieces, and a piece is this replica's own memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from swell.gradients.placement import copies, is_sharded, local
from tests.workers import run_workers


@pytest.mark.parametrize("tensor", [torch.ones(3), nn.Parameter(torch.ones(2)), torch.ones(2).to_sparse()])
def test_a_plain_tensor_is_whole_and_its_own_piece(tensor: torch.Tensor) -> None:
    assert not is_sharded(tensor)
    assert local(tensor) is tensor
    assert copies(tensor) == 1


def look_at_pieces(collective: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")[-len(shape) :]
    model = nn.Linear(1, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(4.0).view(4, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    weight = model.weight
    with torch.no_grad():
        local(weight).add_(10)
    return {
        "sharded": is_sharded(weight),
        "piece": local(weight).flatten().tolist(),
        "whole": weight.full_tensor().flatten().tolist(),  # type: ignore[attr-defined]
        "copies": copies(weight),
    }


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("shape", "pieces", "count"),
    [
        ((2,), [[10, 11], [12, 13]], 1),
        ((3,), [[10, 11], [12, 13], []], 1),
        ((2, 2), [[10, 11], [12, 13]] * 2, 2),
        ((2, 1), [[10, 11, 12, 13]] * 2, 2),
    ],
)
def test_replicas_hold_pieces_of_a_sharded_tensor_and_hsdp_holds_each_several_times(
    shape: tuple[int, ...], pieces: list[list[float]], count: int
) -> None:
    for piece, view in zip(pieces, run_workers(len(pieces), look_at_pieces, shape), strict=True):
        assert view == {"sharded": True, "piece": piece, "whole": [10, 11, 12, 13], "copies": count}
