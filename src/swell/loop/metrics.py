"""Sums and means over all replicas that count every sample once, also when steps are repeated or workers change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from swell.core.protocols import Collective
from swell.errors import ConfigError


class Metrics:
    """Named sums and weighted means; exact over replicas, repeated steps and resumes.

    Values that are added during a step wait until it is committed, and are dropped if the step is repeated. Values that
    are added after it count with the next step, or when the loop over the loader ends. Values may be tensors on any
    device: they are added up there, and read only when you ask for results.

        job.metrics.mean("loss", loss)
        job.metrics.accuracy("accuracy", logits, y)
        print(job.metrics.results())
    """

    def __init__(self) -> None:
        self._pending: dict[str, Tensor] = {}  # sum and weight by name, of the step in progress
        self._late: dict[str, Tensor] = {}  # added after a step was committed, so no repeated step adds them again
        self._between = False  # whether a step was committed and the next one has not started
        self._summed: dict[str, Tensor] = {}  # both over all replicas, once they are exchanged
        self._committed: dict[str, Tensor] = {}  # and not read yet
        self._before: dict[str, Tensor] = {}  # of these, what earlier epochs have added
        self._read: dict[str, Tensor] = {}  # what this epoch has added and was read since
        self.muted = False  # True while values belong to nothing: a step that was given up, samples of other replicas
        self.samples = 1  # of the batch that the user holds; 1 outside loops over data
        self.reads = 0  # how often results were read and counting started again
        self._last_results: dict[str, float] = {}  # of the last such read
        self._repeats = 0  # reads that other replicas have made and this one has not

    def mean(self, name: str, value: Any, *, weight: Any | None = None) -> None:
        """Add ``value``, itself a mean over ``weight`` samples, to a weighted mean.

        By default these are the samples of the batch, in a loop over ``job.loader`` or ``job.evaluation``; elsewhere 1.
        """
        value, weight = _scalar(name, value), _scalar(name, self.samples if weight is None else weight)
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
                f"{tuple(targets.shape)}; expected targets of the logits' shape without its last dimension. Pass class "
                f"indices, one per row."
            )
        correct = (logits.detach().argmax(-1) == targets).double().sum()
        self._add(name, correct, torch.as_tensor(float(targets.numel()), dtype=torch.float64, device=correct.device))

    def _add(self, name: str, total: Tensor, weight: Tensor) -> None:
        if self.muted:
            return
        _add_to(self._late if self._between else self._pending, name, torch.stack([total, weight.to(total.device)]))

    def begin_step(self) -> None:
        """A step starts: values that are added from now on belong to it."""
        self._between = False

    @property
    def layout(self) -> int:
        """A number that is the same on replicas whose waiting names are the same; fits a float64 exactly."""
        value = 0
        if not self._pending and not self._late:
            return value
        for name in self.names():
            for byte in name.encode():
                value = (value * 257 + byte + 1) % (2**52 - 47)
            value = value * 257 % (2**52 - 47)  # 0 ends a name
        return value

    def names(self) -> list[str]:
        """The names of values that wait to be committed, in a fixed order."""
        return sorted({*self._pending, *self._late})

    def tensors_to_sum(self, names: list[str], device: torch.device) -> list[Tensor]:
        """The waiting values as tensors that replicas add up in place: the same list on each."""
        self._summed = {name: torch.zeros(2, dtype=torch.float64, device=device) for name in names}
        for waiting in (self._pending, self._late):
            for name, entry in waiting.items():
                self._summed[name] += entry.to(device)
        return list(self._summed.values())

    def commit(self) -> None:
        """Count the waiting values; several replicas must have exchanged them before."""
        self._between = True
        if not (self._pending or self._late or self._summed):
            return
        for waiting in (self._summed,) if self._summed else (self._pending, self._late):
            for name, entry in waiting.items():
                _add_to(self._committed, name, entry)
        for waiting in (self._pending, self._late, self._summed):
            waiting.clear()

    def drop(self) -> None:
        """Forget the values of the step in progress: it did not happen."""
        self._pending.clear()
        self._summed.clear()

    def set_aside(self) -> tuple[dict[str, Tensor], dict[str, Tensor], bool]:
        """Take out the waiting values, so that something else can be counted meanwhile."""
        aside = self._pending, self._late, self._between
        self._pending, self._late, self._between = {}, {}, False
        return aside

    def put_back(self, aside: tuple[dict[str, Tensor], dict[str, Tensor], bool]) -> None:
        """Put the values that were set aside back to wait."""
        self._pending, self._late, self._between = aside

    def results(self, *, reset: bool = True) -> dict[str, float]:
        """Everything committed so far, over all replicas; counting starts again unless ``reset=False``."""
        if self._repeats > 0:
            self._repeats -= reset
            return dict(self._last_results)
        results = {name: _value(entry) for name, entry in sorted(self._committed.items())}
        if reset:
            self._read, self._before = self._of_epoch(), {}
            self._committed.clear()
            self.reads, self._last_results = self.reads + 1, dict(results)
        return results

    def end_epoch(self) -> dict[str, float]:
        """Everything that was committed in this epoch, whether it was read since or not; the next epoch begins."""
        results = {name: _value(entry) for name, entry in sorted(self._of_epoch().items())}
        self._read, self._before = {}, dict(self._committed)
        return results

    def _of_epoch(self) -> dict[str, Tensor]:
        sums = dict(self._read)
        for name, entry in self._committed.items():
            before = self._before.get(name)
            if entry is not before:
                _add_to(sums, name, entry if before is None else entry - before.to(entry.device))
        return sums

    def latest(self, name: str, *, since: int) -> float | None:
        """The value that waits to be read, or that of the last read if there was one after the first ``since``."""
        entry = self._committed.get(name)
        if entry is None:
            return self._last_results.get(name) if self.reads > since else None
        return _value(entry)

    def repeat_reads(self, count: int) -> None:
        """Call after loading the state of a replica that had read results ``count`` times more than this one.

        This replica's next read then returns that replica's last one, and counting does not start again for it.
        """
        self._repeats = max(0, min(1, count))

    def state_dict(self) -> dict[str, Any]:
        """The values that are committed and not yet read, those of this epoch, and the last results."""
        return {
            "committed": _as_lists(self._committed),
            "epoch": _as_lists(self._of_epoch()),
            "reads": self.reads,
            "read": dict(self._last_results),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; values that wait are forgotten."""
        for waiting in (self._pending, self._late, self._summed):
            waiting.clear()
        self._committed, self._read = _as_tensors(state["committed"]), _as_tensors(state.get("epoch", {}))
        self._before = dict(self._committed)  # the rest of the epoch adds to what ``_read`` has of it
        self.reads, self._last_results, self._repeats = int(state["reads"]), dict(state["read"]), 0


def _value(entry: Tensor) -> float:
    total, weight = entry.tolist()
    return total if weight == 0 else total / weight


def _as_lists(sums: Mapping[str, Tensor]) -> dict[str, list[float]]:
    return {name: entry.tolist() for name, entry in sums.items()}


def _as_tensors(sums: Mapping[str, Sequence[float]]) -> dict[str, Tensor]:
    return {name: torch.tensor(entry, dtype=torch.float64) for name, entry in sums.items()}


def _add_to(sums: dict[str, Tensor], name: str, entry: Tensor) -> None:
    total = sums.get(name)
    sums[name] = entry if total is None else total + entry.to(total.device)


def exchange(metrics: Metrics, collective: Collective, device: torch.device) -> None:
    """Sum the waiting values over all replicas and commit them, outside a step."""
    if collective.size > 1:
        names = agreed_names(metrics, collective, [int(n[0]) for n in collective.gather_numbers([metrics.layout])])
        collective.sum_tensors(metrics.tensors_to_sum(names, device))
    metrics.commit()


def exchange_late(metrics: Metrics, collective: Collective, device: torch.device) -> None:
    """Sum and commit the values added after the latest step; leave those of the step in progress alone."""
    pending, late, between = metrics.set_aside()
    metrics.put_back(({}, late, between))
    try:
        exchange(metrics, collective, device)
    finally:
        metrics.put_back((pending, late, between))


def agreed_names(metrics: Metrics, collective: Collective, layouts: Sequence[float]) -> list[str]:
    """Every name that waits on some replica; asks the others only where the layouts differ."""
    if len(set(layouts)) == 1:
        return metrics.names()
    texts = collective.gather_text("\n".join(metrics.names()))
    return sorted({name for text in texts for name in text.split("\n")} - {""})


def _scalar(name: str, value: Any) -> Tensor:
    if not isinstance(name, str) or not name or "\n" in name:
        raise ConfigError(f"a metric's name is {name!r}; expected a line of text. Name it, for example 'loss'.")
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ConfigError(
                f"metric {name!r} is a tensor of shape {tuple(value.shape)}; expected one number. Reduce it first, for "
                f"example with .mean() or .sum()."
            )
        return value.detach().reshape(()).double()
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"metric {name!r} is {value!r}; expected a number or a tensor of one element. Convert it first."
        ) from error
    return torch.tensor(number, dtype=torch.float64)
