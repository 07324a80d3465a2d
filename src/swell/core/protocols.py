"""Every seam of the library on one page: what may be replaced, and what a replacement must offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from swell.core.events import Event
from swell.core.types import Factors, Observation, ScaleState


@runtime_checkable
class Rule(Protocol):
    """How hyper-parameters follow the batch size. A function of its argument alone, so no path can matter."""

    def factors(self, state: ScaleState) -> Factors:
        """Factors of one parameter group for one step."""
        ...

    def gain(self, state: ScaleState) -> float:
        """How many base steps this step is worth; adds up to ``progress``."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Which global batch the next step takes. A function of the observation alone, so a log can be replayed."""

    @property
    def base(self) -> int:
        """The global batch the user's learning rate was tuned for."""
        ...

    def batch(self, seen: Observation) -> int:
        """The next global batch, in samples."""
        ...


@runtime_checkable
class FinitePolicy(Policy, Protocol):
    """A policy that also knows when the run is over; the job asks before every step."""

    def finished(self, seen: Observation) -> bool:
        """Whether there is no next step; ``batch`` is not asked for then."""
        ...


class Order(Protocol):
    """The order of one epoch's samples, with random access."""

    def __len__(self) -> int:
        """Samples in the epoch."""
        ...

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Data set indices at positions ``start`` to ``stop``, int64."""
        ...


class Collective(Protocol):
    """What replicas tell one another. One process is a world of size 1, in which every call returns at once.

    Every member calls the same methods in the same order. A lost peer raises ``WorldError``.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """Every rank's float64 numbers, in rank order; every rank gives equally many."""
        ...

    def gather_text(self, text: str) -> list[str]:
        """Every rank's text, in rank order."""
        ...

    def sum_tensors(self, tensors: Sequence[Any]) -> None:
        """Replace each tensor by its sum over ranks, in place; tensors of one dtype and device travel together."""
        ...

    def broadcast_tensors(self, tensors: Sequence[Any], *, source: int) -> None:
        """Overwrite each tensor with the source rank's, in place."""
        ...

    def barrier(self) -> None: ...


class Sink(Protocol):
    """Anything that takes events: a log file, a progress line, a dashboard."""

    def emit(self, event: Event) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Stateful(Protocol):
    """Anything a checkpoint can hold."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...
