"""The values that parts pass to one another: frozen, free of torch, counted in samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_ENOUGH = 16  # measured steps from which the lower end of an interval can be trusted


@dataclass(frozen=True, slots=True)
class Moments:
    """A gradient's signal and noise, both in squared gradient units, noise per sample."""

    signal: float  # |G|^2, the squared norm of the true gradient
    noise: float  # tr(Sigma), the trace of the per-sample gradient covariance

    @property
    def noise_scale(self) -> float:
        """noise / signal in samples: the batch at which both are equal; infinite without signal."""
        if self.signal > 0:
            return max(self.noise, 0.0) / self.signal
        return math.inf if self.noise > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseEstimate:
    """Smoothed moments of the whole gradient and of each parameter group, with a confidence interval."""

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
        """The noise scale in samples, if it is sure and finite; otherwise None."""
        noise_scale = self.total.noise_scale
        return noise_scale if self.sure and math.isfinite(noise_scale) else None

    @property
    def at_least(self) -> float:
        """A lower bound of the noise scale, sure or not: the interval's lower end, or 0 if too little was measured.

        A batch far below the noise scale shows only that the noise scale is far above. That is enough to grow.
        """
        low = self.interval[0]
        return low if self.observations >= _ENOUGH and 0 < low < math.inf else 0.0

    @property
    def at_most(self) -> float:
        """An upper bound of the noise scale, sure or not: the interval's upper end, or infinite if too little is known.

        A batch far above it takes samples that are worth little, which is enough to shrink.
        """
        high = self.interval[1]
        return high if self.observations >= _ENOUGH and high >= 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """How a rule changes one parameter group's hyper-parameters for one step; ones change nothing.

    ``lr``, ``eps`` and ``weight_decay`` multiply. The others are exponents: a decay rate ``d`` per base step becomes
    ``d ** power``, which keeps its half-life in samples and stays in [0, 1).
    """

    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0
    beta_power: float = 1.0  # Adam's betas
    momentum_power: float = 1.0  # SGD's momentum
    ema_power: float = 1.0  # a model average's decay; the running statistics of batch norm follow it too


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """What a rule sees: one step relative to the batch the user tuned for."""

    scale: float  # global batch / base batch
    base_batch: int
    moments: Moments | None = None  # of this parameter group; None until the first estimate
    preconditioned: Moments | None = None  # the same in Adam's metric; None if the optimizer has no second moment
    dual: Moments | None = None  # the same in the optimizer's dual norm; None unless the rule's metric is "dual"
    progress: float = 0.0  # accumulated base-equivalent steps before this step
    samples: int = 0  # samples committed before this step


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward/backward pass: ``size`` samples at ``offset`` from the step's first sample."""

    offset: int
    size: int
    weight: float  # size / global batch; 0 if it is computed only because the other replicas compute one


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one optimizer step is laid out: for each replica its micro-batches, in the order they are computed."""

    global_batch: int
    shares: tuple[tuple[MicroBatch, ...], ...]
    # Figures of the shares, which a job reads many times a step.
    replicas: int = field(init=False, repr=False, compare=False)
    accumulation: int = field(init=False, repr=False, compare=False)  # the most micro-batches that a replica computes
    micro_batch: int = field(init=False, repr=False, compare=False)  # the largest, in samples
    num_micro_batches: int = field(init=False, repr=False, compare=False)  # those with a weight above 0

    def __post_init__(self) -> None:
        micro_batches = [micro for share in self.shares for micro in share]
        figures = {
            "replicas": len(self.shares),
            "accumulation": max(map(len, self.shares)),
            "micro_batch": max([micro.size for micro in micro_batches]),
            "num_micro_batches": sum([micro.weight > 0 for micro in micro_batches]),
        }
        for name, value in figures.items():
            object.__setattr__(self, name, value)

    def share_sizes(self) -> tuple[int, ...]:
        """Samples of each replica in micro-batches with a weight above 0."""
        return tuple(sum(micro.size for micro in share if micro.weight > 0) for share in self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that a policy may use to choose the next step's global batch."""

    step: int  # optimizer steps committed so far
    samples: int  # samples committed so far, over all epochs
    epoch: int
    epoch_samples: int  # samples committed in this epoch
    epoch_size: int | None  # samples of one epoch; None for a stream of unknown length
    total_samples: int | None  # samples of the whole run, if the loop knows it
    progress: float  # accumulated base-equivalent steps
    base_batch: int
    batch: int  # chosen for the step before, even if the end of the epoch cut that step; at first the base batch
    batch_since: int  # value of ``samples`` when ``batch`` changed last
    replicas: int
    noise: NoiseEstimate | None = None
    times: StepTimes | None = None
    resized: bool = False  # whether the world changed since the step before
    feasible: bool = True  # whether ``batch`` can be laid out on these replicas
    capacity: tuple[float, ...] = field(default=())  # relative speed of each replica; empty when equal
    nodes: int = 1  # machines the replicas are spread over
    micro_batch: int | None = None  # the largest chosen for the step before, like ``batch``; None before the first
    max_micro: int | None = None  # the largest micro-batch allowed after memory ran out at a larger one
    profile: tuple[StepSummary, ...] = field(default=())  # step times so far, one summary per configuration
    total_progress: float | None = None  # base-equivalent steps after which the run ends, if progress ends it
    lr_height: float = 1.0  # the scheduled learning rate as a part of its largest so far; 1 without a scheduler
    ceiling: int | None = None  # the largest batch for now, because the loss rose at a larger one
    worth_power: float = 1.0  # of the rule: a step is worth scale^(1 - power) times gain^power base steps

    @property
    def done(self) -> float | None:
        """The part of the run that is done, 0 to 1; None if the loop does not know the length of the run.

        If progress ends the run, this is the part of that progress, because larger batches take more samples for it.
        """
        if self.total_progress is not None:
            return min(1.0, self.progress / self.total_progress)
        return None if self.total_samples is None else min(1.0, self.samples / max(1, self.total_samples))

    def within_epoch(self, batch: int) -> int:
        """The batch, but at most the samples of an epoch: no step can take more."""
        return batch if self.epoch_size is None else min(batch, self.epoch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Measured durations of one committed step on its slowest replica, for the throughput model."""

    replicas: int
    nodes: int
    micro_batch: int
    accumulation: int
    step_s: float  # the whole step, loading included
    sync_s: float = 0.0  # the part spent waiting for the gradient exchange after compute; 0 if not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """The time of steps of one configuration: a median over the newest ones, without warm-up."""

    replicas: int
    nodes: int
    micro_batch: int
    accumulation: int
    step_s: float  # median, in seconds
    count: int  # steps in the median, as of its latest update, so that a summary seldom changes
    sync_s: float = 0.0  # median of the wait for the exchange; 0 if not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A global batch and the largest micro-batch to lay it out with."""

    global_batch: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A policy's choice and its reasons: sentences for people, numbers for tools."""

    chosen: Layout
    current: Layout | None  # the layout before; None before the first step
    reasons: tuple[str, ...]
    goodput: float | None = None  # predicted for ``chosen``, in base-equivalent samples per second; None if unknown
    current_goodput: float | None = None
    inputs: dict[str, float] = field(default_factory=dict)
