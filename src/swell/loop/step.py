"""The state of the step under way: which micro-batch is out, what was done with it, what must still come."""

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


_NEXT = {
    Phase.OPEN: {Phase.VOTED, Phase.COMMITTED, Phase.GIVEN_UP},
    Phase.VOTED: {Phase.VOTED, Phase.UPDATED, Phase.COMMITTED, Phase.GIVEN_UP},
    Phase.UPDATED: {Phase.VOTED, Phase.COMMITTED, Phase.GIVEN_UP},
    Phase.COMMITTED: set(),
    Phase.GIVEN_UP: set(),
}


@dataclass
class StepInProgress:
    """One optimizer step from its first micro-batch to its commit; nothing here outlives the step."""

    epoch: int
    start: int  # position of the step's first sample in the epoch
    plan: Plan
    rank: int
    measured: bool  # whether its gradients are measured
    split: bool = False  # whether it was cut in two only to be measured
    paired: bool = False  # whether its gradient was compared with that of the step before
    index: int = -1  # of the micro-batch that is out
    backwards: int = 0  # backward passes since it went out
    weight: float | None = None  # the explicit weight of the micro-batch that is out
    weight_sum: float = 0.0  # of this replica's micro-batches so far, where weights are given
    weighted: bool | None = None  # whether weights are given; None until the first backward
    taken: set[int] = field(default_factory=set)  # trainees that are done with the micro-batch that is out
    stepped: set[int] = field(default_factory=set)  # trainees that updated their weights in this step
    closures: dict[int, list[tuple[int, Callable[..., Any], tuple[Any, ...]]]] = field(default_factory=dict)
    spoiled: str | None = None  # why the step cannot be finished
    ran_out: int = 0  # the micro-batch at which memory ran out here, in samples; 0 where it did not
    phase: Phase = Phase.OPEN

    def enter(self, phase: Phase) -> None:
        """Go on to another phase; only the ways of the machine above are possible."""
        assert phase in _NEXT[self.phase], f"a step that is {self.phase.value} cannot become {phase.value}"
        self.phase = phase

    @property
    def ended(self) -> bool:
        """Whether nothing more happens in this step."""
        return self.phase is Phase.COMMITTED or self.phase is Phase.GIVEN_UP

    @property
    def stop(self) -> int:
        """Position after the step's last sample."""
        return self.start + self.plan.global_batch

    @property
    def mine(self) -> tuple[MicroBatch, ...]:
        """This replica's micro-batches."""
        return self.plan.shares[self.rank]

    @property
    def is_last(self) -> bool:
        """Whether the micro-batch that is out is this replica's last."""
        return self.index >= len(self.mine) - 1

    def round_weight(self, index: int) -> float:
        """The weight of micro-batch ``index`` of all replicas together; 0 where explicit weights leave that unknown."""
        if self.weighted:
            return 0.0
        return sum(share[index].weight for share in self.plan.shares if index < len(share))

    def hand_out(self, index: int) -> MicroBatch:
        """Note that the user now holds micro-batch ``index``."""
        self.index, self.backwards, self.weight = index, 0, None
        self.taken.clear()
        return self.mine[index]

    def multiplier(self, weight: float | None) -> float:
        """What the loss of the micro-batch that is out is multiplied by before its backward pass.

        By samples it is size / global batch, final. With explicit weights it is weight / global batch, and the sums
        are divided by the mean weight when the step's total is known. All backward passes over one micro-batch share
        one weight: two losses add up, they do not dilute each other.
        """
        micro = self.mine[self.index]
        if self.weighted is not None and self.weighted != (weight is not None) and self.backwards == 0:
            raise ConfigError(
                f"micro-batch {self.index} of this step was {'not ' if weight is None else ''}given a weight, the "
                f"ones before it were {'' if weight is None else 'not '}. Pass weight= to every job.backward call "
                f"of the loop, or to none."
            )
        if self.backwards > 0 and weight != self.weight:
            raise ConfigError(
                f"two backward passes over one micro-batch were given the weights {self.weight} and {weight}; "
                f"expected one weight a micro-batch. Multiply one of the losses instead."
            )
        if weight is None:
            self.weighted = False
            return micro.weight
        if not weight >= 0 or weight == float("inf"):
            raise ConfigError(f"weight={weight} was given to job.backward; expected a finite number, 0 or more.")
        if self.backwards == 0:
            self.weighted, self.weight = True, weight
            self.weight_sum += weight
        return weight / self.plan.global_batch

    def require_usable(self, call: str) -> None:
        """Refuse a call that comes at a moment when it could only do harm."""
        if self.index < 0 or self.ended:
            raise LoopError(
                f"job.{call} was called with no micro-batch out. Call it inside the loop over job.loader(...), once "
                f"for each batch it yields."
            )
        if self.spoiled is not None:
            raise LoopError(
                f"job.{call} was called after the step failed ({self.spoiled}). Its gradients are incomplete, so "
                f"nothing was committed: go on with the next batch (`continue`) after job.redo(), and the step's "
                f"samples come again; or leave the loop."
            )

    def require_finished(self) -> None:
        """Refuse to go on while the micro-batch that is out was not used."""
        if self.spoiled is None and not self.taken and not self.ended:
            missing = "job.backward and job.step were" if self.backwards == 0 else "job.step was"
            raise LoopError(
                f"the loader was asked for the next batch, but {missing} not called for the one before "
                f"({self.mine[self.index].size} samples from position {self.start + self.mine[self.index].offset}); "
                f"going on would lose them. Call job.backward(loss) and job.step() for every batch, or job.redo() to "
                f"do the step again from its first sample. Nothing of this step was committed."
            )
