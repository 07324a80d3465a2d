"""Faults on purpose: a worker fails at a named point of a chosen step, to test how a run recovers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from swell.errors import ConfigError
from swell.runtime.environment import Environment, read_environment
from swell.runtime.strikes import take_pending

POINTS = {
    "backward": "before a backward pass",
    "reduce": "while the gradients are being summed over the workers",
    "commit": "after the optimizer's step, before its samples count as done",
    "save": "while a checkpoint is being written (the first worker writes)",
    "join": "while a worker that joins receives the state from the others",
    "load": "while a sample is being read, in the data-loading process if there is one",
}
KINDS = {
    "kill": "SIGKILL",
    "term": "SIGTERM: a notice, after which the worker leaves or all of them save and stop",
    "stop": "SIGSTOP: a hung worker, noticed by its silence",
    "exception": "an exception",
    "exit": "the process exits without a message",
    "oom": "torch's out-of-memory error",
}
_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
_EXIT_STATUS = 70


class DeliberateError(RuntimeError):
    """The exception of a fault of the kind ``exception``."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One worker fails once: the one with ``rank``, when it reaches ``point`` after ``step`` or more steps."""

    rank: int
    step: int
    point: str
    kind: str = "kill"

    def __str__(self) -> str:
        return f"{self.rank}:{self.step}:{self.point}:{self.kind}"


def fail_at(rank: int, step: int, point: str, kind: str = "kill") -> Fault:
    """A fault for :class:`Faults`; ``ConfigError`` if the point or the kind is unknown.

    >>> str(fail_at(1, 20, "reduce"))
    '1:20:reduce:kill'
    """
    for name, value, known in (("point", point, POINTS), ("kind", kind, KINDS)):
        if value not in known:
            raise ConfigError(f"{name} of a fault is {value!r}; expected one of {', '.join(known)}.")
    for name, number in (("rank", rank), ("step", step)):
        if number < 0:
            raise ConfigError(f"{name} of a fault is {number}; expected 0 or more.")
    return Fault(rank, step, point, kind)


def parse_fault(text: str) -> Fault:
    """A fault from ``rank:step:point`` or ``rank:step:point:kind``.

    >>> parse_fault("0:3:save:term")
    Fault(rank=0, step=3, point='save', kind='term')
    """
    rank, step, point, *kind = [*text.split(":"), "", ""][: max(3, text.count(":") + 1)]
    if not (rank.isdecimal() and step.isdecimal() and len(kind) <= 1):
        raise ConfigError(f"fault is {text!r}; expected RANK:STEP:POINT or RANK:STEP:POINT:KIND, such as 1:20:reduce.")
    return fail_at(int(rank), int(step), point, *kind)


class Faults:
    """The planned faults of a run; each happens once, to the worker that has its rank at that time.

    Every worker of the run gets the same plan, by ``variables()`` in its environment. The first worker that reaches a
    fault records it in ``folder``, so that a worker that takes over the rank does not fail again. With ``struck`` a
    strike (``runtime.strikes``) also makes this worker fail, at the next point. Without faults ``reach`` does nothing.

        run(["swell", "run", "train.py"], env={**os.environ, **Faults([fail_at(1, 20, "reduce")], folder).variables()})
    """

    def __init__(self, faults: Sequence[Fault] = (), folder: str | Path | None = None, *, struck: bool = False) -> None:
        if faults and folder is None:
            raise ConfigError(
                "folder is None; expected a folder in which faults are recorded when they happen. Give one."
            )
        self._faults, self._struck = tuple(faults), struck
        self._folder, self._records = Path() if folder is None else Path(folder), folder is not None

    def plans(self, point: str) -> bool:
        """Whether a fault may happen at that point."""
        return (self._struck and point != "load") or any(fault.point == point for fault in self._faults)

    def reach(self, point: str, *, rank: int, step: int) -> None:
        """Fail now if that is planned for this rank, at this step or an earlier one, or if a strike asked for it."""
        kind = take_pending() if self._struck and point != "load" else None
        if kind is not None:
            self._record_strike()
            _raise(kind, f"struck in {point} after {step} steps, process {os.getpid()}")
        for number, fault in enumerate(self._faults):
            due = fault.point == point and fault.rank == rank and fault.step <= step
            if due and self._claim(number, fault, step):
                _fail(fault)

    def variables(self) -> dict[str, str]:
        """The environment variables that hand the plan to a worker."""
        plan = {"folder": str(self._folder.resolve()), "faults": [asdict(fault) for fault in self._faults]}
        return {"SWELL_FAULTS": json.dumps(plan)}

    def happened(self) -> list[dict[str, Any]]:
        """The faults that have happened: their fields, when (``time``), at which step and in which process."""
        records = []
        for path in sorted(self._folder.glob("fault-*.json")):
            text = path.read_text()
            if text.endswith("\n"):
                records.append(json.loads(text))
        return sorted(records, key=lambda record: record["time"])

    def struck_at(self) -> list[float]:
        """When strikes made a worker fail, which may be long after they were asked for; in seconds since the epoch."""
        texts = [path.read_text() for path in self._folder.glob("strike-*")] if self._records else []
        return sorted(float(text) for text in texts if text.endswith("\n"))

    def _record_strike(self) -> None:
        if self._records:
            path = self._folder / f"strike-{os.getpid()}-{time.monotonic_ns()}"
            path.write_text(f"{time.clock_gettime(time.CLOCK_REALTIME)}\n")  # the clock of time.time may be struck

    def _claim(self, number: int, fault: Fault, step: int) -> bool:
        try:
            file = os.open(self._folder / f"fault-{number}.json", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        record = {**asdict(fault), "time": time.time(), "at_step": step, "pid": os.getpid()}
        os.write(file, json.dumps(record).encode() + b"\n")
        os.close(file)
        return True


def read_faults(environment: Environment | None = None) -> Faults:
    """The faults planned in ``environment`` (default: this process's); usually none."""
    environment = read_environment() if environment is None else environment
    text, struck = environment.swell_faults, bool(environment.swell_strikes)
    if text is None:
        return Faults(struck=struck)
    try:
        plan = json.loads(text)
        return Faults([fail_at(**fault) for fault in plan["faults"]], plan["folder"], struck=struck)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"SWELL_FAULTS is {text!r}; expected a plan made by Faults.variables() ({error}). Unset it or set it so."
        ) from error


class FailingSamples:
    """A map-style data set that fails where a ``load`` fault is planned, in whichever process reads from it."""

    def __init__(self, dataset: Any, faults: Faults) -> None:
        import torch

        self.dataset = dataset
        self._faults = faults
        self.place = torch.zeros(
            2, dtype=torch.int64
        ).share_memory_()  # rank and step, shared with the loading processes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        rank, step = self.place.tolist()
        self._faults.reach("load", rank=rank, step=step)
        return self.dataset[index]


def _fail(fault: Fault) -> None:
    if fault.kind in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[fault.kind])
        if fault.kind == "kill":
            time.sleep(60)  # the signal may reach another thread first
        return
    if fault.kind == "exit":
        os._exit(_EXIT_STATUS)
    _raise(fault.kind, f"fault {fault}")


def _raise(kind: str, why: str) -> NoReturn:
    if kind == "oom":
        import torch

        raise torch.OutOfMemoryError(f"out of memory, on purpose ({why})")
    raise DeliberateError(f"failed on purpose ({why})")
