"""Samples of one pass over an iterable data set: read ahead as far as asked, dropped as far as committed."""

from __future__ import annotations

import copy
import io
import pickle
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from swell.errors import DataError, LoadError

_CHUNK = 64  # samples a worker sends at once


class ReadAhead:
    """Samples ``low`` to ``high`` of an epoch's pass over ``dataset``, by position.

    A pass begins with ``dataset.set_epoch(epoch)`` if there is one. Committed samples are skipped by the data set's own
    ``load_state_dict`` (given a state that its ``state_dict`` returned at or before that position) or ``skip(n)``
    (which returns an iterable that begins ``n`` samples later), else by reading them. With several workers they are
    always read, because each worker has a state of its own.

    With ``num_workers`` above 0, ``loader_arguments`` go to a ``DataLoader`` whose workers read. Samples then travel as
    bytes and are unpacked when they are asked for, so that those of other replicas cost little.
    """

    def __init__(self, dataset: Any, **loader_arguments: Any) -> None:
        self._dataset = dataset
        self._arguments = loader_arguments
        self._workers: int = loader_arguments.get("num_workers", 0)
        self._skips = self._workers < 2 and hasattr(dataset, "skip")
        self._stateful = self._workers < 2 and hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        self._states: deque[tuple[int, Any]] = deque()  # positions, each with the data set's state before its sample
        self._keeps_states = False  # whether the pass under way records states
        self._first_state: Any = None  # the data set's state before it was ever read
        self._loader: DataLoader[Any] | None = None
        self._reader: Any = None  # the iterator of the pass under way
        self._samples: list[Any] = []
        # A dead worker makes torch raise in the main thread at any instruction, even between reading a sample and
        # storing it. So the samples are trusted only if the last call completed.
        self._sound = True
        self.epoch = -1
        self.low = 0
        self.ended = False

    @property
    def high(self) -> int:
        """The position after the last sample read."""
        return self.low + len(self._samples)

    def __getitem__(self, position: int) -> Any:
        """The sample at a position; one that a worker read is a new copy each time."""
        sample = self._samples[position - self.low]
        return pickle.loads(sample) if self._workers else sample

    def holds(self, epoch: int, position: int) -> bool:
        """Whether that position can be reached without a new pass."""
        return self._sound and self._reader is not None and epoch == self.epoch and position >= self.low

    def reach(self, position: int) -> int:
        """Read on until ``position`` or the end of the stream; return the position after the last sample read."""
        self._sound = False
        while self.high < position and not self.ended:
            self._read(position - self.high)
        self._sound = True
        return self.high

    def seek(self, epoch: int, position: int) -> None:
        """Drop the samples before ``position`` of ``epoch``; begin a new pass only if reading on does not get there.

        Raises ``DataError`` if the stream ends before ``position``.
        """
        if not self._sound:
            self._restart()
        reachable, self._sound = self.holds(epoch, position), False
        if not reachable:
            self._open(epoch, position)
        self._release(position)
        while self.high < position and not self.ended:
            self._read(position - self.high)
            self._release(position)
        if self.high < position:
            raise DataError(
                f"epoch {epoch} of the stream ended after {self.high} samples, but {position} are committed; expected "
                "the same samples in each pass over an epoch. Fix the data set, or start a new run."
            )
        self._sound = True

    def state(self) -> dict[str, Any]:
        """The data set's own state at or before the first sample kept; empty if it keeps none."""
        if not self._states or self._states[0][0] > self.low:
            return {}
        position, state = self._states[0]
        return {"epoch": self.epoch, "position": position, "dataset": state}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass over the state's epoch from that state."""
        self.close()
        if state and self._stateful:
            self.epoch = state["epoch"]
            self._states.append((state["position"], state["dataset"]))

    def close(self) -> None:
        """Stop the workers and drop all samples; the next ``seek`` begins a new pass."""
        self._restart()
        self._states.clear()
        self.epoch = -1

    def _restart(self) -> None:
        """Stop the workers and drop all samples, but keep the states."""
        self._sound = False
        started = getattr(self._loader, "_iterator", None)  # set before ours, if an error interrupted the start
        reader = started if self._reader is None else self._reader
        self._reader = self._loader = None
        self._samples, self.low, self.ended = [], 0, False
        if self._workers and reader is not None:
            reader._shutdown_workers()  # what its __del__ calls, but now: an error's traceback may keep it alive
        self._sound = True

    def _open(self, epoch: int, position: int) -> None:
        usable = [(start, state) for start, state in self._states if epoch == self.epoch and start <= position]
        if position or self._stateful or self._loader is None or not self._loader.persistent_workers:
            self._restart()
        self._sound = False
        self._states.clear()
        self.epoch, self._samples, self.low, self.ended = epoch, [], 0, False
        if self._stateful:
            self._reset_state(usable[-1][1] if usable else None)
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        samples = self._dataset
        if usable:
            self.low = usable[-1][0]
            self._states.append(usable[-1])
        elif position and self._skips:
            samples, self.low = self._dataset.skip(position), position
        self._keeps_states = self._stateful and samples is self._dataset
        if not self._workers:
            self._reader = iter(samples)
            return
        if self._loader is None:
            samples = samples if isinstance(samples, IterableDataset) else _Iterable(samples)
            self._loader = DataLoader(
                samples, batch_size=_CHUNK, collate_fn=_Pack(with_state=self._keeps_states), **self._arguments
            )
        self._reader = iter(self._loader)

    def _reset_state(self, state: Any) -> None:
        """Load a state into the data set, or the first one: an earlier pass may have left it anywhere."""
        if self._first_state is None:
            self._first_state = copy.deepcopy(self._dataset.state_dict())
        state = self._first_state if state is None else state
        if state is not None:
            self._dataset.load_state_dict(copy.deepcopy(state))

    def _read(self, count: int) -> None:
        try:
            if self._workers:
                samples, state = next(self._reader, ([], None))
            else:
                samples = list(islice(self._reader, count))
                state = copy.deepcopy(self._dataset.state_dict()) if self._keeps_states else None
        except BaseException as error:
            high = self.high
            self._restart()
            if not isinstance(error, Exception):
                raise
            raise LoadError(
                f"reading the stream failed near position {high} of epoch {self.epoch}: {type(error).__name__}, see "
                "the error above. The next batch is read from that position. Fix the data set if it fails again."
            ) from error
        self.ended = not samples
        self._samples += samples
        if self._keeps_states and samples:
            self._states.append((self.high, state))

    def _release(self, position: int) -> None:
        count = min(position, self.high) - self.low
        if count > 0:
            del self._samples[:count]
            self.low += count
        while len(self._states) > 1 and self._states[1][0] <= self.low:
            self._states.popleft()


class _Iterable(IterableDataset[Any]):
    """Makes any iterable an ``IterableDataset``, which a ``DataLoader`` iterates."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


class _Pack:
    """The ``collate_fn`` of a worker: each sample as bytes, and the data set's state after the last of them."""

    def __init__(self, *, with_state: bool) -> None:
        self.with_state = with_state

    def __call__(self, samples: list[Any]) -> tuple[list[bytes], Any]:
        info = get_worker_info()
        assert info is not None
        dataset: Any = info.dataset
        return [_packed(sample) for sample in samples], dataset.state_dict() if self.with_state else None


def _packed(sample: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(sample)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Writes tensors as arrays, because torch's own way takes a hundred microseconds each, or a file descriptor."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.device.type == "cpu" and not obj.requires_grad:
            try:
                return torch.from_numpy, (np.ascontiguousarray(obj.numpy()).reshape(obj.shape),)
            except TypeError:  # a type that numpy does not have
                return NotImplemented
        return NotImplemented
