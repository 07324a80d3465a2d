"""The random numbers of each replica: a stream of its own, put back where it was if a step is done again."""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from swell.checkpoint.rng import capture_rng, restore_rng
from swell.checkpoint.transfer import share_state
from swell.core.hashing import derive_key
from swell.errors import ConfigError
from swell.job.peers import Peers

MODES = ("per-replica", "same")
_REPLICA = 6  # keeps these keys apart from those of the orders
_WORDS = 625  # of a Mersenne twister: 624 and a position, which moves with each draw; all 624 change when it is through
_FEW = 4  # of them tell whether anything was drawn: the position and some words beside it


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
        self._seed: int | None = None  # the script's
        self._own_seed: int | None = None  # what this replica's generators were seeded with here; None for the script's
        self._rank: int | None = None  # in the world before
        self._state: tuple[Any, Any, torch.Generator, Any] | None = None  # when the step under way began
        self._python, self._numpy = _PythonState(), _NumpyState()

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
        # A clone costs less than the state as a tensor, and a seed with an offset is all that a device's generator has.
        device = self._device_generator() if self._on_cuda else None
        self._state = (
            self._python.capture(),
            self._numpy.capture(),
            torch.default_generator.clone_state(),
            None if device is None else (device, device.initial_seed(), device.get_offset()),
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
        python, numpy, clone, device = state
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(clone.get_state())
        if device is not None:
            generator, seed, offset = device
            generator.manual_seed(seed)
            generator.set_offset(offset)

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


class _KnownState:
    """What was last seen of a generator, and its state then."""

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: Any = None
        self._seen: list[int] = []
        self._state: Any = None


class _PythonState(_KnownState):
    """The state of Python's global generator, copied only if it has changed, because the copy takes 20 microseconds.

    Whether it has changed is seen in the generator's memory. If its words are not found there, it is copied every time.
    """

    def capture(self) -> Any:
        generator = getattr(random.getstate, "__self__", None)
        if generator is not self._generator:
            self._generator, self._memory, self._seen = generator, _memory_of(generator), []
        if self._memory is None:
            return random.getstate()
        now = self._memory[:_FEW]
        # A second normal number is kept beside that memory, so its use does not show there.
        if now != self._seen or self._state[2] is not None or self._generator.gauss_next is not None:
            self._seen, self._state = now, random.getstate()
        return self._state


def _memory_of(generator: Any) -> Any:
    """The position and the words of a generator as they lie in memory; None if they are not there."""
    if type(generator) is not random.Random or sys.implementation.name != "cpython":
        return None
    size, words = random.Random.__basicsize__, array("I", generator.getstate()[1])  # 624 and a position
    if words.itemsize != 4 or len(words) != _WORDS:
        return None
    place = ctypes.string_at(id(generator), size).find(words[:-1].tobytes())
    if place < 4:
        return None
    memory = (ctypes.c_uint32 * _WORDS).from_address(id(generator) + place - 4)
    return memory if memory[0] == words[-1] else None


class _NumpyState(_KnownState):
    """The state of numpy's global generator, copied only if it has changed, because the copy takes 100 microseconds.

    Whether it has changed is seen in the generator's memory, by the address that numpy documents for C code.
    """

    def capture(self) -> Any:
        generator = np.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]  # numpy 1.24
        if generator is not self._generator:
            self._generator, self._memory, self._seen = generator, None, []
            if type(generator).__name__ == "MT19937":
                self._memory = (ctypes.c_uint32 * _WORDS).from_address(generator.ctypes.state_address)
        if self._memory is None:
            return np.random.get_state()
        now = self._memory[-_FEW:]
        # A second normal number is kept beside that memory, so its use does not show there.
        if now != self._seen or self._state[3]:
            self._seen, self._state = now, np.random.get_state()
        return self._state
