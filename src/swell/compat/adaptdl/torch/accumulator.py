"""Sums over all replicas that survive restarts and count every committed sample once."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import Tensor

from swell.compat.adaptdl.members import Kept
from swell.compat.adaptdl.session import current_session
from swell.compat.adaptdl.sums import merge
from swell.errors import LoopError

Sums = dict[Any, Any]


class Accumulator(MutableMapping):
    """A dict whose values are summed over replicas; add to it anywhere, read it inside ``synchronized()``.

        stats = adaptdl.torch.Accumulator()
        for data, target in loader:
            stats["loss"] += loss.item()
        with stats.synchronized():
            print(stats["loss"])

    What is added during a training step counts if the step does: a step that had to be done again is not counted
    twice. After a restart, a ``synchronized()`` block that was through gives the values it gave. Where workers come and
    go in place, sums are brought together before every step and after every batch of an evaluation, so a worker that is
    lost takes nothing with it but what it added since.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        session = current_session()
        if session.current is not None:
            raise LoopError(
                "an Accumulator was created inside a loop over an AdaptiveDataLoader. Create it before the loop: after "
                "a restart in the middle, the loop begins elsewhere and its sums would be lost."
            )
        place = session.place
        self.epoch = place.epoch if place.in_epoch else None
        where = "" if self.epoch is None else f"epoch{self.epoch}-"
        number = place.created if place.in_epoch else sum(each.epoch is None for each in session.accumulators)
        place.created += place.in_epoch
        self._results: Sums = dict(*args, **kwargs)
        self._certain: Sums = {}  # added on this replica, not summed over replicas yet
        self._uncertain: Sums = {}  # added during the step under way
        self._given: list[Sums] = []  # what synchronized() gave in this epoch
        self._replayed = 0
        self._reading = False
        self._name = f"adaptdl-accumulator-{where}{number}"
        session.states.add(Kept(self._name, lambda: None, self._capture, self._restore))
        session.accumulators.append(self)
        self._blocks = len(self._given) if session.states.load(self._name) else 0

    @contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """Sum over all replicas what was added so far; inside the block this is a plain dict. All replicas call it."""
        if self._replayed < self._blocks:  # before the restart this block was through
            self._certain.clear()
            self._uncertain.clear()
            shown, self._results = self._results, dict(self._given[self._replayed])
        else:
            current_session().together(self._give)
            shown = None
        self._replayed += 1
        self._reading = True
        try:
            yield self
        finally:
            self._reading = False
            if shown is not None:
                self._results = shown

    def _give(self) -> None:
        merge([self], current_session().collective)
        self._given.append(dict(self._results))

    @property
    def name(self) -> str:
        """What it is called in checkpoints and between replicas."""
        return self._name

    def settle(self, *, keep: bool) -> None:
        """The step under way was committed, or has to be done again."""
        if keep:
            _add(self._certain, self._uncertain)
        self._uncertain = {}

    def unmerged(self) -> Sums:
        """What was added on this replica and is not summed over replicas yet."""
        values = dict(self._certain)
        _add(values, self._uncertain)
        return values

    def merge(self, values: Sums) -> None:
        """Add a replica's values to the sums over all replicas."""
        _add(self._results, values)

    def forget(self) -> None:
        """Drop what was added on this replica, because the sums over all replicas hold it."""
        self._certain, self._uncertain = {}, {}

    def _capture(self) -> Any:
        return {"results": dict(self._results), "given": [dict(sums) for sums in self._given]}

    def _restore(self, saved: Any) -> None:
        self._results = dict(saved["results"])
        self._given = [dict(sums) for sums in saved["given"]]

    def end_epoch(self) -> None:
        """What was given in an epoch is not given again in the next."""
        self._given, self._replayed, self._blocks = [], 0, 0

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
                f"stats[{key!r}] = ... was called outside `with stats.synchronized()`, where values can only be added "
                f"to: write stats[{key!r}] += value."
            )

    def __delitem__(self, key: Any) -> None:
        self._read("deleted")
        del self._results[key]

    def __contains__(self, key: object) -> bool:
        self._read("looked for")
        return key in self._results

    def __iter__(self) -> Iterator[Any]:
        self._read("listed")
        return iter(self._results)

    def __len__(self) -> int:
        self._read("counted")
        return len(self._results)

    def __repr__(self) -> str:
        return f"Accumulator({self._results if self._reading else 'read it inside synchronized()'})"

    def _read(self, what: str) -> None:
        if not self._reading:
            raise LoopError(_unread(f"its keys were {what}"))


class _Change:
    """What is to be added to one key."""

    def __init__(self, key: Any, value: Any) -> None:
        self.key, self.value = key, value.detach() if isinstance(value, Tensor) else value


class _Addend:
    """Stands for a sum that nobody may read yet; it can be added to."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def __iadd__(self, value: Any) -> _Change:
        return _Change(self._key, value)

    def __isub__(self, value: Any) -> _Change:
        return _Change(self._key, -value)

    def __repr__(self) -> str:
        return f"<the sum of {self._key!r}, to be read inside synchronized()>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise LoopError(_unread(f"stats[{self._key!r}] was read"))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse  # pyright: ignore[reportAssignmentType]
    __float__ = __int__ = __index__ = __bool__ = __str__ = __format__ = __neg__ = __round__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def _unread(what: str) -> str:
    return (
        f"{what} outside `with stats.synchronized()`. Until then each replica holds only its own part: read sums "
        f"inside the block, which every replica must enter."
    )


def _add(sums: Sums, more: Sums) -> None:
    for key, value in more.items():
        sums[key] = sums[key] + value if key in sums else value
