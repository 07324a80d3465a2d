"""What a policy may be shown: a plain observation to change, and any observation there can be."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from swell.core.types import Moments, NoiseEstimate, Observation, StepSummary, StepTimes

PLAIN = Observation(
    step=10,
    samples=640,
    epoch=0,
    epoch_samples=640,
    epoch_size=10_000,
    total_samples=100_000,
    progress=10.0,
    base_batch=64,
    batch=64,
    batch_since=0,
    replicas=4,
)


def seen(**changes: Any) -> Observation:
    """A plain observation in the middle of a run, with these fields changed."""
    return dataclasses.replace(PLAIN, **changes)


def estimate(noise_scale: float, *, sure: bool = True) -> NoiseEstimate:
    """An estimate of this noise scale, in samples; one that is not sure has a wide interval."""
    width = 1.5 if sure else 10.0
    return NoiseEstimate(
        total=Moments(signal=1.0, noise=noise_scale),
        groups=(Moments(signal=1.0, noise=noise_scale),),
        interval=(noise_scale / width, noise_scale * width),
        observations=100,
    )


def profiles() -> st.SearchStrategy[tuple[StepSummary, ...]]:
    """What steps may have taken in a few configurations, each once."""
    summary = st.builds(
        StepSummary,
        replicas=st.integers(1, 64),
        nodes=st.integers(1, 8),
        micro_batch=st.integers(1, 512),
        accumulation=st.integers(1, 16),
        step_s=st.floats(1e-4, 10),
        count=st.integers(3, 32),
        sync_s=st.just(0.0) | st.floats(0, 1),
    )
    return st.lists(summary, max_size=4, unique_by=lambda s: (s.replicas, s.nodes, s.micro_batch, s.accumulation)).map(
        tuple
    )


def moments() -> st.SearchStrategy[Moments]:
    return st.builds(Moments, signal=st.floats(), noise=st.floats())


@st.composite
def observations(draw: st.DrawFn, **fixed: Any) -> Observation:
    """Any observation a job can make, consistent in itself, with some fields fixed."""
    samples = draw(st.integers(0, 10**9))
    epoch_size = draw(st.integers(1, 10**7))
    epoch, epoch_samples = divmod(samples, epoch_size)
    noise = st.builds(
        NoiseEstimate,
        total=moments(),
        groups=st.lists(moments(), max_size=3).map(tuple),
        interval=st.tuples(st.floats(), st.floats()),
        observations=st.integers(0, 10**6),
    )
    times = st.builds(
        StepTimes,
        replicas=st.integers(1, 64),
        nodes=st.integers(1, 8),
        micro_batch=st.integers(1, 512),
        accumulation=st.integers(1, 16),
        step_s=st.floats(1e-6, 1e3),
        sync_s=st.floats(0, 1e3),
    )
    replicas = draw(st.integers(1, 64))
    step = draw(st.integers(0, 10**6)) if samples else 0
    drawn: dict[str, Any] = {
        "step": step,
        "samples": samples,
        "epoch": epoch,
        "epoch_samples": epoch_samples,
        "epoch_size": epoch_size,
        "total_samples": samples + draw(st.integers(0, 10**9)),
        "progress": draw(st.floats(0, 1e9)),
        "base_batch": draw(st.integers(1, 4096)),
        "batch": draw(st.integers(1, 65536)),
        "batch_since": draw(st.integers(0, samples)),
        "replicas": replicas,
        "noise": draw(st.none() | st.sampled_from([16.0, 300.0, 1e6]).map(estimate) | noise),
        "times": draw(st.none() | times),
        "resized": draw(st.booleans()),
        "feasible": draw(st.booleans()),
        "nodes": draw(st.integers(1, 8)),
        "micro_batch": draw(st.none() | st.integers(1, 512)),
        "max_micro": draw(st.none() | st.integers(1, 512)),
        "profile": draw(st.just(()) | profiles()),
        "capacity": draw(st.just(()) | st.tuples(*[st.floats(0.1, 10)] * replicas)),
    }
    return Observation(**{**drawn, **fixed})
