"""Where an optimizer is in the trace: the epoch, the step, and how much of it is accumulated."""

from __future__ import annotations

from swell.compat.variable_batch_size.sampler import CustomSampler
from swell.core.types import MicroBatch


class TracePosition:
    """The next minibatch of this replica, counted in steps of the epoch and minibatches of the step."""

    def __init__(self, sampler: CustomSampler) -> None:
        self._sampler = sampler
        self.start(sampler.epoch)

    def start(self, epoch: int) -> None:
        """Go to the first step of an epoch that is still to be done."""
        self.epoch = epoch
        self.sizes = self._sampler.get_epochtrace(epoch)
        self.step = self._sampler.first_step if epoch == self._sampler.epoch else 0
        self.accumulated = 0  # minibatches of the current step

    def advance(self) -> None:
        """Go to the next step."""
        self.step += 1
        self.accumulated = 0

    @property
    def over(self) -> bool:
        """Whether the epoch has no step left."""
        return self.step >= len(self.sizes)

    @property
    def batch(self) -> int:
        """The batch size of the current step, or of the last one if the epoch is over."""
        return self.sizes[min(self.step, len(self.sizes) - 1)]

    @property
    def share(self) -> tuple[MicroBatch, ...]:
        """This replica's minibatches of the current step."""
        return self._sampler.share(self.sizes[self.step])

    @property
    def idle(self) -> bool:
        """Whether this replica has no minibatch in the current step."""
        return not self.over and not self.share

    @property
    def left_early(self) -> bool:
        """Whether some steps of the epoch are done and some are not."""
        return self._sampler.first_step < self.step < len(self.sizes)
