"""The events of an invented but plausible run: epochs of a hundred steps, a growing batch, a falling loss."""

from __future__ import annotations

import math
from typing import Any

from swell.core.events import EpochEnded, EpochStarted, Event, Resized, RunEnded, RunStarted, Stepped


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
