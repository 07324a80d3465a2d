"""Sums over all replicas that survive restarts and count every committed sample once."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import Tensor

from swell.compat.adaptdl.members import NamedState
from swell.compat.adaptdl.session import current_session
from swell.errors import LoopError

Values = dict[Any, Any]


class Accumulator(MutableMapping):
    """A dict whose values are summed over replicas; add to it anywhere, read it inside ``synchronized()``.

        stats = adaptdl.torch.Accumulator()
        for data, target in loader:
            stats["loss"] += loss.item()
        with stats.synchronized():
            print(stats["loss"])

    What is added during a training step counts if the step does: a step that is repeated counts once. After a restart,
    a ``synchronized()`` block that was done gives the same values again. In an elastic run, sums are merged before
    every training step and after every batch of an evaluation, so a worker that is lost takes with it only what it has
    added since.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        session = current_session()
        if session.current is not None:
            raise LoopError(
                "an Accumulator was created inside a loop over an AdaptiveDataLoader; expected one created before the "
                "loop, because after a restart in the middle the loop begins elsewhere and the sums would be lost. "
                "Create it before the loop."
            )
        place, accumulators = session.place, session.sums.accumulators
        if place.in_epoch:
            self.epoch, prefix, number = place.epoch, f"epoch{place.epoch}-", place.num_accumulators
            place.num_accumulators += 1
        else:
            self.epoch, prefix, number = None, "", sum(each.epoch is None for each in accumulators)
        self._results: Values = dict(*args, **kwargs)  # summed over the replicas
        self._certain: Values = {}  # added on this replica, not merged yet
        self._uncertain: Values = {}  # the same, in a step or batch that may be repeated
        self._readings: list[Values] = []  # what each synchronized() block of this epoch gave
        self._block = 0  # synchronized() blocks of this epoch that this process has entered
        self._reading = False
        self._name = f"adaptdl-accumulator-{prefix}{number}"
        session.states.add(NamedState(self._name, lambda: None, self._capture, self._restore))
        accumulators.append(self)
        self._saved_blocks = len(self._readings) if session.states.load(self._name) else 0

    @contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """Sum over the replicas what was added; inside the block this is a plain dict. Every replica calls it."""
        results = None
        if self._block < self._saved_blocks:  # this block was done before the restart
            self._certain, self._uncertain = {}, {}
            results, self._results = self._results, dict(self._readings[self._block])
        else:
            current_session().together(self._read_together)
        self._block += 1
        self._reading = True
        try:
            yield self
        finally:
            self._reading = False
            if results is not None:
                self._results = results

    def _read_together(self) -> None:
        session = current_session()
        session.sums.merge(session.collective, [self])
        self._readings.append(dict(self._results))

    # For the session

    @property
    def name(self) -> str:
        """Its name in checkpoints and between replicas."""
        return self._name

    def settle(self, *, keep: bool) -> None:
        """The step or batch under way has ended: count what it added, or drop it because its samples come again."""
        if keep:
            _add(self._certain, self._uncertain)
        self._uncertain = {}

    def unmerged(self) -> Values:
        """What was added on this replica and is not in the sums over all replicas."""
        values = dict(self._certain)
        _add(values, self._uncertain)
        return values

    def merge(self, values: Values) -> None:
        """Add a replica's values to the sums over all replicas."""
        _add(self._results, values)

    def forget(self) -> None:
        """Drop what was added on this replica, because the sums over all replicas hold it."""
        self._certain, self._uncertain = {}, {}

    def end_epoch(self) -> None:
        """The epoch is over: its ``synchronized()`` blocks are not repeated."""
        self._readings, self._block, self._saved_blocks = [], 0, 0

    def _capture(self) -> Any:
        return {"results": dict(self._results), "given": [dict(values) for values in self._readings]}

    def _restore(self, saved: Any) -> None:
        self._results = dict(saved["results"])
        self._readings = [dict(values) for values in saved["given"]]

    # For the user

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add every value of a mapping (or pairs) to the key's sum."""
        for key, value in dict(*args, **kwargs).items():
            self[key] += value

    def subtract(self, *args: Any, **kwargs: Any) -> None:
        """Subtract every value of a mapping (or pairs) from the key's sum."""
        for key, value in dict(*args, **kwargs).items():
            self[key] -= value

    def __iadd__(self, other: Any) -> Accumulator:
        self.update(other)
        return self

    def __isub__(self, other: Any) -> Accumulator:
        self.subtract(other)
        return self

    def __getitem__(self, key: Any) -> Any:
        return self._results.get(key, 0) if self._reading else _Addend(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._reading:
            self._results[key] = value
        elif isinstance(value, _Change) and value.key == key:
            _add(self._uncertain, {key: value.value})
        else:
            raise TypeError(
                f"stats[{key!r}] was assigned outside `with stats.synchronized()`; expected an addition. Write "
                f"stats[{key!r}] += value."
            )

    def __delitem__(self, key: Any) -> None:
        self._require_reading("deleted")
        del self._results[key]

    def __contains__(self, key: object) -> bool:
        self._require_reading("looked for")
        return key in self._results

    def __iter__(self) -> Iterator[Any]:
        self._require_reading("listed")
        return iter(self._results)

    def __len__(self) -> int:
        self._require_reading("counted")
        return len(self._results)

    def __repr__(self) -> str:
        return f"Accumulator({self._results if self._reading else 'read it inside synchronized()'})"

    def _require_reading(self, action: str) -> None:
        if not self._reading:
            raise LoopError(_unreadable(f"keys of an Accumulator were {action}"))


class _Change:
    """A value to add to one key."""

    def __init__(self, key: Any, value: Any) -> None:
        self.key, self.value = key, value.detach() if isinstance(value, Tensor) else value


class _Addend:
    """Stands for a sum that cannot be read yet, but can be added to."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def __iadd__(self, value: Any) -> _Change:
        return _Change(self._key, value)

    def __isub__(self, value: Any) -> _Change:
        return _Change(self._key, -value)

    def __repr__(self) -> str:
        return f"<the sum of {self._key!r}, to be read inside synchronized()>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise LoopError(_unreadable(f"stats[{self._key!r}] was read"))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse  # pyright: ignore[reportAssignmentType]
    __float__ = __int__ = __index__ = __bool__ = __str__ = __format__ = __neg__ = __round__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def _unreadable(event: str) -> str:
    return (
        f"{event} outside `with stats.synchronized()`, where each replica holds only its own part of the sums. Read "
        f"them inside the block, which every replica must enter."
    )


def _add(sums: Values, values: Values) -> None:
    for key, value in values.items():
        sums[key] = sums[key] + value if key in sums else value
