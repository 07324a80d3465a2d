"""Samples of one pass over an iterable data set: read ahead as far as asked, dropped as far as committed."""

from __future__ import annotations

import copy
import io
import pickle
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from swell.data.fingerprint import sample_fingerprint
from swell.errors import ConfigError, DataError, LoadError

_CHUNK = 64  # samples a worker sends at once
_SKIPPED = 256  # samples read at once and dropped on the way to a position
_APART, _KEPT = 8, 4  # an epoch's first _KEPT samples and then one in _APART get fingerprints; the last _KEPT are kept
_SLOW_S = 10.0  # reading a stream again for longer than this is worth a word


class ReadAhead:
    """Samples ``low`` to ``high`` of an epoch's pass over ``dataset``, by position.

    A pass begins with ``dataset.set_epoch(epoch)`` if there is one. Committed samples are skipped by ``skip(n)`` (which
    returns an iterable that begins ``n`` samples later), else by reading them. With ``resume="state"`` they are skipped
    by the data set's own ``load_state_dict``, given a state that its ``state_dict`` returned before that position. It
    is not the default, because many states leave something out, such as the content of a shuffle buffer. With several
    workers samples are always read, because each worker has a state of its own.

    Whatever way a pass was resumed, some of the samples before the position are read again and compared by fingerprint
    with those of the pass before. If they differ, the stream is read from its start; if they differ then too, that is a
    ``DataError``, because the stream does not repeat itself.

    With ``num_workers`` above 0, ``loader_arguments`` go to a ``DataLoader`` whose workers read. Samples then travel as
    bytes and are unpacked when they are asked for, so that those of other replicas cost little.
    """

    def __init__(self, dataset: Any, *, resume: str = "reread", **loader_arguments: Any) -> None:
        if resume not in ("reread", "state"):
            raise ConfigError(f"resume is {resume!r}; expected 'reread' or 'state'. Leave it out for 'reread'.")
        stateful = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        if resume == "state" and not stateful:
            raise ConfigError(
                f"resume is 'state'; expected a data set with state_dict() and load_state_dict(state), and "
                f"{type(dataset).__name__} has none. Leave resume out, and the stream is read again after a resume."
            )
        self._dataset = dataset
        self._arguments = loader_arguments
        self._workers: int = loader_arguments.get("num_workers", 0)
        self._skips = self._workers < 2 and hasattr(dataset, "skip")
        self._stateful = self._workers < 2 and stateful
        self._by_state = self._stateful and resume == "state"
        self._states: deque[tuple[int, Any]] = deque()  # positions, each with the data set's state before its sample
        self._keeps_states = False  # whether the pass under way records states
        self._first_state: Any = None  # the data set's state before it was ever read
        self._loader: DataLoader[Any] | None = None
        self._reader: Any = None  # the iterator of the pass under way
        self._samples: list[Any] = []
        self._prints: deque[tuple[int, str]] = deque(maxlen=_KEPT)  # positions with the fingerprint of their sample
        self._expected: tuple[int, dict[int, str]] | None = None  # an epoch and its fingerprints in an earlier pass
        self._different: int | None = None  # the first position at which the pass under way differs from that
        self._direct = False  # whether the pass under way did not begin at the epoch's start
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
            if not self._reread(epoch, position) and self._direct:
                warnings.warn(
                    f"the data set did not bring back the samples before position {position} of epoch {epoch}; "
                    f"expected its {'state' if self._by_state else 'skip(n)'} to leave nothing out. The stream is read "
                    f"from the epoch's start instead.",
                    stacklevel=2,
                )
                self._by_state = self._skips = False
                self._states.clear()
                self._open(epoch, position)
                self._reread(epoch, position)
            self._require_same(epoch, position)
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

    @property
    def fingerprints(self) -> dict[int, str]:
        """Of some of the samples read last, by position; every pass over an epoch gives the same."""
        return dict(self._prints)

    def state(self) -> dict[str, Any]:
        """Fingerprints of samples that were read, and with ``resume="state"`` the data set's own state before them."""
        if self.epoch < 0 or not self._prints:
            return {}
        state: dict[str, Any] = {"epoch": self.epoch, "fingerprints": [list(pair) for pair in self._prints]}
        usable = [pair for pair in self._states if pair[0] <= self._oldest][-1:]
        usable = usable or [pair for pair in self._states if pair[0] <= self.low][:1]  # fewer samples are compared
        if self._by_state and usable:
            state |= {"position": usable[0][0], "dataset": usable[0][1]}
        return state

    @property
    def _oldest(self) -> int:
        """The first position that a resumed pass reads again."""
        return min([self.low, *(position for position, _ in self._prints)])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass over the state's epoch from that state, and compare what it yields."""
        self.close()
        if not state:
            return
        if "fingerprints" in state:  # not in those of earlier versions
            self._expected = state["epoch"], {int(position): text for position, text in state["fingerprints"]}
        if self._by_state and "dataset" in state:
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
        if self._prints and (self._expected is None or self._expected[0] != self.epoch):
            self._expected = self.epoch, dict(self._prints)
        self._prints.clear()
        started = getattr(self._loader, "_iterator", None)  # set before ours, if an error interrupted the start
        reader = started if self._reader is None else self._reader
        self._reader = self._loader = None
        self._samples, self.low, self.ended = [], 0, False
        if self._workers and reader is not None:
            reader._shutdown_workers()  # what its __del__ calls, but now: an error's traceback may keep it alive
        self._sound = True

    def _open(self, epoch: int, position: int) -> None:
        if position or self._stateful or self._loader is None or not self._loader.persistent_workers:
            self._restart()
        begin = min([position, *self._known(epoch)])  # so that the samples that are known come again
        usable = [(start, state) for start, state in self._states if epoch == self.epoch and start <= begin]
        usable = usable or [pair for pair in list(self._states)[:1] if epoch == self.epoch and pair[0] <= position]
        self._sound = False
        self._states.clear()
        self._prints.clear()
        self._different = None
        self.epoch, self._samples, self.low, self.ended = epoch, [], 0, False
        if self._stateful:
            self._reset_state(usable[-1][1] if usable else None)
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        samples = self._dataset
        if usable:
            self.low = usable[-1][0]
            self._states.append(usable[-1])
        elif begin and self._skips:
            samples, self.low = self._dataset.skip(begin), begin
            if hasattr(samples, "set_epoch"):  # what skip returns may be at epoch 0 again (Hugging Face datasets)
                samples.set_epoch(epoch)
        self._direct = bool(usable) or samples is not self._dataset
        self._keeps_states = self._by_state and samples is self._dataset
        if not self._workers:
            self._reader = iter(samples)
            return
        if self._loader is None:
            samples = samples if isinstance(samples, IterableDataset) else _Iterable(samples)
            self._loader = DataLoader(
                samples, batch_size=_CHUNK, collate_fn=_Pack(with_state=self._keeps_states), **self._arguments
            )
        self._reader = iter(self._loader)

    def _known(self, epoch: int) -> dict[int, str]:
        """Fingerprints of the epoch's samples in an earlier pass, by position."""
        return {} if self._expected is None or self._expected[0] != epoch else self._expected[1]

    def _reread(self, epoch: int, position: int) -> bool:
        """Read up to ``position`` and past the samples that are known; whether they are the same."""
        known = self._known(epoch)
        stop = max([position, *(at + 1 for at in known)])
        began, told = time.monotonic(), False
        while self.high < stop and not self.ended:
            self._release(min([position, *known]))
            self._read(stop - self.high)
            if not told and time.monotonic() - began > _SLOW_S:
                told = True
                warnings.warn(
                    f"reading the stream of epoch {epoch} again up to position {position}, now at {self.high}. A data "
                    f'set whose state leaves nothing out goes on at once: job.loader(dataset, resume="state").',
                    stacklevel=3,
                )
        return self._differs(epoch) is None

    def _differs(self, epoch: int) -> int | None:
        """The first position where the pass under way differs from an earlier one over the epoch; None if it does not.

        A pass that began after some of the known samples is compared by the others.
        """
        missing = [at for at in self._known(epoch) if at >= self.high]  # the stream ended before them
        return min(missing) if self._different is None and missing else self._different

    def _require_same(self, epoch: int, position: int) -> None:
        differs = self._differs(epoch)
        self._expected = None
        if differs is not None:
            self._restart()
            self._expected = None
            raise DataError(
                f"the stream gave another sample at position {differs} of epoch {epoch} than before; expected the same "
                f"samples in each pass over an epoch, because {position} of them are committed. Give its shuffling a "
                f"seed, as in dataset.shuffle(seed=0, buffer_size=1000), and let nothing in it depend on the time, the "
                f"process or the rank."
            )

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
                samples = list(islice(self._reader, min(count, max(_SKIPPED, len(self._samples)))))
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
        begin, known = self.high, self._known(self.epoch)
        self._samples += samples
        for position in _remembered(begin, self.high):  # now, because user code may change them
            text = sample_fingerprint(self[position])
            self._prints.append((position, text))
            if self._different is None and known.get(position, text) != text:
                self._different = position
        if self._keeps_states and samples:
            self._states.append((self.high, state))

    def _release(self, position: int) -> None:
        count = min(position, self.high) - self.low
        if count > 0:
            del self._samples[:count]
            self.low += count
        while len(self._states) > 1 and self._states[1][0] <= self._oldest:
            self._states.popleft()


def _remembered(begin: int, stop: int) -> Iterator[int]:
    """The positions from ``begin`` to ``stop`` whose samples are remembered by their fingerprints."""
    yield from range(begin, min(_KEPT, stop))
    begin = max(begin, _KEPT)
    yield from range(begin + -begin % _APART, stop, _APART)


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
