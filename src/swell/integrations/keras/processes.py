"""The processes that train one Keras model together: what they exchange, and which of them writes."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras


class Processes(Protocol):
    """Every process calls the same methods in the same order."""

    chief: bool  # whether this process writes the checkpoints and the log
    count: int  # processes that take a share of each step; 1 if all compute each pass together
    rank: int  # this process among them

    def numbers(self, number: float) -> list[float]:
        """The number of each process, in the same order on all."""
        ...

    def sum(self, tensors: Sequence[Any]) -> None:
        """Replace each tensor by its sum over the shares, in place."""
        ...

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give every process the first one's values."""
        ...

    def average(self, variables: Sequence[Any]) -> None:
        """Replace floating-point variables, such as batch-norm statistics, by their mean over the shares."""
        ...

    def train_function(self, model: Any) -> Callable[[Any], Any] | None:
        """The function that ``fit`` must use for one pass; None for Keras's own."""
        ...


class OneProcess:
    """One process, or several that JAX runs as one program: there is nothing to exchange."""

    chief = True
    count, rank = 1, 0

    def numbers(self, number: float) -> list[float]:
        return [number]

    def sum(self, tensors: Sequence[Any]) -> None:
        pass

    def broadcast(self, variables: Sequence[Any]) -> None:
        pass

    def average(self, variables: Sequence[Any]) -> None:
        pass

    def train_function(self, model: Any) -> None:
        return None


def processes_of(optimizer: Any) -> Processes:
    """The processes that train with this optimizer."""
    if keras.backend.backend() == "tensorflow":
        from swell.integrations.keras.tensorflow_processes import tensorflow_processes

        return tensorflow_processes(optimizer._distribution_strategy) or OneProcess()
    return sharing_processes()


def sharing_processes() -> Processes:
    """The processes that take a share of each step: those of torch's process group; elsewhere this one."""
    if keras.backend.backend() != "torch":
        return OneProcess()
    from swell.integrations.keras.torch_processes import torch_processes

    return torch_processes() or OneProcess()
