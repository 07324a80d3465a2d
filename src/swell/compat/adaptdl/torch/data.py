"""Loaders of a global batch: split exactly over the replicas, resumed in the middle, with a batch that may grow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Sampler

from swell.compat.adaptdl.session import current_session
from swell.compat.adaptdl.torch import loops
from swell.compat.adaptdl.torch.autoscale import Bounds, autoscale, valid_bounds
from swell.compat.adaptdl.torch.loop_length import Tally, batches_of_first_loop, batches_of_loop
from swell.core.counts import whole_number
from swell.core.order import Sequential, Shuffled
from swell.core.protocols import Order
from swell.core.types import Plan
from swell.errors import ConfigError, DataError, LoopError
from swell.job import Job
from swell.loop.statistics import Statistics


def current_dataloader() -> AdaptiveDataLoaderHelper | None:
    """The helper of the loader that is being iterated; None outside a loop."""
    loader = current_session().current
    return loader if isinstance(loader, AdaptiveDataLoaderHelper) else None


class AdaptiveDataLoaderHelper:
    """The batch size and the place of a loader; ``loader._elastic``.

    A loader of your own may hold one: ``context()`` around its loop, ``skipdone()`` to skip a loop that was done before
    a restart, ``profile(commit)`` around each batch. Such a loop can only evaluate. Train with
    :class:`AdaptiveDataLoader`, because the job must split and commit the samples.
    """

    def __init__(self, batch_size: int = 1) -> None:
        session = current_session()
        self.batch_size = whole_number(batch_size, name="batch_size")
        self.number = len(session.loaders)
        session.loaders.append(self)
        self._max_batch_size: int | None = None
        self._bounds: Bounds | None = None
        self._accumulation = False
        self._length = 0
        self._source: dict[str, Any] = {}  # the arguments of Job.loader
        self.tally = Tally()

    # Settings

    @property
    def max_batch_size(self) -> int | None:
        """The largest global batch; None without autoscaling."""
        return self._max_batch_size

    @property
    def local_bsz_bounds(self) -> Bounds | None:
        """The smallest and largest batch that one replica computes at once."""
        return self._bounds

    @property
    def training(self) -> bool:
        """Whether this is the loader that trains."""
        return current_session().training is self

    def train(self) -> None:
        """Make this the loader that trains; so does ``autoscale_batch_size``, and training with it."""
        session = current_session()
        if session.training is not None and session.training is not self:
            raise LoopError(
                "a second AdaptiveDataLoader was made the training loader; expected one in a process. Join the data "
                "sets with torch.utils.data.ConcatDataset, or run a second job."
            )
        session.training = self

    def autoscale_batch_size(
        self, max_batch_size: int, local_bsz_bounds: Bounds | None = None, gradient_accumulation: bool = False
    ) -> None:
        """Let the global batch grow from ``batch_size`` up to ``max_batch_size`` if that makes progress faster.

        ``local_bsz_bounds`` limits the batch that one replica computes at once. Both limits are hard. Raises
        ``ConfigError`` (a ``ValueError``) if they exclude ``batch_size``.
        """
        if current_session().job is not None:
            raise LoopError(
                "autoscale_batch_size was called after training began; expected a call before. Call it before the loop."
            )
        self._max_batch_size, self._bounds = valid_bounds(self.batch_size, max_batch_size, local_bsz_bounds)
        self._accumulation = bool(gradient_accumulation)
        self.train()

    def job_settings(self) -> dict[str, Any]:
        """The arguments of a job that trains with this loader."""
        if self._max_batch_size is None:
            return {"batch": self.batch_size, "statistics": Statistics(split_every=None, budget=None)}
        max_batch = min(self._max_batch_size, self._length)
        low, high = self._bounds or (None, None)
        bounds = (low or 1, min(high or max_batch, max_batch))
        policy = autoscale(self.batch_size, max_batch=max_batch, bounds=bounds, accumulation=self._accumulation)
        # No budget: the length of a loop is told before it begins, so it must be known which steps are split.
        return {"batch": policy, "micro": bounds[1], "statistics": Statistics(budget=None)}

    def hand_over(self, job: Job) -> None:
        """Give the data to the job."""
        if not self._source:
            raise LoopError(
                "the training loader is built on AdaptiveDataLoaderHelper; expected an AdaptiveDataLoader, because the "
                "job must know the data set to commit each sample once. Use your own loader to evaluate only."
            )
        job.loader(**self._source)

    def set_source(self, length: int, source: dict[str, Any]) -> None:
        """Set the number of samples, and the data as arguments of ``Job.loader``."""
        self._length, self._source = length, source

    # Figures of the loop under way

    @property
    def current_batch_size(self) -> int | None:
        """The global batch of the step under way; None unless this loader is iterated."""
        plan = self._plan()
        return None if plan is None else plan.global_batch

    @property
    def current_local_bsz(self) -> int | None:
        """The largest batch that a replica computes at once in the step under way."""
        plan = self._plan()
        return None if plan is None else plan.micro_batch

    @property
    def accumulation_steps(self) -> int:
        """Batches before the one that updates the weights, in the step under way."""
        plan = self._plan()
        return 0 if plan is None else plan.accumulation - 1

    def is_optim_step(self) -> bool:
        """Whether the present batch completes a step on this replica."""
        step = loops.step_under_way()
        return step is None or step.is_last

    def is_accum_step(self) -> bool:
        """Whether more batches follow before the weights are updated."""
        return not self.is_optim_step()

    def _plan(self) -> Plan | None:
        session = current_session()
        if session.current is not self:
            return None
        step = loops.step_under_way()
        if self.training and step is not None:
            return step.plan
        return loops.evaluation_plan(min(self.batch_size, self._length or self.batch_size))

    @property
    def current_index(self) -> int | None:
        """Samples done in the loop under way, over all replicas; None outside it."""
        session = current_session()
        if session.current is not self:
            return None
        if self.training and session.job is not None:
            return session.job.engine.state.ledger.cursor
        return session.place.index

    @current_index.setter
    def current_index(self, index: int) -> None:
        session = current_session()
        if session.current is not self or self.training:
            raise LoopError(
                "current_index was set outside a loop of your own; expected `with helper.context()` around it, and "
                "another loader for training. Set it inside that block."
            )
        session.place.index = whole_number(index, name="current_index", at_least=0)

    @property
    def end_index(self) -> int:
        """Samples of one pass."""
        return self._length

    def skipdone(self) -> bool:
        """Whether the loop that begins now was done before a restart."""
        return current_session().place.enter_loop()

    def _sync_local_bsz(self) -> int:
        """The largest part that a replica takes of a global batch, in a loop of your own; equal on every replica."""
        return loops.evaluation_plan(self.batch_size).micro_batch

    @contextmanager
    def context(self) -> Iterator[None]:
        """Around a loop of your own: no other loader may be iterated inside it."""
        with loops.only_loop(self):
            yield

    @contextmanager
    def profile(self, commit: bool = True) -> Iterator[None]:
        """Around one batch of a loop of your own: stops the run here on notice. Every replica calls it."""
        current_session().stop_if_noticed()
        yield

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Write the batch's figures with a ``SummaryWriter``."""
        prefix = tag_prefix + "/" if tag_prefix and not tag_prefix.endswith("/") else tag_prefix
        writer.add_scalar(f"{prefix}Total_Batch_Size", self.current_batch_size or self.batch_size, global_step)
        writer.add_scalar(f"{prefix}Local_Batch_Size", self.current_local_bsz or self.batch_size, global_step)
        writer.add_scalar(f"{prefix}Accumulation_Steps", self.accumulation_steps, global_step)


class AdaptiveDataLoaderMixin:
    """A loader's settings and figures, from its helper."""

    def __init__(self, batch_size: int) -> None:
        self._elastic = AdaptiveDataLoaderHelper(batch_size)

    def autoscale_batch_size(
        self, max_batch_size: int, local_bsz_bounds: Bounds | None = None, gradient_accumulation: bool = False
    ) -> None:
        """As :meth:`AdaptiveDataLoaderHelper.autoscale_batch_size`."""
        self._elastic.autoscale_batch_size(max_batch_size, local_bsz_bounds, gradient_accumulation)

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """As :meth:`AdaptiveDataLoaderHelper.to_tensorboard`."""
        self._elastic.to_tensorboard(writer, global_step, tag_prefix)

    current_local_bsz = property(lambda self: self._elastic.current_local_bsz)
    current_batch_size = property(lambda self: self._elastic.current_batch_size)
    accumulation_steps = property(lambda self: self._elastic.accumulation_steps)
    max_batch_size = property(lambda self: self._elastic.max_batch_size)
    local_bsz_bounds = property(lambda self: self._elastic.local_bsz_bounds)
    training = property(lambda self: self._elastic.training)


class AdaptiveDataLoader(DataLoader, AdaptiveDataLoaderMixin):
    """Batches of a map-style data set; ``batch_size`` is the global batch, over all replicas.

    Takes the arguments of ``torch.utils.data.DataLoader`` except samplers. A loop over the training loader trains if
    gradients are enabled and a wrapped model is in training mode: each sample is then committed with the step that used
    it. Every other loop evaluates: each sample comes once, on one replica.

    It is a ``DataLoader`` for code that asks, and has its attributes. ``sampler`` is an :class:`ElasticSampler` to read
    from; the loader chooses its order by itself, so nothing that is set on the sampler changes it.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, **kwargs: Any) -> None:
        samplers = [name for name in ("sampler", "batch_sampler") if kwargs.pop(name, None) is not None]
        if samplers or isinstance(dataset, IterableDataset):
            argument = " and ".join(samplers) or f"an iterable data set ({type(dataset).__name__})"
            raise ConfigError(
                f"AdaptiveDataLoader was given {argument}; expected a map-style data set, whose order it chooses "
                f"itself. Use swell.Job.loader for samplers and streams."
            )
        length, drop_last = len(dataset), bool(kwargs.pop("drop_last", False))
        if length == 0:
            raise DataError("the data set has 0 samples; expected at least 1. Check the path of your data.")
        global_batch = whole_number(batch_size, name="batch_size")
        sampler = ElasticSampler(dataset, shuffle=shuffle)
        DataLoader.__init__(self, dataset, global_batch, sampler=sampler, drop_last=drop_last, **kwargs)
        AdaptiveDataLoaderMixin.__init__(self, global_batch)
        self.global_batch, self.shuffle = global_batch, shuffle
        self._loading = kwargs
        self._evaluation: loops.Evaluation | None = None
        source = {"dataset": dataset, "shuffle": shuffle, "drop_last": drop_last, **kwargs}
        self._elastic.set_source(length, source)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if loops.trains(self._elastic):
            return loops.training_loop(self._elastic, self._elastic.tally)
        if self._evaluation is None:
            self._evaluation = loops.Evaluation(
                self.dataset, self.global_batch, shuffle=self.shuffle, drop_last=self.drop_last, loading=self._loading
            )
        return loops.evaluation_loop(self._elastic, self._evaluation)

    def __len__(self) -> int:
        """Batches that this replica gets in a loop, if the global batch stays as it is.

        During a training loop it counts the batches so far and those to come; after the loop, in the same epoch, the
        batches of that loop; otherwise those of the next. A step that is split in two to be measured has two batches,
        and an autoscaled epoch lasts until its progress is reached.
        """
        session, helper, size = current_session(), self._elastic, self._elastic.end_index
        autoscaled = helper.max_batch_size is not None
        if self.training and session.job is not None:
            return batches_of_loop(session, helper.tally, session.job, autoscaled=autoscaled, drop_last=self.drop_last)
        if autoscaled:
            policy = helper.job_settings()["batch"]
            return batches_of_first_loop(session, policy, length=size, drop_last=self.drop_last)
        whole, rest = divmod(size, self.global_batch)
        return whole + (rest > 0 and not self.drop_last)


class ElasticSampler(Sampler):
    """One replica's part of a data set from a position on, in an order that depends only on seed and epoch.

    Rank ``r`` takes positions ``index + r``, ``index + r + K``, …; nothing is padded, so parts may differ by a sample.
    ``num_replicas`` and ``rank`` are the session's, and may be set.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, *, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        collective = current_session().collective
        self.num_replicas, self.rank = collective.size, collective.rank
        self.epoch, self.index = 0, 0

    def set_epoch(self, epoch: int, index: int = 0) -> None:
        """Set the epoch, which chooses the order, and the position to begin at; past the end is the next pass."""
        self.epoch = whole_number(epoch, name="epoch", at_least=0)
        self.index = whole_number(index, name="index", at_least=0)

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        passes, start = divmod(self.index, size)
        order: Order = Sequential(size)
        if self.shuffle:
            order = Shuffled(size, seed=self.seed, epoch=self.epoch + (passes << 32))
        return iter(order.indices(start, size)[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        rest = len(self.dataset) - self.index % len(self.dataset)
        return len(range(self.rank, rest, self.num_replicas))
