"""A plain torch loop at a fixed batch, as a user writes it: the base run, and larger batches picked by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tasks import Batch, Problem, Task
from torch import Tensor, nn
from torch.optim import Optimizer
from watch import POINTS, Watch


def batches(problem: Problem, size: int, seed: int) -> Iterator[Batch]:
    """Batches of shuffled passes, without end; what is left of a pass is dropped, as ``drop_last`` does."""
    draw = torch.Generator().manual_seed(seed)
    count, device = len(problem.train[0]), problem.train[0].device
    while True:
        order = torch.randperm(count, generator=draw).to(device)
        for start in range(0, count - size + 1, size):
            index = order[start : start + size]
            yield tuple(tensor[index] for tensor in problem.train)


def take_step(
    problem: Problem, model: nn.Module, optimizers: list[Optimizer], batch: Batch, clip: float | None
) -> Tensor:
    loss = problem.loss(model, batch)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss


def make_model(problem: Problem, device: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return problem.model().to(device)


def train_plain(
    task: Task,
    device: str,
    seed: int,
    *,
    scale: int = 1,
    factor: float = 1.0,
    betas: str = "keep",
    at: Callable[..., Any] | None = None,
    points: int = POINTS,
) -> dict[str, Any]:
    """Train on as many samples as the base run, at ``scale`` base batches and ``factor`` times the learning rate.

    ``betas`` says which of an adaptive optimizer's averages remember as many samples as in the base run: none
    (``"keep"``), that of squares (``"second"``), or ``"both"``.
    ``at(step, model, optimizers)`` is called at each point of the curve; the clock stands meanwhile.
    """
    problem = task.problem(device)
    model = make_model(problem, device, seed)
    steps = max(1, task.steps // scale)
    optimizers = task.optimizers(model, factor)
    follow(optimizers, scale, betas)
    schedules = [task.schedule(optimizer, steps) for optimizer in optimizers]
    watch, size = Watch(problem, model, task.steps, points=points), task.base * scale
    warm_up(task, problem, device, size)
    source = batches(problem, size, seed)
    torch.manual_seed(seed + 1000)
    watch.start()
    for step in range(1, steps + 1):
        take_step(problem, model, optimizers, next(source), task.clip)
        for schedule in schedules:
            schedule.step()
        if watch.due(step * scale) or step == steps:
            watch.stop()
            watch.look(progress=step * scale, steps=step, samples=step * size)
            if at is not None:
                at(step, model, optimizers)
            watch.start()
    watch.stop()
    last = watch.curve[-1]
    return {"seconds": watch.seconds, "steps": steps, "samples": steps * size, **_figures(last), "curve": watch.curve}


def follow(optimizers: list[Optimizer], scale: int, which: str) -> None:
    """Let averages forget at the pace of the base run, in samples."""
    if which == "keep":
        return
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        if "betas" in group:
            first, second = group["betas"]
            group["betas"] = (first**scale if which == "both" else first, second**scale)
        elif "alpha" in group:  # RMSprop
            group["alpha"] **= scale


def warm_up(task: Task, problem: Problem, device: str, size: int) -> None:
    """Let the device choose its kernels before the clock starts."""
    model = make_model(problem, device, 0)
    optimizers = task.optimizers(model, 1.0)
    for _, batch in zip(range(4), batches(problem, size, 0), strict=False):
        take_step(problem, model, optimizers, batch, task.clip)


def _figures(point: dict[str, float]) -> dict[str, float]:
    return {"loss": point["loss"], "result": point["result"]}
