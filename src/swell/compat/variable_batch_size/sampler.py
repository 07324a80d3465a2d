"""The batch sampler: which samples this replica computes, minibatch by minibatch, under a trace of batch sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Sized

import numpy as np
from torch.utils.data import Sampler

from swell.core.counts import whole_number
from swell.core.order import Shuffled
from swell.core.planning import plan_remainder
from swell.core.types import MicroBatch, Observation, Plan
from swell.errors import ConfigError, TraceError
from swell.policies.trace import AtEnd, Trace
from swell.runtime.script_group import present_collective


class CustomSampler(Sampler[list[int]]):
    """Lists of indices for ``DataLoader(batch_sampler=...)``: each step of the trace, cut into minibatches.

    The steps of an epoch take the batch sizes of the trace one after another until the data set is read once. Each
    step is cut into minibatches of ``minibatch_size``, which are dealt out to the replicas in turn. If there are fewer
    minibatches than replicas, some replicas read nothing in that step.

    Args:
        dataset: the data set, or its size; ``dataset_size`` is the same by the name in the original's README.
        trace: path of a CSV file with a column ``batchsize``, one row for each step over all epochs; or a list, or a
            number for all steps.
        seed: seed of the shuffle; the order of an epoch depends on seed and epoch alone.
        num_replicas: how many replicas share each step; by default the size of the process group.
        rank: this replica's number; by default its rank in the process group.
        minibatch_size: the most samples of one forward pass.
        verbose: print the epoch's number of steps on rank 0.
        at_end: what happens after the last row of the trace: ``"error"``, ``"hold"`` its size, or ``"stop"``.
        multiples_only: whether a batch size that is not a multiple of the minibatch is an error; otherwise the last
            minibatch of such a step is smaller and weighs less.
        drop_last: if the next size of the trace is larger than the rest of the data set, skip that rest and start the
            next epoch with this size. By default the remaining samples make a shorter step.

    >>> sampler = CustomSampler(dataset_size=160, trace=[64, 96, 160], num_replicas=1, rank=0, minibatch_size=32)
    >>> sampler.get_epochtrace(0), sampler.get_epochtrace(1), len(sampler)
    ([64, 96], [160], 5)
    """

    def __init__(
        self,
        dataset: Sized | int | None = None,
        trace: str | os.PathLike[str] | Sequence[int] | np.ndarray | int | None = None,
        seed: int = 42,
        num_replicas: int | None = None,
        rank: int | None = None,
        minibatch_size: int = 32,
        verbose: bool = False,
        *,
        dataset_size: int | None = None,
        at_end: AtEnd = "error",
        multiples_only: bool = True,
        drop_last: bool = False,
    ) -> None:
        data = dataset if dataset_size is None else dataset_size
        if data is None or (dataset is not None and dataset_size is not None):
            passed = "neither dataset nor dataset_size was" if data is None else "dataset and dataset_size were both"
            raise ConfigError(
                f"{passed} passed; expected one of the two. Pass the data set, or how many samples it has."
            )
        if trace is None:
            raise ConfigError(
                "trace is None; expected the batch sizes. Pass the path of a CSV file, a list of sizes, or one number."
            )
        self.dataset_size = len(data) if isinstance(data, Sized) else whole_number(data, name="dataset_size")
        self.minibatch_size = whole_number(minibatch_size, name="minibatch_size")
        self.num_replicas, self.rank = _place(num_replicas, rank)
        self.seed = seed
        self.epoch = 0
        self.first_step = 0  # of the current epoch; above 0 if a checkpoint of its middle was loaded
        self._trace = Trace(trace, at_end=at_end)
        self._drop_last = drop_last
        self._verbose = verbose
        self._resumed: tuple[int, int] | None = None
        self._starts = [0]  # the first row of each epoch, as far as they are known
        self._require_usable(multiples_only)

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch; call it before each one, on the sampler first and then on the optimizer."""
        self.epoch = whole_number(epoch, name="epoch", at_least=0)
        self.first_step = self._resumed[1] if self._resumed and self._resumed[0] == self.epoch else 0
        if self._verbose and self.rank == 0:
            print(
                f"epoch {self.epoch}: {len(self.get_epochtrace(self.epoch))} steps, {len(self)} minibatches on rank 0"
            )

    def __iter__(self) -> Iterator[list[int]]:
        order = Shuffled(self.dataset_size, seed=self.seed, epoch=self.epoch)
        start = 0
        for step, size in enumerate(self.get_epochtrace(self.epoch)):
            if step >= self.first_step:
                for micro in self.share(size):
                    first = start + micro.offset
                    yield order.indices(first, first + micro.size).tolist()
            start += size

    def __len__(self) -> int:
        """Minibatches this replica still reads in the current epoch."""
        return sum(len(self.share(size)) for size in self.get_epochtrace(self.epoch)[self.first_step :])

    def plan(self, size: int) -> Plan:
        """How a step of ``size`` samples is laid out on the replicas."""
        return plan_remainder(size, self.num_replicas, max_micro=self.minibatch_size, constant_micro=True)

    def share(self, size: int) -> tuple[MicroBatch, ...]:
        """This replica's minibatches of a step of ``size`` samples."""
        return self.plan(size).shares[self.rank]

    def get_epoch_range(self, epoch: int) -> tuple[int, int]:
        """The rows of an epoch in the trace: the first, and the one after the last."""
        start = self._start_of(epoch)
        return start, start + len(self.get_epochtrace(epoch))

    def get_epochtrace(self, epoch: int) -> list[int]:
        """The batch size of each step of an epoch."""
        row = self._start_of(epoch)
        sizes: list[int] = []
        left = self.dataset_size
        while left > 0:
            observation = self._observation(row + len(sizes), epoch, left)
            if self._trace.finished(observation):
                break
            size = self._trace.batch(observation)
            if size > left:
                if self._drop_last:
                    break
                size = left
            sizes.append(size)
            left -= size
        return sizes

    def get_batch_assignments(self, trace: Sequence[int]) -> list[list[int]]:
        """For each size, the numbers of the minibatches that this replica computes, if any."""
        assignments: list[list[int]] = []
        before = 0
        for size in trace:
            assignments.append([before + micro.offset // self.minibatch_size for micro in self.share(size)])
            before += self.plan(size).num_micro_batches
        return assignments

    def resume(self, epoch: int, step: int) -> None:
        """Start an epoch at one of its steps, now and whenever ``set_epoch`` goes to it."""
        self._resumed = (epoch, step)
        self.epoch, self.first_step = epoch, step

    def _start_of(self, epoch: int) -> int:
        while len(self._starts) <= epoch:
            last = len(self._starts) - 1
            self._starts.append(self._starts[last] + len(self.get_epochtrace(last)))
        return self._starts[epoch]

    def _observation(self, step: int, epoch: int, left: int) -> Observation:
        done = self.dataset_size - left
        return Observation(
            step=step,
            samples=epoch * self.dataset_size + done,
            epoch=epoch,
            epoch_samples=done,
            epoch_size=self.dataset_size,
            total_samples=None,
            progress=float(step),
            base_batch=self._trace.base,
            batch=self._trace.base,
            batch_since=0,
            replicas=self.num_replicas,
        )

    def _require_usable(self, multiples_only: bool) -> None:
        for row, size in enumerate(self._trace.sizes):
            if size > self.dataset_size:
                raise TraceError(
                    f"row {row} of the trace ({self._trace.source}) is {size}; expected at most {self.dataset_size}, "
                    "the samples of the data set. Lower that row, or train on more data."
                )
            if multiples_only and size % self.minibatch_size:
                raise TraceError(
                    f"row {row} of the trace ({self._trace.source}) is {size}; expected a multiple of minibatch_size="
                    f"{self.minibatch_size}. Round it, or pass multiples_only=False to end such a step with a smaller "
                    "minibatch."
                )


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    if num_replicas is None or rank is None:
        group = present_collective()
        num_replicas = group.size if num_replicas is None else num_replicas
        rank = group.rank if rank is None else rank
    replicas = whole_number(num_replicas, name="num_replicas")
    return replicas, whole_number(rank, name="rank", at_least=0, at_most=replicas - 1)
