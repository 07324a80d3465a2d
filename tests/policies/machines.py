"""Machines to run policies on: random ones of several kinds, and one that is known."""

from __future__ import annotations

import numpy as np

from swell.core.step_time import Params
from swell.policies import Goodput
from tests.policies.simulated_run import Law, SimulatedRun

KINDS = ("linear", "kneed", "cached")


def machine(seed: int, kind: str) -> Law:
    """Step times of a random machine: by the law, with a knee under which size is free, or slower beyond a cache."""
    random = np.random.default_rng(seed)
    per_sample = 10 ** random.uniform(-5, -3)
    start = per_sample * 10 ** random.uniform(0.5, 3)
    law = Params(
        alpha_c=start,
        beta_c=per_sample,
        alpha_r=start * 10 ** random.uniform(-1.5, 1),
        beta_r=start * 10 ** random.uniform(-2.5, -1),
        alpha_n=start * 10 ** random.uniform(-0.5, 1.5),
        beta_n=start * 10 ** random.uniform(-2, -0.5),
        gamma=random.uniform(1, 6),
        alpha_s=start * 10 ** random.uniform(-2, 0),
    )
    sharpness, cache = random.uniform(1.5, 8), 2 ** random.uniform(4, 9)

    def seconds(replicas, nodes, micro_batch, accumulation):
        size = np.asarray(micro_batch, float)
        computing = law.alpha_c + law.beta_c * size
        if kind == "kneed":
            computing = (law.alpha_c**sharpness + (law.beta_c * size) ** sharpness) ** (1 / sharpness)
        elif kind == "cached":
            computing = law.alpha_c + law.beta_c * size * (1 + 0.6 / (1 + (cache / size) ** 3))
        alpha, beta = (law.alpha_n, law.beta_n) if nodes > 1 else (law.alpha_r, law.beta_r)
        network = 0.0 if replicas == 1 else alpha + beta * (replicas - 2)
        joint = (computing**law.gamma + network**law.gamma) ** (1 / law.gamma)
        return (accumulation - 1) * computing + joint + law.alpha_s

    return seconds


def on_an_h200(replicas, nodes, micro_batch, accumulation):
    """Step times of a ResNet-18 there, roughly."""
    return accumulation * np.maximum(0.008, np.asarray(micro_batch) / 45_000) + 0.001


def run_on(seed: int, kind: str, **changes) -> SimulatedRun:
    """A run of 400,000 samples whose noise scale grows while it goes on, as that of a real one does."""
    random = np.random.default_rng(1000 + seed)
    first = 10 ** random.uniform(1, 3)
    growth = 10 ** random.uniform(0.5, 2)
    replicas = int(random.choice([1, 1, 2, 4, 8]))
    given = {
        "policy": Goodput(128, max=4096, slack=0, price=None),
        "law": machine(seed, kind),
        "noise": lambda samples: first * growth ** (samples / 400_000),
        "replicas": replicas,
        "nodes": 2 if replicas >= 4 and seed % 2 else 1,
        "total_samples": 400_000,
        "seed": seed,
    }
    return SimulatedRun(**{**given, **changes})
