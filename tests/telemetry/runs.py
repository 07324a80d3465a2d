"""The events of an invented but plausible run: epochs of a hundred steps, a growing batch, a falling loss."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from swell.core.events import (
    BatchChanged,
    EpochEnded,
    EpochStarted,
    Event,
    Resized,
    RunEnded,
    RunStarted,
    Saved,
    Stepped,
)
from swell.core.types import StepSummary
from swell.policies import Goodput, observation_to_dict
from swell.telemetry import EventLog
from tests.policies.observations import estimate
from tests.policies.observations import seen as observation


def stepped(**changes: Any) -> Stepped:
    fields: dict[str, Any] = {
        "time": 1.0,
        "step": 1,
        "epoch": 0,
        "samples": 64,
        "global_batch": 64,
        "replicas": 2,
        "micro_batch": 32,
        "accumulation": 1,
        "lr": (0.1,),
        "lr_factor": (1.0,),
        "gain": 1.0,
        "progress": 1.0,
        "step_s": 0.1,
        "loss": 2.5,
    }
    return Stepped(**{**fields, **changes})


def a_run(*, epochs: int = 3, size: int = 1000, grow: bool = True, resize_at: int | None = None) -> list[Event]:
    """The events of a run of ``epochs`` epochs; each ends with a short step."""
    events: list[Event] = [
        RunStarted(time=0.0, version="1", replicas=2, base_batch=64, policy="Fixed(64)", rule="auto", seed=0, samples=0)
    ]
    samples, step, progress, now, replicas = 0, 0, 0.0, 0.0, 2
    for epoch in range(epochs):
        events.append(
            EpochStarted(
                time=now, epoch=epoch, samples=samples, epoch_size=size, epochs=epochs, total_samples=epochs * size
            )
        )
        batch, left = 64 * 2**epoch if grow else 64, size
        while left:
            taken = min(batch, left)
            left, samples, step, now = left - taken, samples + taken, step + 1, now + 0.5
            gain = max(1.0, taken / 64) ** 0.9
            progress += gain
            if step == resize_at:
                events.append(Resized(time=now, step=step - 1, before=2, after=4, reason="workers joined"))
                replicas = 4
            events.append(
                stepped(
                    time=now,
                    step=step,
                    epoch=epoch,
                    samples=samples,
                    global_batch=taken,
                    replicas=replicas,
                    lr_factor=(gain**0.5,),
                    gain=gain,
                    progress=progress,
                    step_s=0.5,
                    loss=2.5 * math.exp(-samples / 1000),
                    noise_scale=100.0,
                )
            )
        events.append(EpochEnded(time=now, epoch=epoch, samples=size, complete=True, metrics={"accuracy": 0.9}))
    return [*events, RunEnded(time=now, step=step, samples=samples, reason="finished")]


def an_eventful_run(steps: int, *, began_at: float = 1.7e9, seed: int = 0, step_s: float = 0.1) -> Iterator[Event]:
    """The events of a run in which everything happens: growth by goodput, resizes, saves, a stop and a resume."""
    draw, policy = random.Random(seed), Goodput(64, max=4096)
    replicas, batch, samples, progress, now = 2, 64, 0, 0.0, began_at
    settings, machine = {"micro": "64", "optimizer": "SGD"}, {"host": "here", "torch": "2.13.0", "processors": 8}
    start = {"version": "0.1", "base_batch": 64, "policy": repr(policy), "rule": "AdaScale()", "seed": 0}
    total = steps * 400
    yield RunStarted(time=now, replicas=2, samples=0, settings=settings, machine=machine, **start)
    yield EpochStarted(time=now, epoch=0, samples=0, epoch_size=total, epochs=1, total_samples=total)
    for step in range(1, steps + 1):
        part = step / steps
        noise = 80 * (1 + 40 * part)
        if step % max(1, steps // 8) == 0 and batch < 1024:
            seen = observation(
                step=step,
                samples=samples,
                batch=batch,
                replicas=replicas,
                noise=estimate(noise),
                micro_batch=32,
                total_samples=total,
                progress=progress,
                profile=tuple(
                    StepSummary(replicas=replicas, nodes=1, micro_batch=micro, accumulation=1, step_s=time, count=32)
                    for micro, time in [(16, 0.7 * step_s), (32, step_s), (64, 1.5 * step_s)]
                ),
            )
            yield BatchChanged(
                time=now, step=step, before=batch, after=2 * batch, policy=repr(policy), seen=observation_to_dict(seen)
            )
            batch *= 2
        if step in (steps // 3, steps // 2):
            after = replicas + 1 if step == steps // 3 else replicas - 1
            reason = "workers joined or left" if after > replicas else "a replica was lost"
            yield Resized(time=now + 0.4, step=step, before=replicas, after=after, reason=reason, pause_s=0.3)
            replicas, now = after, now + 0.4
        if step == int(0.7 * steps):
            yield Saved(time=now, step=step, samples=samples, path="c", held_s=0.2, bytes=10**7)
            yield RunEnded(time=now, step=step, samples=samples, reason="stopped on notice")
            now += 300.0
            yield RunStarted(time=now, replicas=replicas, samples=samples, settings=settings, machine=machine, **start)
        seconds = step_s * (1 + 0.4 * (batch / 64) ** 0.5) * draw.uniform(0.9, 1.2)
        gain = min(batch / 64, (noise + 64) * batch / 64 / (noise + batch))
        samples, progress, now = samples + batch, progress + gain, now + 1.02 * seconds
        yield stepped(
            time=now,
            step=step,
            samples=samples,
            global_batch=batch,
            replicas=replicas,
            micro_batch=32,
            accumulation=max(1, batch // 32 // replicas),
            lr_factor=(gain,),
            gain=gain,
            progress=progress,
            step_s=seconds,
            loss=2.3 * math.exp(-3 * part) * draw.uniform(0.8, 1.25) + 0.05,
            signal=1.0,
            noise=noise,
            noise_scale=noise,
            noise_low=0.7 * noise,
            noise_high=1.5 * noise,
            data_s=0.03 * seconds,
            measured=step % 16 == 0,
        )
    yield EpochEnded(time=now, epoch=0, samples=samples, complete=False, metrics={"accuracy": 0.93})
    yield RunEnded(time=now, step=steps, samples=samples, reason="finished")


def write_run(folder: Path, events: Iterable[Event], *, small: bool = True) -> Path:
    """A run's folder with these events in its log."""
    log = EventLog(folder / "events.jsonl", small=small)
    for event in events:
        log.emit(event)
    log.close()
    return folder
