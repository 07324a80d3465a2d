"""What a session asks of the objects that a script makes: models, loaders, sums and states."""

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

    module: nn.Module
    optimizer: Optimizer
    mp_scaler: Any | None
    clipping: Clipping

    def hand_over(self, job: Job) -> None:
        """Put model and optimizer under the job's care."""
        ...

    def unpatched(self) -> AbstractContextManager[None]:
        """While the body runs, the optimizer's step is its own."""
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
        """What a job that trains with this loader is made with."""
        ...

    def hand_over(self, job: Job) -> None:
        """Give the data to the job."""
        ...


class Sums(Protocol):
    """An accumulator: values that are summed over replicas now and then."""

    epoch: int | None  # the epoch in which it was made; None outside

    @property
    def name(self) -> str:
        """What it is called in checkpoints and between replicas."""
        ...

    def settle(self, *, keep: bool) -> None:
        """The step under way was committed, or has to be done again."""
        ...

    def unmerged(self) -> dict[Any, Any]:
        """What was added here and is not summed over replicas yet."""
        ...

    def merge(self, values: dict[Any, Any]) -> None:
        """Add a replica's values to the sums over all replicas."""
        ...

    def forget(self) -> None:
        """Drop what was added here, because the sums over all replicas hold it."""
        ...

    def end_epoch(self) -> None:
        """The epoch is over."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that checkpoints hold under a name."""

    name: str
    sync: Callable[[], None]  # brings the replicas' parts together; every replica calls it before a save
    capture: Callable[[], Any]  # the state as plain values
    restore: Callable[[Any], None]
