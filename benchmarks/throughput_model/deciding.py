"""What the goodput policy costs a step: fits, predictions and choices of a whole run on a simulated machine."""

from __future__ import annotations

import time

import numpy as np

from swell.core.planning import plan
from swell.core.profile import Profile
from swell.core.types import Moments, NoiseEstimate, Observation, StepTimes
from swell.policies import Goodput

TOTAL = 750_000  # samples: 15 epochs of CIFAR-10


def deciding(replicas: int) -> dict[str, float]:
    """Processor time of ``layout(seen)`` over the steps of one run: mean, median and largest, in milliseconds."""
    policy, profile, random = Goodput(128, max=4096), Profile(), np.random.default_rng(0)
    batch, batch_since, micro, samples, step = 128, 0, None, 0, 0
    spent: list[float] = []
    while samples < TOTAL:
        phi = 300 + samples / 300
        seen = Observation(
            step=step, samples=samples, epoch=0, epoch_samples=samples, epoch_size=50_000, total_samples=TOTAL,
            progress=float(step), base_batch=128, batch=batch, batch_since=batch_since, replicas=replicas,
            noise=NoiseEstimate(
                total=Moments(1.0, phi), groups=(), observations=step,
                interval=(phi / 1.3, phi * (1.3 if step > 20 else 9)),
            ),
            micro_batch=micro, profile=profile.summaries(),
        )  # fmt: skip
        start = time.process_time()
        layout = policy.layout(seen)
        spent.append(1000 * (time.process_time() - start))
        made = plan(layout.global_batch, replicas, max_micro=layout.micro_batch)
        step_s = made.accumulation * max(0.008, made.micro_batch / 45_000) + 0.004 * (replicas > 1)
        profile.add(
            StepTimes(
                replicas=replicas, nodes=1, micro_batch=made.micro_batch, accumulation=made.accumulation,
                step_s=step_s * float(np.exp(0.03 * random.standard_normal())),
            )
        )  # fmt: skip
        if layout.global_batch != batch:
            batch, batch_since = layout.global_batch, samples
        micro, step, samples = layout.micro_batch, step + 1, samples + layout.global_batch
    return {
        "replicas": replicas,
        "steps": step,
        "configurations": len(profile.summaries()),
        "mean_ms": float(np.mean(spent)),
        "median_ms": float(np.median(spent)),
        "largest_ms": float(np.max(spent)),
    }
