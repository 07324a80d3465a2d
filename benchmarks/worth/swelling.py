"""A swell job on a task: nothing but a base batch and a largest one is given, or a candidate for something better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from plain import make_model, warm_up
from tasks import Problem, Task
from torch.optim import Optimizer
from torch.utils.data import TensorDataset
from watch import POINTS, Watch

import swell
from swell.core.protocols import Rule


def train_with_swell(
    task: Task,
    device: str,
    seed: int,
    *,
    points: int = POINTS,
    rule_of: Callable[[Optimizer], Rule | None] = lambda optimizer: None,
    **settings: Any,
) -> dict[str, Any]:
    """Train until the progress of the base run; ``rule_of`` gives an optimizer a rule other than the job's."""
    problem: Problem = task.problem(device)
    model = make_model(problem, device, seed)
    optimizers = task.optimizers(model, 1.0)
    schedules = [task.schedule(optimizer, task.steps) for optimizer in optimizers]
    job = swell.Job(seed=seed, device=device, progress=False, notices=False, **settings)
    for optimizer, schedule in zip(optimizers, schedules, strict=True):
        job.wrap(model, optimizer, scheduler=schedule, rule=rule_of(optimizer))
    loader = job.loader(TensorDataset(*problem.train), shuffle=True)  # on the device, as the plain loop's
    watch = Watch(problem, model, task.steps, points=points)
    warm_up(task, problem, device, task.base)
    sizes: list[tuple[int, int]] = []
    torch.manual_seed(seed + 1000)
    watch.start()
    for _ in job.until(steps=task.steps):
        for batch in loader:
            job.backward(problem.loss(model, batch))
            if not job.step(clip=task.clip):
                continue
            if not sizes or sizes[-1][1] != job.global_batch:
                sizes.append((job.steps, job.global_batch))
            if watch.due(job.progress):
                watch.stop()
                watch.look(progress=job.progress, steps=job.steps, samples=job.samples, **_noise(job, task.base))
                watch.start()
    watch.stop()
    job.close()
    if watch.curve[-1]["steps"] != job.steps:
        watch.look(progress=job.progress, steps=job.steps, samples=job.samples, **_noise(job, task.base))
    last = watch.curve[-1]
    return {
        "seconds": watch.seconds,
        "steps": job.steps,
        "samples": job.samples,
        "loss": last["loss"],
        "result": last["result"],
        "batches": sizes,
        "curve": watch.curve,
    }


def _noise(job: swell.Job, base: int) -> dict[str, Any]:
    """Both noise scales of the first optimizer, in base batches, and the present batch."""
    noise = job.engine.state.learners[0].noise
    scales = {name: average.estimate() for name, average in (("plain", noise.plain), ("metric", noise.metric))}
    return {
        "batch": job.global_batch,
        **{f"noise_{name}": None if seen is None else seen.total.noise_scale / base for name, seen in scales.items()},
    }
