"""What a script gave when it began, and what it gives otherwise when it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from swell.loop.lr_schedule import LRSchedule

if TYPE_CHECKING:
    from swell.job.job import Job

_PLACES = {"params", "last_epoch", "base_lrs", "initial_lr"}  # where a schedule stands, not how it was made


def as_given(optimizer: Optimizer, schedule: LRSchedule | None) -> dict[str, Any]:
    """The settings of an optimizer and its scheduler that are plain numbers or words, as they are now."""
    scheduler = {} if schedule is None else schedule.scheduler.state_dict()
    return {"groups": [_plain(group) for group in optimizer.param_groups], "scheduler": _plain(scheduler)}


def differences(job: Job, state: Mapping[str, Any]) -> list[str]:
    """What the script gives otherwise than the saved run was begun with; a sentence for each."""
    said, base = [], state["pace"].get("base", job._pace.base)
    if base != job._pace.base:
        said.append(f"the base batch is {job._pace.base} from here on, and was {base}.")
    for trainee, saved in zip(job._trainees, state["trainees"], strict=False):
        before = saved.get("given")
        if before is not None:
            pairs = [(trainee.given["scheduler"], before["scheduler"])]
            pairs += list(zip(trainee.given["groups"], before["groups"], strict=False))
            said += [told for pair in pairs for told in _changed(*pair)]
    return list(dict.fromkeys(said))


def _changed(now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    for name in before:
        if name in now and now[name] != before[name]:
            yield f"{name} is kept as it was, begun with {before[name]}; the script gives {now[name]} now."


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without private ones and those that move by themselves; tuples as the lists they become in a file."""
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    return {
        name: value
        for name, value in kept.items()
        if name not in _PLACES and not name.startswith("_") and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float, str))
