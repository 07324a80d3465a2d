"""The random numbers of each replica: a stream of its own, put back where it was if a step is done again."""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from swell.checkpoint.rng import capture_rng, restore_rng
from swell.checkpoint.transfer import share_state
from swell.core.hashing import derive_key
from swell.errors import ConfigError
from swell.job.numpy_state import NumpyState
from swell.job.peers import Peers

MODES = ("per-replica", "same")
_REPLICA = 6  # keeps these keys apart from those of the orders
_WORDS = 625  # of a Mersenne twister: 624 and a position, which moves with each draw; all 624 change when it is through
_FEW = 4  # of them tell whether anything was drawn: the position and the words beside it


class RandomStreams:
    """The global generators of Python's ``random``, numpy and torch (on the CPU and on this replica's device).

    With ``per-replica`` the first replica keeps the script's own numbers, so that one process draws what a plain loop
    draws. Every other replica gets, whenever a world is formed, numbers that depend on the script's seed
    (``torch.manual_seed``), the samples committed and its rank. With ``same`` every replica gets the first one's
    generators then. A run that is resumed gives each rank back what it had.
    """

    def __init__(self, peers: Peers, *, mode: str = "per-replica") -> None:
        check_random(mode)
        self._peers, self._mode = peers, mode
        self._on_cuda = peers.device.type == "cuda"
        self._on_device: torch.Generator | None = None  # torch's generator of the CUDA device, once that is in use
        self._seed: int | None = None  # the script's
        self._own_seed: int | None = None  # what this replica's generators were seeded with here; None for the script's
        self._rank: int | None = None  # in the world before
        self._state: tuple[Any, Any, torch.Generator, tuple[int, int] | None] | None = None  # when the step began
        self._python = _WatchedState(
            _python_words(getattr(random.getstate, "__self__", None)),
            copy=random.getstate,
            holds_normal=lambda state: state[2] is not None,
        )
        self._numpy = NumpyState()
        self._torch = _WatchedState(
            _torch_words(torch.default_generator),
            copy=torch.default_generator.clone_state,  # costs less than the state as a tensor
            holds_normal=_torch_holds_normal,
        )

    def begin(self) -> None:
        """Before anything is resumed: remember what the script seeded its generators with."""
        self._seed = torch.initial_seed()

    def resume(self, states: Sequence[Any], *, samples: int) -> None:
        """Give this rank what it had when the run was saved; a rank that was not there begins as in a new world."""
        rank = self._peers.rank
        if rank < len(states) or self._mode == "same":
            restore_rng(states[rank if rank < len(states) else 0])
            self._own_seed, self._rank = torch.initial_seed(), rank
        else:
            self._derive(samples)

    def enter(self, *, samples: int, continues: bool) -> None:
        """A world was formed at this position; ``continues`` if this replica has lost nothing of the run."""
        rank, before = self._peers.rank, self._rank
        if self._mode == "same":
            self._rank = rank
            if self._peers.size > 1:
                restore_rng(share_state(capture_rng(), collective=self._peers.collective, source=0))
            return
        if rank == 0 and (before is None or (before == 0 and continues)):
            self._rank = rank
        else:
            self._derive(samples)

    def begin_step(self, samples: int) -> None:
        """Remember the generators; seed them apart again if the script has seeded them alike since."""
        if self._own_seed is not None and self._rank and torch.initial_seed() != self._own_seed:
            self._seed = torch.initial_seed()
            self._derive(samples)
        if self._on_cuda and self._on_device is None:
            self._on_device = self._device_generator()
        device = self._on_device  # a seed and an offset are all that it has
        self._state = (
            self._python.capture(),
            self._numpy.capture(),
            self._torch.capture(),
            None if device is None else (device.initial_seed(), device.get_offset()),
        )

    def _device_generator(self) -> torch.Generator | None:
        """torch's global generator of this replica's CUDA device; None while nothing has used it."""
        if not torch.cuda.is_initialized():
            return None
        device = self._peers.device
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]

    def undo(self) -> None:
        """Put the generators back to where the step under way began, because it is done again."""
        state = self._state
        if state is None:
            return
        python, numpy, clone, place = state
        random.setstate(python)
        self._numpy.restore(numpy)
        torch.default_generator.set_state(clone.get_state())
        if place is not None and self._on_device is not None:
            seed, offset = place
            self._on_device.manual_seed(seed)
            self._on_device.set_offset(offset)

    def _derive(self, samples: int) -> None:
        seed = torch.initial_seed() if self._seed is None else self._seed
        rank = self._peers.rank
        key = derive_key(_REPLICA, seed & (2**64 - 1), samples, rank)
        random.seed(key)
        np.random.seed((key & 0xFFFFFFFF, key >> 32))
        torch.manual_seed(key)  # on every device
        self._own_seed, self._rank = torch.initial_seed(), rank


def check_random(mode: str) -> None:
    """Refuse what says nothing about random numbers."""
    if mode not in MODES:
        raise ConfigError(
            f"random is {mode!r}; expected 'per-replica' (each replica draws its own random numbers) or 'same' (all "
            f"draw the same). Leave it out for 'per-replica'."
        )


class _WatchedState:
    """The state of a global generator, copied only after it has changed, because a copy takes up to 100 microseconds.

    Whether it has changed is seen in ``words`` of the generator's memory, its position and some beside it. If they are
    not found (None), it is copied every time. So it is while the generator holds a second normal number, because that
    is kept apart and its use not seen. ``holds_normal`` says whether a state does.
    """

    def __init__(self, words: Any, *, copy: Callable[[], Any], holds_normal: Callable[[Any], bool]) -> None:
        self._words, self._copy, self._holds_normal = words, copy, holds_normal
        self._seen: bytes | None = None  # the words when the state was copied
        self._sure = False  # whether a use of the generator since then would be seen
        self._state: Any = None

    def capture(self) -> Any:
        """The state now."""
        if self._words is None:
            return self._copy()
        now = self._words.raw
        if now == self._seen and not self._sure:  # asked only now, because a generator in use is copied anyway
            self._sure = not self._holds_normal(self._state)
        if now != self._seen or not self._sure:
            self._state, self._seen, self._sure = self._copy(), now, False
        return self._state


def _python_words(generator: Any) -> Any:
    if type(generator) is not random.Random or sys.implementation.name != "cpython":
        return None
    *words, position = generator.getstate()[1]
    return _words_beside(id(generator), words, position, size=random.Random.__basicsize__)


def _torch_words(generator: Any) -> Any:
    """In the object that the Python one stands for; a saved state has the position and the words as 64-bit numbers."""
    address, numbers = getattr(generator, "_cdata", None), generator.get_state().numpy().view(np.uint64)
    if address is None or len(numbers) < 3 + _WORDS:
        return None
    position, words = int(numbers[2]), numbers[3 : 2 + _WORDS].tolist()
    return _words_beside(address, words, position, size=256 + 4 * _WORDS)


def _words_beside(address: int, words: Sequence[int], position: int, *, size: int) -> Any:
    """The position, which lies before the words, and the first of these, in an object of this size; None if not there.

    Only what may be theirs is read, so that nothing beyond the object is.
    """
    sought = array("I", [position, *words]).tobytes()
    for place in range(address, address + size - len(sought) + 1, 4):
        if ctypes.string_at(place, 8) == sought[:8] and ctypes.string_at(place, len(sought)) == sought:
            return (ctypes.c_char * (4 * _FEW)).from_address(place)
    return None


def _torch_holds_normal(generator: torch.Generator) -> bool:
    """By the bytes that follow the words in a saved state."""
    return bool(generator.get_state()[8 * (2 + _WORDS) :].any())
