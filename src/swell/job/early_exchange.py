"""When one optimizer's gradients are summed while they are computed: agreed on by votes, for one world at a time."""

from __future__ import annotations

from swell.core.protocols import Collective, OverlappingCollective
from swell.errors import WorldError
from swell.gradients.gradient_sum import GradientSum
from swell.gradients.overlap import OverlappedSum, Pass
from swell.job.vote import Gather, Vote


class EarlyExchange:
    """Begins and ends the overlapped exchange of one optimizer, at the same step on every replica.

    Gradients are summed while they are computed from the first step of a world on, which every replica enters with the
    same models and optimizers. Several optimizers, closures and models that sum their gradients themselves sum them
    afterwards: where some replica's vote in a step says that it cannot, the next step does.
    """

    def __init__(self, gradients: GradientSum) -> None:
        self._gradients = gradients
        self.narrow = False  # whether float32 gradients travel in bfloat16
        self.overlap: OverlappedSum | None = None  # None while gradients are summed afterwards
        self.world: Collective | None = None  # that the step before was made in
        self.votes_carry_loss = False  # whether the loss of an unmeasured step travels in its votes
        self._last = Pass()  # the last backward pass of the step under way

    def expect(self, last: Pass, *, passes: int) -> None:
        """A backward pass over the step's last micro-batch is next, which had ``passes`` before."""
        overlap, self._last = self.overlap, last
        assert overlap is not None
        if overlap.begun:
            overlap.hold()
        elif passes + 1 == overlap.passes:
            overlap.arm(last)

    def passed(self, last: Pass, *, passes: int) -> None:
        """Remember how many passes the last micro-batch had; as many are expected in the next step."""
        assert self.overlap is not None
        self.overlap.passes, self._last = max(1, passes), last

    def send_rest(self) -> None:
        """Send what no backward pass has completed."""
        assert self.overlap is not None
        last, self._last = self._last, Pass()
        self.overlap.send_rest(last)

    def touched(self) -> bool:
        """Whether the user's loop changed gradients that are under way."""
        return self.overlap is not None and self.overlap.touched()

    def follow_votes(self, overlaps: bool, collective: Collective, *, on_host: bool = False) -> None:
        """After a step: go on in the way that all replicas can; ``on_host`` if all have their losses there."""
        self.votes_carry_loss = on_host
        if not overlaps:
            self.end()
        elif self.overlap is not None:
            self.overlap.settle()
        else:
            self._begin(collective)

    def enter(self, world: Collective, *, able: bool) -> None:
        """Before the first step of a world: what was under way in another one is forgotten.

        ``able`` where gradients can be summed while they are computed, which is the same on all replicas.
        """
        self.end()
        self.world, self.votes_carry_loss = world, False
        if able:
            self._begin(world)

    def _begin(self, collective: Collective) -> None:
        assert isinstance(collective, OverlappingCollective)
        order = list(reversed(range(len(self._gradients.parameters))))
        self.overlap = OverlappedSum(self._gradients, collective, order, narrow=self.narrow, numbers=len(Vote._fields))

    def gather_votes(self, world: Collective) -> Gather:
        """How votes travel outside of a step: as they do in one, where others may be."""
        overlap = self.overlap
        if overlap is None or overlap.carrier is None or self.world is not world:
            return world.gather_numbers
        if overlap.begun:  # the script does this between its backward pass and its step
            overlap.send_all_but_last(self._last)
        return overlap.carrier.gather

    def cancel(self) -> None:
        """The user leaves the step: complete what the other replicas expect of it, unless one was lost."""
        self._last = Pass()
        if self.overlap is not None and self.overlap.active:
            try:
                self.overlap.cancel()
            except WorldError:
                self.end()

    def end(self) -> None:
        """Sum gradients after they are computed from now on."""
        if self.overlap is not None:
            self.overlap.close()
            self.overlap = None
