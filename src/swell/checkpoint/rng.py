"""The state of every random number generator of this process, as plain values a checkpoint can hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from swell.errors import CheckpointError


def capture_rng() -> dict[str, Any]:
    """The states of Python's ``random``, numpy's global generator, torch on the CPU and torch on every CUDA device.

    CUDA is left out while nothing has used it, so that capturing does not start it. Generators of your own
    (``torch.Generator``, ``numpy.random.Generator``) are yours to register.

    >>> state = capture_rng()
    >>> first = torch.rand(3)
    >>> restore_rng(state)
    >>> bool((torch.rand(3) == first).all())
    True
    """
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Bring every generator back to a captured state.

    Where there are fewer CUDA devices than were captured the surplus is passed over; where there are more, those beyond
    stay as they are.
    """
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(tuple(state["numpy"]))
        torch.set_rng_state(state["torch"].cpu())
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for device, of_device in enumerate(state.get("cuda", ())[:devices]):
            torch.cuda.set_rng_state(of_device.cpu(), device)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise CheckpointError(
            f"the saved state of the random number generators cannot be restored: {error}. Expected what capture_rng() "
            f"gives, from the same versions of Python, numpy and torch; without it the run goes on with fresh ones."
        ) from error
