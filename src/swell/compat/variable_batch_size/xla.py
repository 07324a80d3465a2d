"""PyTorch-XLA behind swell's ``Collective``: written for the interface of torch_xla 2.9 and not yet run on a TPU."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from swell.errors import DependencyError


class XlaCollective:
    """The replicas of a PyTorch-XLA run: ``xm.all_reduce`` sums tensors, then ``sync`` runs the graph."""

    def __init__(self) -> None:
        try:
            self._xla: Any = importlib.import_module("torch_xla")
            self._model: Any = importlib.import_module("torch_xla.core.xla_model")
            runtime: Any = importlib.import_module("torch_xla.runtime")
        except ImportError as error:
            raise DependencyError(
                f"torch_xla cannot be imported ({error}); expected it for parameters on an XLA device. Install the "
                "torch_xla release for this torch, or pass your own collective=."
            ) from error
        self.size: int = runtime.world_size()
        self.rank: int = runtime.global_ordinal()

    def sum_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over replicas, in place."""
        if self.size > 1 and tensors:
            self._model.all_reduce(self._model.REDUCE_SUM, list(tensors))
        self._xla.sync()

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor], *, source: int) -> None:
        """Overwrite each tensor with the source replica's, in place: all others add zeros."""
        for tensor in tensors:
            if self.rank != source:
                tensor.zero_()
        self.sum_tensors(tensors)

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """Every replica's numbers, in the order of their ordinals."""
        table = torch.zeros(self.size, len(numbers), device=self._xla.device())
        table[self.rank] = torch.tensor(list(numbers), device=table.device)
        self.sum_tensors([table])
        return table.tolist()

    def gather_text(self, text: str) -> list[str]:
        """Every replica's text, in the order of their ordinals."""
        longest = int(max(row[0] for row in self.gather_numbers([len(text)])))
        rows = self.gather_numbers([float(ord(character)) for character in text.ljust(longest, "\0")])
        return ["".join(chr(int(code)) for code in row).rstrip("\0") for row in rows]

    def barrier(self) -> None:
        """Return once every replica has called it."""
        self._model.rendezvous("swell")
