"""The settings a script gave to its optimizers and schedulers, and what it gives differently when a run resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.optim import Optimizer

from swell.loop.lr_schedule import LRSchedule

_POSITIONS = {"params", "last_epoch", "base_lrs", "initial_lr"}  # where a schedule is, not how it was made


def settings_of(optimizer: Optimizer, schedule: LRSchedule | None) -> dict[str, Any]:
    """The settings of an optimizer and its scheduler that are plain numbers or text, as they are now."""
    scheduler = {} if schedule is None else schedule.scheduler.state_dict()
    return {"groups": [_plain(group) for group in optimizer.param_groups], "scheduler": _plain(scheduler)}


def changed_settings(now: Mapping[str, Any], before: Mapping[str, Any], *, kept: bool = True) -> Iterator[str]:
    """A sentence for each setting that differs from the one the saved run started with, and is ``kept`` or not."""
    pairs = [(now["scheduler"], before["scheduler"]), *zip(now["groups"], before["groups"], strict=False)]
    for new, old in pairs:
        for name, value in old.items():
            if name in new and new[name] != value and not kept:
                yield f"{name} is {new[name]} from here on, as the script gives; the run started with {value}."
            elif name in new and new[name] != value:
                yield f"{name} stays as the run started, {value}; the script gives {new[name]} now."


def take_settings(
    optimizer: Optimizer, schedule: LRSchedule | None, *, now: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Give an optimizer and its scheduler, which are where a saved run was, the settings that have changed since.

    A learning rate that a scheduler moves is multiplied by the ratio of the new one to the old one.
    """
    scheduler = None if schedule is None else schedule.scheduler
    bases = getattr(scheduler, "base_lrs", None)
    pairs = zip(optimizer.param_groups, now["groups"], before["groups"], strict=False)
    for number, (group, new, old) in enumerate(pairs):
        for name in [name for name in new if name in old and name in group and new[name] != old[name]]:
            if name == "lr" and scheduler is not None and old["lr"]:
                ratio = new["lr"] / old["lr"]
                group["lr"] *= ratio
                group["initial_lr"] = group.get("initial_lr", old["lr"]) * ratio
                if isinstance(bases, list):
                    bases[number] *= ratio
            else:
                group[name] = type(group[name])(new[name]) if isinstance(group[name], tuple) else new[name]
    for name, value in now["scheduler"].items():
        if scheduler is not None and before["scheduler"].get(name, value) != value:
            setattr(scheduler, name, value)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without private settings and those that move by themselves; tuples as the lists they become in a file."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    return {
        name: value
        for name, value in values.items()
        if name not in _POSITIONS and not name.startswith("_") and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float, str))
