"""A training run without a model: known step times, a known noise scale, and a policy that must find its way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from swell.core.goodput import goodput
from swell.core.planning import plan
from swell.core.profile import Profile
from swell.core.types import Layout, Moments, NoiseEstimate, Observation, StepTimes
from swell.policies import Goodput

Law = Callable[..., np.ndarray]  # replicas, nodes, micro-batch, accumulation -> seconds


@dataclass
class SimulatedRun:
    """Steps of a run on a machine that obeys ``law``, with gradients of noise scale ``noise(samples)``."""

    policy: Goodput
    law: Law
    noise: Callable[[int], float]
    replicas: int = 1
    nodes: int = 1
    total_samples: int | None = 1_000_000
    sure_after: int = 20  # steps until the noise estimate is sure
    doubt: float = 8.0  # by what factor it may be off until then
    memory: int | None = None  # largest micro-batch that fits
    jitter: float = 0.03
    seed: int = 0
    step: int = 0
    samples: int = 0
    batch_since: int = 0
    batch: int = 0
    micro_batch: int | None = None
    max_micro: int | None = None
    resized: bool = False
    seconds: float = 0.0
    useful: float = 0.0  # samples weighted by their efficiency
    seen: list[Observation] = field(default_factory=list)
    chosen: list[Layout] = field(default_factory=list)
    out_of_memory: int = 0
    runs: dict[int, int] = field(default_factory=dict)  # of each micro-batch size

    def __post_init__(self) -> None:
        self.batch = self.policy.base
        self.profile = Profile()
        self.random = np.random.default_rng(self.seed)

    def observation(self) -> Observation:
        noise_scale = self.noise(self.samples) * math.exp(0.05 * self.random.standard_normal())
        width = 1.3 if self.step >= self.sure_after else self.doubt
        return Observation(
            step=self.step,
            samples=self.samples,
            epoch=0,
            epoch_samples=self.samples,
            epoch_size=None,
            total_samples=self.total_samples,
            progress=0.0,
            base_batch=self.policy.base,
            batch=self.batch,
            batch_since=self.batch_since,
            replicas=self.replicas,
            nodes=self.nodes,
            noise=NoiseEstimate(
                total=Moments(1.0, noise_scale),
                groups=(),
                interval=(noise_scale / width, noise_scale * width),
                observations=self.step,
            ),
            resized=self.resized,
            micro_batch=self.micro_batch,
            max_micro=self.max_micro,
            profile=self.profile.summaries(),
        )

    def resize(self, replicas: int, nodes: int = 1) -> None:
        self.replicas, self.nodes, self.resized = replicas, nodes, True

    def one_step(self) -> None:
        seen = self.observation()
        layout = self.policy.layout(seen)
        self.seen.append(seen)
        self.chosen.append(layout)
        if self.memory is not None and layout.micro_batch > self.memory:
            self.out_of_memory += 1
            self.max_micro = layout.micro_batch // 2
            return
        laid = plan(layout.global_batch, self.replicas, max_micro=layout.micro_batch)
        true = float(self.law(self.replicas, self.nodes, laid.micro_batch, laid.accumulation))
        step_s = true * math.exp(self.jitter * self.random.standard_normal())
        if self.random.random() < 0.02:
            step_s *= 5  # a stall
        self.runs[laid.micro_batch] = self.runs.get(laid.micro_batch, 0) + 1
        if self.runs[laid.micro_batch] <= 2:
            step_s += 3.0  # compiling for a new shape
        self.profile.add(
            StepTimes(
                replicas=self.replicas,
                nodes=self.nodes,
                micro_batch=laid.micro_batch,
                accumulation=laid.accumulation,
                step_s=step_s,
            )
        )
        if layout.global_batch != self.batch:
            self.batch, self.batch_since = layout.global_batch, self.samples
        self.micro_batch, self.resized = laid.micro_batch, False
        self.useful += float(goodput(layout.global_batch, 1.0, self.policy.base, self.noise(self.samples)))
        self.seconds += true
        self.step += 1
        self.samples += layout.global_batch

    def until(self, samples: int) -> None:
        while self.samples < samples:
            self.one_step()

    def true_goodput(self, layout: Layout) -> float:
        laid = plan(layout.global_batch, self.replicas, max_micro=layout.micro_batch)
        time = self.law(self.replicas, self.nodes, laid.micro_batch, laid.accumulation)
        return float(goodput(layout.global_batch, time, self.policy.base, self.noise(self.samples)))

    def best_goodput(self, low: int, high: int) -> float:
        """The most that any even layout within the bounds gives, by trying them all."""
        accumulation, micro_batch = np.meshgrid(np.arange(1, 65), np.unique(np.geomspace(low, high, 400).astype(int)))
        batch = self.replicas * accumulation * micro_batch
        time = self.law(self.replicas, self.nodes, micro_batch, accumulation)
        value = goodput(batch, time, self.policy.base, self.noise(self.samples))
        most = self.policy.max or self.replicas * high
        return float(value[(self.policy.base <= batch) & (batch <= most)].max())
