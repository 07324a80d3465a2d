"""Everything that happens in a run, as typed records with a JSON-lines form."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from swell.core.event_fields import check_fields
from swell.errors import ConfigError

_KINDS: dict[str, type[Event]] = {}


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened; ``time`` is in seconds since the epoch, positions are in samples."""

    kind: ClassVar[str] = ""
    time: float

    def __init_subclass__(cls, *, kind: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.kind = kind
        _KINDS[kind] = cls


@dataclass(frozen=True, kw_only=True)
class LogStarted(Event, kind="log"):
    """The first line of a log file: the version of the lines that follow."""

    schema: int
    part: int = 0  # how many files of this log came before


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event, kind="run"):
    """A process group started to work on the run, from its start or from a checkpoint."""

    version: str
    replicas: int
    base_batch: int
    policy: str
    rule: str
    seed: int
    samples: int  # committed before, after a resume
    settings: dict[str, Any] = field(default_factory=dict)  # of the job, by name
    machine: dict[str, Any] = field(default_factory=dict)  # host, devices, versions


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event, kind="run_end"):
    """The run left its loop: it finished, was asked to stop, or gave up."""

    step: int
    samples: int
    reason: str  # "finished", or why it stopped before
    progress: float | None = None  # base steps that it was worth
    base_batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Satisfied(Event, kind="stop"):
    """A metric ended the run: it reached its target, or became no better for a number of turns."""

    step: int
    metric: str
    value: float
    best: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class EpochStarted(Event, kind="epoch_begin"):
    """A pass over the data starts or, after a resume, continues; the known lengths of the run are here."""

    epoch: int
    samples: int  # committed so far, over all epochs
    epoch_size: int | None = None  # samples of one epoch; None for a stream of unknown length
    epochs: int | None = None  # how many the user asked for
    total_samples: int | None = None  # of the whole run
    total_progress: float | None = None  # base steps after which the run ends, if progress ends it


@dataclass(frozen=True, kw_only=True)
class Stepped(Event, kind="step"):
    """An optimizer step was committed together with its samples."""

    step: int
    epoch: int
    samples: int  # committed so far, this step included
    global_batch: int
    replicas: int
    micro_batch: int
    accumulation: int
    lr: tuple[float, ...]  # base learning rate of each group
    lr_factor: tuple[float, ...]
    gain: float
    progress: float
    step_s: float
    loss: float | None = None
    signal: float | None = None
    noise: float | None = None
    noise_scale: float | None = None
    noise_low: float | None = None  # 95 % interval of noise_scale
    noise_high: float | None = None
    data_s: float | None = None  # of step_s: how long this replica waited for data
    measured: bool = False  # whether its gradients were measured


@dataclass(frozen=True, kw_only=True)
class BatchChanged(Event, kind="batch"):
    """A policy chose another global batch, or other micro-batches; ``seen`` is its observation, for replay."""

    step: int
    before: int
    after: int
    policy: str
    seen: dict[str, Any]
    micro_before: int | None = None  # for policies that choose the micro-batch too
    micro_after: int | None = None
    changes: int = 1  # how many changes in a row this line stands for, if they came faster than the log takes them


@dataclass(frozen=True, kw_only=True)
class GrowthTakenBack(Event, kind="ceiling"):
    """The loss rose after the batch had grown: the batch returns, and the learning rate with it."""

    step: int
    before: int  # the batch that the run returns to
    after: int  # the one that was too large
    loss_before: float
    loss_after: float
    until: int  # samples of the run after which larger batches may be tried again


@dataclass(frozen=True, kw_only=True)
class StepSkipped(Event, kind="skip"):
    """A step was not taken, because of a gradient scaler's overflow, a loss that was not finite, or a lost peer."""

    step: int
    reason: str
    samples: int  # of the step
    redone: bool  # whether its samples come again; otherwise they are skipped
    max_micro: int | None = None  # the largest micro-batch when it is done again, if memory ran out


@dataclass(frozen=True, kw_only=True)
class EpochEnded(Event, kind="epoch"):
    """Every sample of an epoch was committed, or the user left it early."""

    epoch: int
    samples: int  # committed in this epoch
    complete: bool
    metrics: dict[str, float]  # of this epoch alone, whether or not the script has read them
    dropped: int = 0  # samples at the end that drop_last left out


@dataclass(frozen=True, kw_only=True)
class Resized(Event, kind="resize"):
    """The world changed."""

    step: int
    before: int
    after: int
    reason: str
    pause_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Saved(Event, kind="save"):
    """A checkpoint is complete on disk."""

    step: int
    samples: int
    path: str
    held_s: float  # how long training waited for it
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Noticed(Event, kind="notice"):
    """Somebody asked the run to stop: a signal, a file, an engine."""

    step: int
    source: str
    deadline_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Faulted(Event, kind="fault"):
    """Something broke that the run survived, or that ended it."""

    step: int
    message: str
    fatal: bool


@dataclass(frozen=True, kw_only=True)
class Hinted(Event, kind="hint"):
    """The speedup that other worlds would bring, for a cluster scheduler."""

    step: int
    speedup: dict[str, float]  # replicas -> goodput relative to now
    errors: dict[str, float] = field(default_factory=dict)  # replicas -> relative error of that


@dataclass(frozen=True, kw_only=True)
class Warned(Event, kind="warning"):
    """Something the user should know, reported once."""

    message: str


def to_json(event: Event) -> str:
    """One line of JSON; numbers that are not finite are written as strings, so any reader can parse it.

    Numbers of numpy or torch become plain ones, tuples become lists, and other values that JSON lacks become text.

    >>> to_json(Warned(time=0.0, message="slow disk"))
    '{"event": "warning", "time": 0.0, "message": "slow disk"}'
    """
    fields = {"event": event.kind, **vars(event)}
    try:
        return json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError):  # numbers that are not finite, or of numpy, torch or jax; values of other kinds
        return json.dumps(_plain(fields), allow_nan=False, default=str)


def from_json(line: str) -> Event:
    """The event that a line was written from; lists return as tuples, unknown fields of a newer version are ignored.

    >>> from_json('{"event": "warning", "time": 0.0, "message": "slow disk"}')
    Warned(time=0.0, message='slow disk')
    """
    try:
        record = json.loads(line)
        cls = _KINDS[record.pop("event")]
        types = {f.name: f.type for f in dataclasses.fields(cls)}
        values = {
            name: value if types[name] in ("str", str) else _restore(value)  # a message "NaN" is not a number
            for name, value in record.items()
            if name in types
        }
        check_fields(cls, values)
        return cls(**values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"the event is {line[:80]!r} ({error}); expected a JSON object with a known 'event' kind "
            f"({', '.join(sorted(_KINDS))}). If it is the last line, remove it: it was cut off. Otherwise read the log "
            "with a newer version of swell."
        ) from error


_NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def _plain(value: Any) -> Any:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a number of numpy, torch or jax
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def _restore(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, list):
        return tuple(_restore(item) for item in value)
    if isinstance(value, dict):
        return {key: _restore(item) for key, item in value.items()}
    return value
