"""The figures of a step by the names that trackers show them under."""

from __future__ import annotations

import math
from typing import Any

from swell.core.events import BatchChanged, Event, Resized, RunEnded, RunStarted, Stepped
from swell.telemetry.decisions import account_of
from swell.telemetry.sentences import sentence


def scalars(event: Stepped) -> dict[str, float]:
    """Everything that is a number and finite, in groups: loss, batch, scale, noise, speed."""
    groups = [""] if len(event.lr) == 1 else [f"/group_{index}" for index in range(len(event.lr))]
    values: dict[str, float | None] = {
        "loss": event.loss,
        "batch/global": event.global_batch,
        "batch/micro": event.micro_batch,
        "batch/accumulation": event.accumulation,
        "batch/replicas": event.replicas,
        "scale/gain": event.gain,
        "scale/progress": event.progress,
        **{f"scale/lr{group}": lr for group, lr in zip(groups, event.lr, strict=False)},
        **{f"scale/lr_factor{group}": factor for group, factor in zip(groups, event.lr_factor, strict=False)},
        "noise/signal": event.signal,
        "noise/noise": event.noise,
        "noise/noise_scale": event.noise_scale,
        "speed/step_s": event.step_s,
        "speed/samples_per_s": event.global_batch / event.step_s if event.step_s > 0 else None,
    }
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def settings_of(event: RunStarted) -> dict[str, Any]:
    """What a tracker keeps of a run's start."""
    known = {"policy": event.policy, "rule": event.rule, "base_batch": event.base_batch, "seed": event.seed}
    machine = {f"machine/{key}": value for key, value in event.machine.items()}
    return {"swell": event.version, **known, **event.settings, **machine}


def words(event: Event) -> str | None:
    """A change or an end with its reasons, as one text; None for other events."""
    account = account_of(event) if isinstance(event, (BatchChanged, Resized)) else None
    if account is not None:
        return " ".join([account.headline, *account.reasons])
    return sentence(event) if isinstance(event, (RunStarted, RunEnded)) else None
