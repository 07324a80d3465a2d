"""The values that parts hand to one another: frozen, free of torch, counted in samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_ENOUGH = 16  # measured steps from which an interval is more than a guess


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known of a gradient's distribution: both in squared gradient units, noise per sample."""

    signal: float  # |G|^2, the squared norm of the true gradient
    noise: float  # tr(Sigma), the trace of the per-sample gradient covariance

    @property
    def noise_scale(self) -> float:
        """noise / signal in samples: the batch at which noise and signal are equal; infinite without signal."""
        if self.signal > 0:
            return max(self.noise, 0.0) / self.signal
        return math.inf if self.noise > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseEstimate:
    """Smoothed moments of the whole gradient and of each parameter group, and how sure they are."""

    total: Moments
    groups: tuple[Moments, ...]
    interval: tuple[float, float]  # 95 % interval of total.noise_scale, in samples
    observations: int  # steps that were measured

    @property
    def sure(self) -> bool:
        """Whether a policy may act on it: the interval is finite and its ends are within a factor of four."""
        low, high = self.interval
        return low > 0 and high <= 4 * low and high < math.inf

    @property
    def trusted(self) -> float | None:
        """The noise scale, in samples, where it is sure and a number; else None."""
        noise_scale = self.total.noise_scale
        return noise_scale if self.sure and math.isfinite(noise_scale) else None

    @property
    def at_least(self) -> float:
        """What the noise scale is no smaller than, sure or not: the interval's lower end, 0 while little was measured.

        Far below the noise scale a batch tells little of it but that it is far above; to grow, that is enough.
        """
        low = self.interval[0]
        return low if self.observations >= _ENOUGH and 0 < low < math.inf else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """How a rule changes one parameter group's hyper-parameters for one step; all ones change nothing.

    ``lr``, ``eps`` and ``weight_decay`` multiply. The others are exponents: a decay rate ``d`` per base step becomes
    ``d ** power``, which keeps its half-life in samples and never leaves [0, 1).
    """

    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0
    beta_power: float = 1.0  # Adam's betas
    momentum_power: float = 1.0  # SGD's momentum
    ema_power: float = 1.0  # a model average's decay


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """What a rule sees: where one step stands relative to the batch the user tuned for."""

    scale: float  # global batch / base batch
    base_batch: int
    moments: Moments | None = None  # of this parameter group; None until the first estimate
    preconditioned: Moments | None = None  # the same in Adam's metric; None where the optimizer has no second moment
    progress: float = 0.0  # accumulated base-equivalent steps before this step
    samples: int = 0  # samples committed before this step


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward/backward pass: ``size`` samples at ``offset`` from the step's first sample."""

    offset: int
    size: int
    weight: float  # size / global batch; 0 for one that is computed only to keep step with others


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one optimizer step is laid out: for each replica its micro-batches, in the order they are computed."""

    global_batch: int
    shares: tuple[tuple[MicroBatch, ...], ...]

    @property
    def replicas(self) -> int:
        return len(self.shares)

    @property
    def accumulation(self) -> int:
        """The largest number of micro-batches any replica computes."""
        return max(len(share) for share in self.shares)

    @property
    def micro_batch(self) -> int:
        """The largest micro-batch, in samples."""
        return max(micro.size for share in self.shares for micro in share)

    @property
    def num_micro_batches(self) -> int:
        """How many micro-batches count."""
        return sum(micro.weight > 0 for share in self.shares for micro in share)

    def share_sizes(self) -> tuple[int, ...]:
        """Samples of each replica that count in this step."""
        return tuple(sum(micro.size for micro in share if micro.weight > 0) for share in self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All a policy may look at when it chooses the next step's global batch."""

    step: int  # optimizer steps committed so far
    samples: int  # samples committed so far, over all epochs
    epoch: int
    epoch_samples: int  # samples committed in this epoch
    epoch_size: int | None  # samples of one epoch; None for a stream of unknown length
    total_samples: int | None  # samples of the whole run where the loop knows it
    progress: float  # accumulated base-equivalent steps
    base_batch: int
    batch: int  # what was chosen for the step before, whole even where an epoch's end cut it (at first the base batch)
    batch_since: int  # value of ``samples`` when ``batch`` was last changed
    replicas: int
    noise: NoiseEstimate | None = None
    times: StepTimes | None = None
    resized: bool = False  # whether the world changed since the step before
    feasible: bool = True  # whether ``batch`` can be laid out on these replicas
    capacity: tuple[float, ...] = field(default=())  # relative speed of each replica; empty when equal
    nodes: int = 1  # machines the replicas are spread over
    micro_batch: int | None = None  # the largest chosen for the step before, as ``batch``; None before the first
    max_micro: int | None = None  # largest micro-batch that may be tried, once memory ran out at a larger one
    profile: tuple[StepSummary, ...] = field(default=())  # what steps took so far, one summary per configuration
    total_progress: float | None = None  # base-equivalent steps after which the run ends, where progress ends it

    @property
    def done(self) -> float | None:
        """The part of the run that is done, 0 to 1; None where the loop does not know how long it is.

        Where progress ends the run it is told by progress: larger batches take more samples to get there.
        """
        if self.total_progress is not None:
            return min(1.0, self.progress / self.total_progress)
        return None if self.total_samples is None else min(1.0, self.samples / max(1, self.total_samples))

    def within_epoch(self, batch: int) -> int:
        """The batch, or the samples of an epoch where it has fewer: no step can take more."""
        return batch if self.epoch_size is None else min(batch, self.epoch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Measured durations of one committed step on its slowest replica, for the throughput model."""

    replicas: int
    nodes: int
    micro_batch: int
    accumulation: int
    step_s: float  # the whole step, loading included
    sync_s: float = 0.0  # the part spent waiting for the gradient exchange after compute, where it was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """What steps of one configuration take: a median over the newest ones, without warm-up."""

    replicas: int
    nodes: int
    micro_batch: int
    accumulation: int
    step_s: float  # median, in seconds
    count: int  # steps the median is over; as of the last time it was told, so that a summary seldom changes
    sync_s: float = 0.0  # median of what was spent waiting for the exchange; 0 where it was not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a policy may choose beyond the global batch: the largest micro-batch to lay it out with."""

    global_batch: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Why a policy chose what it chose: sentences for people, numbers for tools."""

    chosen: Layout
    current: Layout | None  # as it stood before; None before the first step
    reasons: tuple[str, ...]
    goodput: float | None = None  # predicted for ``chosen``, in base-equivalent samples a second; None when unknown
    current_goodput: float | None = None
    inputs: dict[str, float] = field(default_factory=dict)
