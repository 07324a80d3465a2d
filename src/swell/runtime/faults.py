"""Faults on purpose: a worker fails at a named point of a chosen step, so that one can watch a run get over it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from swell.errors import ConfigError
from swell.runtime.environment import read_environment

POINTS = {
    "backward": "before a backward pass",
    "reduce": "while the gradients are being summed over the workers",
    "commit": "after the optimizer's step, before its samples count as done",
    "save": "while a checkpoint is being written (the first worker writes)",
    "join": "while a worker that joins receives the state from the others",
    "load": "while a sample is being read, in the data-loading process where there is one",
}
KINDS = {
    "kill": "SIGKILL",
    "term": "SIGTERM: a notice, after which the worker leaves or all of them save and stop",
    "stop": "SIGSTOP: a hung worker, found by its silence",
    "exception": "an exception",
    "exit": "the end of the process, without a word",
    "oom": "torch's out-of-memory error",
}
_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
_EXIT_STATUS = 70


class DeliberateError(RuntimeError):
    """The exception of a fault of the kind ``exception``."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One worker fails once: the one of ``rank``, when it comes to ``point`` after ``step`` or more committed steps."""

    rank: int
    step: int
    point: str
    kind: str = "kill"

    def __str__(self) -> str:
        return f"{self.rank}:{self.step}:{self.point}:{self.kind}"


def fail_at(rank: int, step: int, point: str, kind: str = "kill") -> Fault:
    """A fault for :class:`Faults`; ``ConfigError`` where point or kind are not known.

    >>> str(fail_at(1, 20, "reduce"))
    '1:20:reduce:kill'
    """
    for given, known, name in ((point, POINTS, "point"), (kind, KINDS, "kind")):
        if given not in known:
            raise ConfigError(f"{given!r} is no {name} of a fault, expected one of {', '.join(known)}.")
    if rank < 0 or step < 0:
        raise ConfigError(f"a fault of rank {rank} at step {step}, expected numbers from 0.")
    return Fault(rank, step, point, kind)


def parse_fault(text: str) -> Fault:
    """A fault from ``rank:step:point`` or ``rank:step:point:kind``.

    >>> parse_fault("0:3:save:term")
    Fault(rank=0, step=3, point='save', kind='term')
    """
    rank, step, point, *kind = [*text.split(":"), "", ""][: max(3, text.count(":") + 1)]
    if not (rank.isdecimal() and step.isdecimal() and len(kind) <= 1):
        raise ConfigError(f"{text!r} is no fault, expected RANK:STEP:POINT or RANK:STEP:POINT:KIND, as 1:20:reduce.")
    return fail_at(int(rank), int(step), point, *kind)


class Faults:
    """The faults planned for a run; each happens once, whoever has its rank when the time has come.

    Every worker of the run is told the same plan, by ``variables()`` in its environment. ``folder`` is where the first
    that comes to a fault writes down that it has happened, so that a worker that takes over the rank does not fail in
    its turn. Without faults ``reach`` does nothing.

        run(["swell", "run", "train.py"], env={**os.environ, **Faults([fail_at(1, 20, "reduce")], folder).variables()})
    """

    def __init__(self, faults: Sequence[Fault] = (), folder: str | Path | None = None) -> None:
        if faults and folder is None:
            raise ConfigError("faults were planned without a folder to note them in when they happen. Give one.")
        self._faults = tuple(faults)
        self._folder = Path() if folder is None else Path(folder)

    def plans(self, point: str) -> bool:
        """Whether anything is planned at that point."""
        return any(fault.point == point for fault in self._faults)

    def reach(self, point: str, *, rank: int, step: int) -> None:
        """Fail here and now if that is planned for this rank, at this step or an earlier one."""
        for number, fault in enumerate(self._faults):
            due = fault.point == point and fault.rank == rank and fault.step <= step
            if due and self._claim(number, fault, step):
                _fail(fault)

    def variables(self) -> dict[str, str]:
        """The environment variables that tell a worker of the plan."""
        plan = {"folder": str(self._folder.resolve()), "faults": [asdict(fault) for fault in self._faults]}
        return {"SWELL_FAULTS": json.dumps(plan)}

    def happened(self) -> list[dict[str, Any]]:
        """Which of them have happened: their fields, when (``time``), at which step and to which process."""
        found = []
        for path in sorted(self._folder.glob("fault-*.json")):
            text = path.read_text()
            if text.endswith("\n"):
                found.append(json.loads(text))
        return sorted(found, key=lambda record: record["time"])

    def _claim(self, number: int, fault: Fault, step: int) -> bool:
        try:
            file = os.open(self._folder / f"fault-{number}.json", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        record = {**asdict(fault), "time": time.time(), "at_step": step, "pid": os.getpid()}
        os.write(file, json.dumps(record).encode() + b"\n")
        os.close(file)
        return True


def read_faults(environ: Mapping[str, str] | None = None) -> Faults:
    """The faults this process was told of; none unless somebody planned some."""
    text = read_environment(environ).swell_faults
    if text is None:
        return Faults()
    try:
        plan = json.loads(text)
        return Faults([fail_at(**fault) for fault in plan["faults"]], plan["folder"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"SWELL_FAULTS is {text!r}, expected what Faults.variables() gives: {error}.") from error


class FailingSamples:
    """A map-style data set that fails where a fault of loading is planned, in whichever process reads from it."""

    def __init__(self, dataset: Any, faults: Faults) -> None:
        import torch

        self.dataset = dataset
        self._faults = faults
        self.place = torch.zeros(2, dtype=torch.int64).share_memory_()  # rank and step, seen by the loading processes

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
            time.sleep(60)  # another thread may hear it first
        return
    if fault.kind == "exit":
        os._exit(_EXIT_STATUS)
    _raise(fault)


def _raise(fault: Fault) -> NoReturn:
    if fault.kind == "oom":
        import torch

        raise torch.OutOfMemoryError(f"out of memory, on purpose (fault {fault})")
    raise DeliberateError(f"failed on purpose (fault {fault})")
