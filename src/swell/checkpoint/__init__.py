"""Checkpoints: one atomic whole of everything a run cannot recompute, saved beside training, safe to load.

Names are loaded when they are first used: ``disk`` and ``manifest`` serve Keras too, which need not have torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.lazy_names import lazy_names

_HOMES = {
    "cadence": ("Cadence", "Mark"),
    "manifest": ("Manifest",),
    "reading": ("Checkpoint", "inspect", "verify"),
    "rng": ("capture_rng", "restore_rng"),
    "saver": ("AsyncSaver", "SaveReport"),
    "store": ("Store",),
    "transfer": ("empty_like", "gather_values", "pack", "share_state", "unpack"),
    "weights": ("load_weights",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AsyncSaver",
    "Cadence",
    "Checkpoint",
    "Manifest",
    "Mark",
    "SaveReport",
    "Store",
    "capture_rng",
    "empty_like",
    "gather_values",
    "inspect",
    "load_weights",
    "pack",
    "restore_rng",
    "share_state",
    "unpack",
    "verify",
]

__getattr__, __dir__ = lazy_names(__name__, {name: f"swell.checkpoint.{home}" for name, home in _HOME_OF.items()})

if TYPE_CHECKING:
    from swell.checkpoint.cadence import Cadence, Mark
    from swell.checkpoint.manifest import Manifest
    from swell.checkpoint.reading import Checkpoint, inspect, verify
    from swell.checkpoint.rng import capture_rng, restore_rng
    from swell.checkpoint.saver import AsyncSaver, SaveReport
    from swell.checkpoint.store import Store
    from swell.checkpoint.transfer import empty_like, gather_values, pack, share_state, unpack
    from swell.checkpoint.weights import load_weights
