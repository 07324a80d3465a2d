"""The state of every random number generator of this process, as plain values that a checkpoint can hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from swell.errors import CheckpointError


def capture_rng() -> dict[str, Any]:
    """The states of Python's ``random``, numpy's global generator, torch on the CPU and torch on every CUDA device.

    The words of a state are one array. CUDA is left out until something has used it, so that capturing does not start
    it. Register your own generators (``torch.Generator``, ``numpy.random.Generator``) with the job.

    >>> state = capture_rng()
    >>> first = torch.rand(3)
    >>> restore_rng(state)
    >>> bool((torch.rand(3) == first).all())
    True
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": (version, np.array(words, dtype=np.uint32), gauss),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Bring every generator back to a captured state.

    If there are fewer CUDA devices than were captured, the states of the missing ones are ignored; if there are more,
    the additional ones stay as they are. Older checkpoints hold the words of Python's state as a tuple.
    """
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(np.asarray(words, dtype=np.uint32).tolist()), gauss))
        np.random.set_state(tuple(state["numpy"]))
        torch.set_rng_state(state["torch"].cpu())
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for device, device_state in enumerate(state.get("cuda", ())[:devices]):
            torch.cuda.set_rng_state(device_state.cpu(), device)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError, AttributeError) as error:
        raise CheckpointError(
            f"the saved state of the random number generators cannot be restored: {error}; expected what capture_rng() "
            f"gives. Use the versions of Python, numpy and torch that saved it, or go on without it."
        ) from error
