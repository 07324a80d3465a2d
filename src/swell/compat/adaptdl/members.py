"""What a session requires of the objects that a script makes: models, loaders, accumulators and states."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from swell.compat.adaptdl.clipping import Clipping
from swell.job import Job


class Model(Protocol):
    """A wrapped model with its optimizer."""

    name: str
    module: nn.Module
    optimizer: Optimizer
    mp_scaler: Any | None
    clipping: Clipping

    def weights(self) -> dict[str, Any]:
        """The states of model, optimizer and scheduler."""
        ...

    def hand_over(self, job: Job) -> None:
        """Give the model and the optimizer to the job."""
        ...

    def unpatched(self) -> AbstractContextManager[None]:
        """While the body runs, ``optimizer.step`` is the optimizer's own."""
        ...


class Loader(Protocol):
    """A loader's helper."""

    number: int
    batch_size: int

    @property
    def max_batch_size(self) -> int | None:
        """The largest global batch; None without autoscaling."""
        ...

    def job_settings(self) -> dict[str, Any]:
        """The arguments of a job that trains with this loader."""
        ...

    def hand_over(self, job: Job) -> None:
        """Give the data to the job."""
        ...


class Accumulator(Protocol):
    """Values that are added on each replica, and summed over the replicas now and then."""

    epoch: int | None  # the epoch in which it was created; None outside an epoch

    @property
    def name(self) -> str:
        """Its name in checkpoints and between replicas."""
        ...

    def settle(self, *, keep: bool) -> None:
        """The step or batch under way has ended: count what it added, or drop it because its samples come again."""
        ...

    def unmerged(self) -> dict[Any, Any]:
        """What was added on this replica and is not in the sums over all replicas."""
        ...

    def merge(self, values: dict[Any, Any]) -> None:
        """Add a replica's values to the sums over all replicas."""
        ...

    def forget(self) -> None:
        """Drop what was added on this replica, because the sums over all replicas hold it."""
        ...

    def end_epoch(self) -> None:
        """The epoch is over."""
        ...


@dataclass(frozen=True, slots=True)
class NamedState:
    """A state that checkpoints hold under a name."""

    name: str
    sync: Callable[[], None]  # combines what the replicas hold; every replica calls it before a save
    capture: Callable[[], Any]  # the state as plain values
    restore: Callable[[Any], None]
