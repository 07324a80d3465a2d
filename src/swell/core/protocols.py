"""Every seam of the library on one page: what can be replaced, and what a replacement must offer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from swell.core.events import Event
from swell.core.types import Decision, Factors, Layout, NoiseEstimate, Observation, ScaleState

if TYPE_CHECKING:
    from swell.core.goodput import Outlook
    from swell.core.world_bounds import WorldBounds


class PendingSum(Protocol):
    """A sum over replicas that is under way; each method raises ``WorldError`` if a replica was lost."""

    def advance(self) -> None:
        """Begin what is left of it, where it travels in two parts: waits for the first of them."""
        ...

    def wait(self) -> None:
        """Return when it is there."""
        ...

    def drop(self) -> None:
        """Return when what was begun of it is over; the rest is not begun, and the sum is not there."""
        ...


@runtime_checkable
class Rule(Protocol):
    """How hyper-parameters follow the batch size: a function of its argument alone, not of the steps before."""

    def factors(self, state: ScaleState) -> Factors:
        """Factors of one parameter group for one step."""
        ...

    def gain(self, state: ScaleState) -> float:
        """How many base steps this step is worth; adds up to ``progress``."""
        ...


@runtime_checkable
class WrappingRule(Protocol):
    """A rule around another one."""

    @property
    def rule(self) -> Any:
        """The rule inside."""
        ...


@runtime_checkable
class MetricRule(Protocol):
    """A rule that names the moments it uses; others than plain ones are measured only for a rule that needs them."""

    @property
    def metric(self) -> str:
        """``"preconditioned"`` for moments in Adam's metric, ``"dual"`` for a dual norm, anything else for plain."""
        ...


@runtime_checkable
class SecondMomentRule(Protocol):
    """A rule that says what becomes of Adam's second moment when the batch changes."""

    @property
    def second_moment(self) -> str:
        """``"follow"`` if it is carried over to the new batch, anything else if it is left alone."""
        ...


@runtime_checkable
class WorthRule(Protocol):
    """A rule that names the law by which it counts a step: scale^(1 - power) times gain^power base steps."""

    @property
    def worth_power(self) -> float:
        """1 if a step is worth the measured gain, 0.5 if its geometric mean with the scale."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Which global batch the next step takes: a function of the observation alone, so a log can be replayed."""

    @property
    def base(self) -> int:
        """The global batch the user's learning rate was tuned for."""
        ...

    def batch(self, seen: Observation) -> int:
        """The next global batch, in samples."""
        ...


# What a policy may offer besides a batch. Ask with ``swell.policies.find``, which looks inside wrappers too.
# The check is slow for every step: ask once and keep the answer.


@runtime_checkable
class WrappingPolicy(Protocol):
    """A policy around another one: what it does not offer itself, the other one may."""

    @property
    def policy(self) -> Any:
        """The policy inside."""
        ...


@runtime_checkable
class FinitePolicy(Protocol):
    """A policy that knows when the run is over; the job asks before every step."""

    def finished(self, seen: Observation) -> bool:
        """Whether there is no next step; ``batch`` is not asked for then."""
        ...


@runtime_checkable
class LayoutPolicy(Protocol):
    """A policy that chooses the micro-batch too."""

    def layout(self, seen: Observation) -> Layout:
        """The next global batch with its largest micro-batch."""
        ...


@runtime_checkable
class NoiseFollowingPolicy(Protocol):
    """A policy that acts on the gradient noise: noise is measured more often while it waits for a sure estimate."""

    @property
    def follows_noise(self) -> bool: ...


@runtime_checkable
class NoiseAwaitingPolicy(Protocol):
    """A policy that knows when the noise is known well enough; without it, a sure estimate is awaited."""

    def awaits(self, noise: NoiseEstimate | None) -> bool:
        """Whether a surer estimate may change what it chooses."""
        ...


@runtime_checkable
class BoundedPolicy(Protocol):
    """A policy that knows which batches it may choose on any number of replicas."""

    @property
    def max(self) -> int | None:
        """The largest global batch; None if only ``micro`` bounds it."""
        ...

    @property
    def micro(self) -> Any:
        """The bounds on the micro-batch, as the user gave them."""
        ...

    def worlds(self, among: Iterable[int]) -> list[WorldBounds]:
        """For each number of replicas the smallest and the largest batch, or the bounds that rule it out."""
        ...


@runtime_checkable
class ForecastingPolicy(Protocol):
    """A policy that forecasts progress per second in other worlds."""

    def outlook(self, seen: Observation, replicas: Iterable[int]) -> dict[int, Outlook]:
        """The speedup on each number of replicas relative to now, with its error; empty before a step was measured."""
        ...


@runtime_checkable
class ExplainingPolicy(Protocol):
    """A policy that gives reasons for its choice."""

    def explain(self, seen: Observation) -> Decision:
        """The choice it makes of this observation, with its reasons."""
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
    """What replicas send one another. One process is a world of size 1, in which every call returns at once.

    Every member calls the same methods in the same order. A lost peer raises ``WorldError``.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """Every rank's float64 numbers, in rank order; every rank passes the same number of them."""
        ...

    def gather_text(self, text: str) -> list[str]:
        """Every rank's text, in rank order."""
        ...

    def sum_tensors(self, tensors: Sequence[Any]) -> None:
        """Replace each tensor by its sum over ranks, in place; tensors of one dtype and device are sent together."""
        ...

    def broadcast_tensors(self, tensors: Sequence[Any], *, source: int) -> None:
        """Overwrite each tensor with the source rank's, in place."""
        ...

    def barrier(self) -> None: ...


@runtime_checkable
class OverlappingCollective(Collective, Protocol):
    """A collective whose sums may be under way while something else is computed, numbers exchanged included."""

    def begin_sum(self, tensor: Any, *, narrow: bool = False) -> PendingSum:
        """Begin to replace a contiguous tensor by its sum over ranks; every rank begins the same sums in one order.

        With ``narrow`` its numbers travel in bfloat16 and are added up in their own type.
        """
        ...


class Sink(Protocol):
    """Anything that takes events: a log file, a progress line, a dashboard."""

    def emit(self, event: Event) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Stateful(Protocol):
    """Anything a checkpoint can hold."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...
