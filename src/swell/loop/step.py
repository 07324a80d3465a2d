"""The step in progress: which micro-batch the user holds, what was done with it, what is still missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from swell.core.types import MicroBatch, Plan
from swell.errors import ConfigError, LoopError


class Phase(Enum):
    """How far a step is. With several optimizers, each is voted on and updated in turn before the commit."""

    OPEN = "open"  # its micro-batches are being computed
    VOTED = "voted"  # replicas have agreed to update, or to give it up
    UPDATED = "updated"  # an optimizer has stepped
    COMMITTED = "committed"  # its samples count as done, here or by the state of replicas that were ahead
    GIVEN_UP = "given up"  # its samples come again, or are passed over

    following: tuple[Phase, ...]  # what a step may become next; nothing where it has ended


Phase.OPEN.following = (Phase.VOTED, Phase.COMMITTED, Phase.GIVEN_UP)
Phase.VOTED.following = (Phase.UPDATED, Phase.VOTED, Phase.COMMITTED, Phase.GIVEN_UP)
Phase.UPDATED.following = (Phase.COMMITTED, Phase.VOTED, Phase.GIVEN_UP)
Phase.COMMITTED.following = Phase.GIVEN_UP.following = ()


@dataclass(slots=True)
class StepInProgress:
    """One optimizer step from its first micro-batch to its commit; nothing here outlives the step."""

    epoch: int
    start: int  # position of the step's first sample in the epoch
    plan: Plan
    rank: int
    mine: tuple[MicroBatch, ...] = field(init=False)  # this replica's micro-batches
    measured: bool  # whether its gradients are measured
    split: bool = False  # whether it was cut in two only to be measured
    paired: bool = False  # whether its gradient was compared with that of the step before
    index: int = -1  # of the micro-batch that the user holds; -1 before the first
    backwards: int = 0  # backward passes over that micro-batch
    left_out: int = 0  # samples by which that micro-batch seems to differ from what was asked for
    weight: float | None = None  # its explicit weight
    weight_sum: float = 0.0  # of this replica's micro-batches so far, where weights are explicit
    weighted: bool | None = None  # whether weights are explicit; None until the first backward pass
    taken: set[int] = field(default_factory=set)  # optimizers that have taken the gradients of that micro-batch
    stepped: set[int] = field(default_factory=set)  # optimizers that updated their weights in this step
    named: dict[int, set[int]] = field(
        default_factory=dict
    )  # optimizers named in backward passes: of which micro-batches
    closures: dict[int, list[tuple[int, Callable[..., Any], tuple[Any, ...]]]] = field(default_factory=dict)
    spoiled: str | None = None  # why the step cannot be finished
    touched: str | None = None  # what the user's loop did to gradients, so that the step must be done again
    foreign: bool = False  # whether the user ran the backward passes, with losses that were not weighted
    ran_out: int = 0  # samples of the micro-batch at which this replica's memory ran out; 0 where it did not
    waited_s: float = 0.0  # how long this replica waited for the step's data
    phase: Phase = Phase.OPEN
    ended: bool = field(default=False, init=False)  # whether nothing more happens in this step
    # Whether it ended while the user's code for it may still be under way: what that code does then counts nowhere.
    abandoned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.mine = self.plan.shares[self.rank]

    def enter(self, phase: Phase, *, by_others: bool = False) -> None:
        """Go on to another phase; only the ways of the machine above are possible.

        ``by_others``: the state of replicas that were ahead ended it, not a call of the user's.
        """
        assert phase in self.phase.following, f"a step that is {self.phase.value} cannot become {phase.value}"
        self.phase, self.ended = phase, not phase.following
        self.abandoned = phase is Phase.GIVEN_UP or (self.ended and by_others)

    @property
    def stop(self) -> int:
        """Position after the step's last sample."""
        return self.start + self.plan.global_batch

    @property
    def is_last(self) -> bool:
        """Whether the micro-batch that the user holds is this replica's last."""
        return self.index >= len(self.mine) - 1

    def round_weight(self, index: int) -> float:
        """The weight of micro-batch ``index`` of all replicas together; 0 where weights are explicit, so unknown."""
        if self.weighted:
            return 0.0
        return sum([share[index].weight for share in self.plan.shares if index < len(share)])

    def hand_out(self, index: int) -> MicroBatch:
        """Record that the user now holds micro-batch ``index``, and return it."""
        self.index, self.backwards, self.weight = index, 0, None
        self.taken.clear()
        return self.mine[index]

    def multiplier(self, weight: float | None) -> float:
        """The factor of the loss before its backward pass.

        By samples it is size / global batch. With an explicit ``weight`` it is weight / global batch, and the sums are
        divided by the mean weight when the step's total is known. All backward passes over one micro-batch share one
        weight: two losses add up, they do not dilute each other.
        """
        micro = self.mine[self.index]
        if self.weighted is not None and self.weighted != (weight is not None) and self.backwards == 0:
            raise ConfigError(
                f"weight is {weight} for micro-batch {self.index} of this step; expected "
                f"{'a number' if self.weighted else 'None'}, as for the ones before it. Pass weight= to every "
                f"job.backward call of the loop, or to none."
            )
        if self.backwards > 0 and weight != self.weight:
            raise ConfigError(
                f"weight is {weight} in a second backward pass over one micro-batch; expected {self.weight}, as in the "
                f"first. Multiply one of the losses instead."
            )
        if weight is None:
            self.weighted = False
            return micro.weight
        if not weight >= 0 or weight == float("inf"):
            raise ConfigError(
                f"weight is {weight}; expected a finite number, 0 or more. Check what is passed to job.backward."
            )
        if self.backwards == 0:
            self.weighted, self.weight = True, weight
            self.weight_sum += weight
        return weight / self.plan.global_batch

    def require_usable(self, call: str) -> None:
        """Refuse a call at a moment when it could only do harm; in the rest of an abandoned step it does nothing."""
        if self.abandoned:
            return
        if self.index < 0 or self.ended:
            raise LoopError(
                f"job.{call} was called without a micro-batch; expected one from the loader. Call it inside the loop "
                f"over job.loader(...), once for each batch it yields."
            )
        if self.spoiled is not None:
            raise LoopError(
                f"job.{call} was called after the step failed ({self.spoiled}); expected no more calls for it, because "
                f"its gradients are incomplete and nothing was committed. Call job.redo() and continue with the next "
                f"batch, and the step's samples come again; or leave the loop."
            )

    def require_finished(self) -> None:
        """Refuse to continue while the micro-batch that the user holds was not used."""
        if self.spoiled is None and not self.taken and not self.ended:
            missing = "job.backward and job.step were" if self.backwards == 0 else "job.step was"
            raise LoopError(
                f"{missing} not called for this batch ({self.mine[self.index].size} samples from position "
                f"{self.start + self.mine[self.index].offset}); expected it before the next batch, which would lose "
                f"them. Call job.backward(loss) and job.step() for every batch, or job.redo() to repeat the step from "
                f"its first sample. Nothing of this step was committed."
            )
