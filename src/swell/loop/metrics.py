"""Sums and means over all replicas that count every sample once, whatever happens to the world."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from swell.core.protocols import Collective
from swell.errors import ConfigError


class Metrics:
    """Named sums and weighted means; exact over replicas, repeated steps and resumes.

    What is added during a step waits until the step is committed, and is dropped if the step has to be done again; what
    is added after it is counted with the next step, or when the loop over the loader ends. Values may be tensors on any
    device: they are added up there, and read only when you ask for results.

        job.metrics.mean("loss", loss, weight=len(y))
        job.metrics.accuracy("accuracy", logits, y)
        print(job.metrics.results())
    """

    def __init__(self) -> None:
        self._pending: dict[str, Tensor] = {}  # of the step under way
        self._late: dict[str, Tensor] = {}  # added after a step was committed: of no step that may be done again
        self._between = False  # whether a step was committed and the next one has not begun
        self._summed: dict[str, Tensor] = {}  # both, over all replicas, once they are exchanged
        self._committed: dict[str, Tensor] = {}
        self.muted = False  # while this replica computes only to keep step with others
        self.reads = 0  # how often results were asked for and counting began again
        self._read: dict[str, float] = {}  # what they were the last time
        self._repeats = 0  # reads that others have made and this replica has not

    def mean(self, name: str, value: Any, *, weight: Any = 1.0) -> None:
        """Add ``value``, itself a mean over ``weight`` samples, to a weighted mean."""
        value, weight = _scalar(name, value), _scalar(name, weight)
        self._add(name, value * weight, weight)

    def sum(self, name: str, value: Any) -> None:
        """Add ``value`` to a plain sum over all samples and replicas."""
        value = _scalar(name, value)
        self._add(name, value, torch.zeros_like(value))

    def accuracy(self, name: str, logits: Tensor, targets: Tensor) -> None:
        """Add the share of rows whose largest logit is the target's."""
        if logits.shape[:-1] != targets.shape:
            raise ConfigError(
                f"accuracy {name!r} was given logits of shape {tuple(logits.shape)} and targets of shape "
                f"{tuple(targets.shape)}; expected targets to have the shape of the logits without the last "
                f"dimension. Pass class indices, one a row."
            )
        correct = (logits.detach().argmax(-1) == targets).double().sum()
        self._add(name, correct, torch.as_tensor(float(targets.numel()), dtype=torch.float64, device=correct.device))

    def _add(self, name: str, total: Tensor, weight: Tensor) -> None:
        if self.muted:
            return
        _add_to(self._late if self._between else self._pending, name, torch.stack([total, weight.to(total.device)]))

    def begin_step(self) -> None:
        """A step begins: what is added from now on belongs to it."""
        self._between = False

    @property
    def layout(self) -> int:
        """A number that differs between replicas whose pending names differ; fits a float64 exactly."""
        value = 0
        for name in self.names():
            for byte in name.encode():
                value = (value * 257 + byte + 1) % (2**52 - 47)
            value = value * 257 % (2**52 - 47)  # 0 ends a name
        return value

    def names(self) -> list[str]:
        """What is waiting to be committed, in a fixed order."""
        return sorted({*self._pending, *self._late})

    def exchanged(self, names: list[str], device: torch.device) -> list[Tensor]:
        """What is waiting, as tensors that replicas add up in place: the same list on each."""
        self._summed = {name: torch.zeros(2, dtype=torch.float64, device=device) for name in names}
        for waiting in (self._pending, self._late):
            for name, entry in waiting.items():
                self._summed[name] += entry.to(device)
        return list(self._summed.values())

    def commit(self) -> None:
        """Count what is waiting; on many replicas it must have been exchanged before."""
        for waiting in (self._summed,) if self._summed else (self._pending, self._late):
            for name, entry in waiting.items():
                _add_to(self._committed, name, entry)
        for waiting in (self._pending, self._late, self._summed):
            waiting.clear()
        self._between = True

    def drop(self) -> None:
        """Forget what was added in the step under way: it did not happen."""
        self._pending.clear()
        self._summed.clear()

    def set_aside(self) -> tuple[dict[str, Tensor], dict[str, Tensor], bool]:
        """Take out what is waiting, so that something else can be counted meanwhile."""
        aside = self._pending, self._late, self._between
        self._pending, self._late, self._between = {}, {}, False
        return aside

    def put_back(self, aside: tuple[dict[str, Tensor], dict[str, Tensor], bool]) -> None:
        """Wait on with what was set aside."""
        self._pending, self._late, self._between = aside

    def results(self, *, reset: bool = True) -> dict[str, float]:
        """Everything committed so far, over all replicas; counting starts again unless ``reset=False``."""
        if self._repeats > 0:
            self._repeats -= reset
            return dict(self._read)
        results = {}
        for name, entry in sorted(self._committed.items()):
            total, weight = entry.tolist()
            results[name] = total if weight == 0 else total / weight
        if reset:
            self._committed.clear()
            self.reads, self._read = self.reads + 1, dict(results)
        return results

    def repeat_reads(self, count: int) -> None:
        """After taking over the state of another replica that had read results ``count`` times more than this one.

        What it read last is then what this replica reads next, and counting does not begin again for it.
        """
        self._repeats = max(0, min(1, count))

    def state_dict(self) -> dict[str, Any]:
        """What was committed and not yet read, and what was read last."""
        committed = {name: entry.tolist() for name, entry in self._committed.items()}
        return {"committed": committed, "reads": self.reads, "read": dict(self._read)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what was committed."""
        for waiting in (self._pending, self._late, self._summed):
            waiting.clear()
        committed = state["committed"]
        self._committed = {name: torch.tensor(entry, dtype=torch.float64) for name, entry in committed.items()}
        self.reads, self._read, self._repeats = int(state["reads"]), dict(state["read"]), 0


def _add_to(sums: dict[str, Tensor], name: str, entry: Tensor) -> None:
    held = sums.get(name)
    sums[name] = entry if held is None else held + entry.to(held.device)


def exchange(metrics: Metrics, collective: Collective, device: torch.device) -> None:
    """Sum what is pending over all replicas and commit it, outside a step."""
    if collective.size > 1:
        names = agreed_names(metrics, collective, [int(n[0]) for n in collective.gather_numbers([metrics.layout])])
        collective.sum_tensors(metrics.exchanged(names, device))
    metrics.commit()


def exchange_late(metrics: Metrics, collective: Collective, device: torch.device) -> None:
    """Sum and commit what was added after the latest step, and leave alone what belongs to one under way."""
    pending, late, between = metrics.set_aside()
    metrics.put_back(({}, late, between))
    try:
        exchange(metrics, collective, device)
    finally:
        metrics.put_back((pending, late, between))


def agreed_names(metrics: Metrics, collective: Collective, layouts: list[int]) -> list[str]:
    """Every name any replica has pending; asks the others only where the layouts differ."""
    if len(set(layouts)) == 1:
        return metrics.names()
    return sorted(
        {name for text in collective.gather_text("\n".join(metrics.names())) for name in text.split("\n")} - {""}
    )


def _scalar(name: str, value: Any) -> Tensor:
    if not isinstance(name, str) or not name or "\n" in name:
        raise ConfigError(f"a metric's name must be a non-empty line of text, not {name!r}.")
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ConfigError(
                f"metric {name!r} was given a tensor of shape {tuple(value.shape)}; expected one number. "
                f"Reduce it first, for example with .mean() or .sum()."
            )
        return value.detach().reshape(()).double()
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metric {name!r} was given {value!r}; expected a number or a tensor of one.") from error
    if math.isnan(number):
        return torch.tensor(math.nan, dtype=torch.float64)
    return torch.tensor(number, dtype=torch.float64)
