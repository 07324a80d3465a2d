"""The state of numpy's global generator, read from its memory: numpy takes 100 microseconds to copy 2.5 kilobytes."""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import Any, NamedTuple

import numpy as np

_WORDS = 624  # of a Mersenne twister; after them comes the position, and all of them change when that is through
_FEW = 4  # numbers that tell whether anything was drawn: the position and the last words
_HELD = struct.Struct("@id")  # whether a second normal number is held, and that number


class NumpyState:
    """Reads the state where it is found, and only after it has changed; otherwise numpy copies it."""

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: _Memory | None = None
        self._seen: tuple[bytes, bytes] | None = None  # a few numbers, and the normal one, when the state was read
        self._state: tuple[bytes, bytes] | None = None

    def capture(self) -> Any:
        """The state now, for ``restore``."""
        generator = np.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]  # from numpy 1.24 on
        if generator is not self._generator:
            self._generator, self._memory, self._seen = generator, _memory(generator), None
        if self._memory is None:
            return np.random.get_state(legacy=False)
        numbers, few, held = self._memory
        now = few.raw, held.raw
        if now != self._seen:
            self._seen, self._state = now, (numbers.raw, now[1])
        return self._state

    def restore(self, state: Any) -> None:
        """Go back to a state that ``capture`` gave."""
        if isinstance(state, tuple):
            numbers = np.frombuffer(state[0], np.uint32)
            state = ("MT19937", numbers[:_WORDS], int(numbers[_WORDS]), *_HELD.unpack(state[1]))
        np.random.set_state(state)


class _Memory(NamedTuple):
    """Where a generator's state is; ``raw`` of each are its bytes at that moment."""

    numbers: Any  # all words and the position
    few: Any
    held: Any  # the normal number that is held beside them


def _memory(generator: Any) -> _Memory | None:
    """Of the words as numpy documents it for C code, and of the normal number; None where they are not found."""
    script, offset = getattr(np.random.get_state, "__self__", None), _offset_of_held()
    if type(generator).__name__ != "MT19937" or type(script) is not np.random.RandomState or offset is None:
        return None
    address, size = generator.ctypes.state_address, 4 * (_WORDS + 1)
    return _Memory(
        numbers=_bytes_at(address, size),
        few=_bytes_at(address + size - 4 * _FEW, 4 * _FEW),
        held=_bytes_at(id(script) + offset, _HELD.size),
    )


def _bytes_at(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


@cache
def _offset_of_held() -> int | None:
    """Where a ``RandomState`` keeps its second normal number: found in one whose number is known; None if it is not."""
    known = np.random.RandomState(0)
    known.standard_normal()
    held = _HELD.pack(*known.get_state()[3:])  # pyright: ignore[reportCallIssue, reportArgumentType]
    size = np.random.RandomState.__basicsize__
    memory = ctypes.string_at(id(known), size)
    offset = memory.find(held)
    if offset < 0 or memory.count(held[-8:]) > 1:
        return None
    known.standard_normal()  # the second one; none is held now
    return offset if _HELD.unpack_from(ctypes.string_at(id(known), size), offset)[0] == 0 else None
